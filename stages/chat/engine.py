"""The chat engine: requests in, events out, one slice of device work at a time."""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable

import mlx.core as mx
import msgspec

from ...bus.errors import RequestError
from ...bus.messages import ChatDone, ChatFinished
from . import kv
from .batch import Batch, never
from .draft import DraftBatch
from .events import Delta, Event, Failed, Request, Started
from .model import ChatModel, check_draft
from .prefill import Prefill, Reader
from .prefix import PrefixCache
from .prefix_disk import ChunkFiles, fingerprint, name_of
from .row import Row

log = logging.getLogger(__name__)

MAX_TOP_LOGPROBS = 20
SAVING_S = 2.0
"""The longest that the end of a server waits for a prompt cache to be written."""


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chunk: int = 256
    """Prompt tokens that are the unit of the prompt cache."""
    slice_tokens: int | None = None
    """The most of them that are read in one slice; None: a chunk. Other sizes round differently."""
    rows: int = 8
    """Choices that may be decoded at once; more requests wait."""
    cache_bytes: int = 2 << 30
    """Bound of the prompt cache; with a draft model each has one."""
    draft_tokens: int = 3
    """--num-draft-tokens"""


class _Running:
    """What the engine remembers of a request between its start and its `ChatDone`."""

    def __init__(self, started: Started, choices: int) -> None:
        self.started = started
        self.left = choices
        self.tokens = 0
        self.reasoning = 0
        self.accepted = 0
        self.rejected = 0
        self.since = time.perf_counter()

    def done(self) -> ChatDone:
        return ChatDone(
            request=self.started.request,
            prompt_tokens=self.started.prompt_tokens,
            cached_tokens=self.started.cached_tokens,
            completion_tokens=self.tokens,
            reasoning_tokens=self.reasoning,
            accepted_tokens=self.accepted,
            rejected_tokens=self.rejected,
            prompt_s=self.started.prompt_s,
            generation_s=time.perf_counter() - self.since,
        )


class Engine:
    """Lives on one thread. `submit` requests, call `step` while `busy`; each call is one slice.

    A slice is one chunk of a prompt or a part of it, or one token for the rows that are decoded together. Requests
    without a seed share one batch, which they join and leave between tokens. A request with a seed, or on a model
    whose caches cannot be batched, or with a draft model, is decoded by itself, so what it says does not depend on
    what runs beside it. The batches and the prompts take turns.
    """

    def __init__(
        self,
        model: ChatModel,
        options: EngineOptions | None = None,
        draft: ChatModel | None = None,
        files: ChunkFiles | None = None,
    ) -> None:
        """`files` keep the prompt cache. Raises StartError if `draft` cannot guess for `model`."""
        if draft is not None:
            check_draft(model, draft)
        self.model = model
        self.draft = draft
        self.options = options or EngineOptions()
        self.cache = self._prefixes(model, files)
        self._draft_cache = self._prefixes(draft, files) if draft else PrefixCache(0)
        self._waiting: deque[Request] = deque()
        self._prefills: deque[Prefill] = deque()
        self._batches: deque[Batch | DraftBatch] = deque()
        self._shared: Batch | None = None
        self._running: dict[str, _Running] = {}
        self._aside: dict[str, list[Batch | DraftBatch]] = {}
        """The rows of requests that are set aside."""
        self._decoded_last = False
        self._reading: Prefill | None = None
        """Whose last slice may still be on the device. It is there, or has failed, before anything is queued for
        another request: an error in it is then nobody else's."""

    def _prefixes(self, model: ChatModel, files: ChunkFiles | None) -> PrefixCache:
        # Slices of another size round differently.
        name = (
            name_of(fingerprint(model), [self.options.slice_tokens or self.options.chunk]) if files else b""
        )
        return PrefixCache(self.options.cache_bytes, files, name)

    def close(self) -> None:
        """Put the prompt cache on disk, where it is kept there."""
        self._settle()
        for cache in (self.cache, self._draft_cache):
            cache.save(SAVING_S)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._prefills or self._batches)

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests whose prompt is being read or whose answer is being decoded."""
        return len(self._prefills) + len(self._running)

    def rows(self) -> list[Row]:
        """The choices that are being decoded."""
        return [row for batch in self._batches for row in batch.rows]

    def submit(self, request: Request) -> None:
        """Take a request. Raises RequestError if it can never be served."""
        length, context = len(request.prompt), self.model.context
        if not length:
            raise RequestError("The prompt is empty.", "messages")
        if length >= context:
            raise RequestError(
                f"The prompt has {length} tokens; this model's context holds {context}, with at least one for"
                " the answer. Shorten it.",
                "messages",
                code="context_length_exceeded",
            )
        if max(request.prompt) >= self.model.vocab or min(request.prompt) < 0:
            raise RequestError(f"The prompt has tokens outside this model's {self.model.vocab}.", "prompt")
        if not 1 <= request.n <= self.options.rows:
            raise RequestError(f"n must be between 1 and {self.options.rows}, not {request.n}.", "n")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1.", "max_tokens")
        if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}.", "top_logprobs")
        if any(not 0 <= token < self.model.vocab for token in request.sampling.logit_bias):
            raise RequestError(
                f"logit_bias names a token outside this model's {self.model.vocab}.", "logit_bias"
            )
        self._waiting.append(request)

    def pause(self, request: str) -> None:
        """Set a request aside that is being decoded: its rows cost memory, but no time, nor room for others."""
        aside: list[Batch | DraftBatch] = []
        for batch in list(self._batches):
            names = {row.request.id for row in batch.rows}
            if request not in names:
                continue
            if names == {request}:
                self._batches.remove(batch)
                aside.append(batch)
            elif isinstance(batch, Batch):
                aside.append(batch.split(request))
        if aside:
            self._aside.setdefault(request, []).extend(aside)

    def resume(self, request: str) -> None:
        """Go on with a request that was set aside, if it was; for a while there may be more rows than `rows`."""
        for batch in self._aside.pop(request, []):
            # A seed asks for a batch of its own, and so do caches that cannot be batched.
            shared = self.model.batchable and batch.rows[0].request.sampling.seed is None
            if shared and isinstance(batch, Batch) and self._shared in self._batches and self._shared:
                self._shared.absorb(batch)
            else:
                self._batches.append(batch)
                if shared and isinstance(batch, Batch):
                    self._shared = batch

    def cancel(self, request: str) -> bool:
        """Forget a request at once; whether it was known. What it read of its prompt stays in the prompt cache."""
        before = self.waiting + self.running
        if self._reading is not None and self._reading.request.id == request:
            self._settle()
        self._waiting = deque(one for one in self._waiting if one.id != request)
        self._prefills = deque(one for one in self._prefills if one.request.id != request)
        self._running.pop(request, None)
        self._aside.pop(request, None)
        for batch in self._batches:
            batch.leave(request)
        self._batches = deque(batch for batch in self._batches if batch.rows)
        return self.waiting + self.running < before

    def step(self, recalled: Callable[[], bool] = never) -> list[Event]:
        """Do one slice. A request that fails in it ends with `Failed`; the others go on.

        :param recalled: whether another process waits for what is queued on the device, as far as is known by now.
        """
        self._admit()
        reads = bool(self._prefills) and (self._decoded_last or not self._batches)
        self._decoded_last = not reads
        if reads:
            return self._read()
        return self._advance(self._batches[0], recalled) if self._batches else []

    def wind_up(self) -> list[Event]:
        """Wait for the slice and read the tokens that are queued, before the device is given to another process.

        Meanwhile the next ones are made ready: the device begins with them at once when it comes back.
        """
        told = self._settle()
        for batch in [one for one in self._batches if isinstance(one, Batch) and not one.held]:
            if batch in self._batches:  # a request that failed takes its other rows with it
                told += self._advance(batch, lambda: True)
        return told

    def _admit(self) -> None:
        taken = len(self.rows()) + sum(one.request.n for one in self._prefills)
        while self._waiting and taken + self._waiting[0].n <= self.options.rows:
            request = self._waiting.popleft()
            taken += request.n
            chunk, slice_tokens = self.options.chunk, self.options.slice_tokens
            readers = [Reader(self.model, self.cache, request.prompt, chunk, slice_tokens)]
            if self._guessed(request) and self.draft is not None:
                readers.append(Reader(self.draft, self._draft_cache, request.prompt, chunk, slice_tokens))
            self._prefills.append(Prefill(request, readers))

    def _guessed(self, request: Request) -> bool:
        """Whether the draft model guesses for this request, no token of which decides what the next may be."""
        bounded = request.thinking_tokens is not None and self.model.think_end is not None
        return self.draft is not None and request.grammar is None and not bounded

    def _read(self) -> list[Event]:
        prefill = self._prefills.popleft()
        told = [] if prefill is self._reading else self._settle()
        self._reading = None
        try:
            prefill.step()
            if prefill.ready:
                return [*told, *self._start(prefill)]
        except Exception as error:  # the request's boundary
            return [*told, self._fail(prefill.request.id, error)]
        self._prefills.append(prefill)
        self._reading = prefill
        return told

    def _settle(self) -> list[Event]:
        """Wait for the slice that is on the device, if there is one."""
        prefill, self._reading = self._reading, None
        if prefill is None:
            return []
        try:
            prefill.finish()
        except Exception as error:  # the request's boundary
            return [self._fail(prefill.request.id, error)]
        return []

    def _start(self, prefill: Prefill) -> list[Event]:
        request, caches = prefill.request, prefill.readers[0].caches
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        rows = [Row(request, choice, self.model, seed) for choice in range(request.n)]
        copies = [caches, *(kv.clone(caches, self.model.new_caches()) for _ in rows[1:])]
        if self._guessed(request) and self.draft is not None:
            guessing = prefill.readers[1].caches
            guesses = [guessing, *(kv.clone(guessing, self.draft.new_caches()) for _ in rows[1:])]
            for row, own, its_guesses in zip(rows, copies, guesses, strict=True):
                batch = DraftBatch(self.model, self.draft, self.options.draft_tokens)
                batch.join(row, own, its_guesses)
                self._batches.append(batch)
        elif not self.model.batchable:
            for row, own in zip(rows, copies, strict=True):
                self._batch().join([row], [own])
        elif request.sampling.seed is not None:
            self._batch().join(rows, copies)
        else:
            if self._shared is None or self._shared not in self._batches:
                self._shared = self._batch()
            self._shared.join(rows, copies)
        started = prefill.started()
        self._running[request.id] = _Running(started, request.n)
        # Chunks leave buffers of sizes that decoding never asks for.
        mx.clear_cache()
        return [started]

    def _batch(self) -> Batch:
        batch = Batch(self.model)
        self._batches.append(batch)
        return batch

    def _advance(self, batch: Batch | DraftBatch, recalled: Callable[[], bool]) -> list[Event]:
        self._batches.remove(batch)
        requests = list(dict.fromkeys(row.request.id for row in batch.rows))
        rows = list(batch.rows)
        told: list[Event] = []

        def recalled_by_then() -> bool:
            told.extend(self._settle())
            return recalled()

        try:
            if isinstance(batch, Batch):
                events = batch.step(recalled_by_then)
            else:
                told += self._settle()
                events = batch.step()
        except Exception as error:  # the requests' boundary
            return [*told, *(self._fail(request, error) for request in requests)]
        if batch.rows:
            self._batches.append(batch)
        for event in events:
            told.append(event)
            if isinstance(event, Failed):
                self.cancel(event.request)
            running = self._running.get(event.request)
            if running is None:
                continue
            if isinstance(event, Delta):
                running.tokens += event.tokens
            elif isinstance(event, ChatFinished):
                running.left -= 1
                running.reasoning += sum(row.reasoning for row in rows if _is(row, event))
                if isinstance(batch, DraftBatch):
                    running.accepted += batch.accepted
                    running.rejected += batch.rejected
                if not running.left:
                    told.append(self._running.pop(event.request).done())
        return told

    def _fail(self, request: str, error: Exception) -> Failed:
        log.error("chat request %s failed", request, exc_info=error)
        self.cancel(request)
        mx.clear_cache()
        return Failed(request, f"{type(error).__name__}: {error}")


def _is(row: Row, event: ChatFinished) -> bool:
    return row.request.id == event.request and row.choice == event.choice
