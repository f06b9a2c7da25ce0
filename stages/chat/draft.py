"""Speculative decoding: a small model guesses some tokens, the chat model checks them in one call."""

import mlx.core as mx

from . import kv
from .events import Event
from .model import ChatModel
from .row import Row
from .sampling import Sampler


class DraftBatch:
    """One row. Guess and check draw with the same noise at the same position, so they agree as often as they can,

    and what comes out is what the chat model alone would draw, up to how its logits round in a longer call.
    """

    def __init__(self, model: ChatModel, draft: ChatModel, guesses: int) -> None:
        self.rows: list[Row] = []
        self.accepted = 0
        self.rejected = 0
        self._model = model
        self._draft = draft
        self._guesses = guesses

    def join(self, row: Row, caches: kv.Caches, draft_caches: kv.Caches) -> None:
        self.rows = [row]
        self._caches = caches
        self._draft_caches = draft_caches
        self._last = row.request.prompt[-1]
        self._unseen = [self._last]
        """Tokens that the draft model has not read yet."""

    def leave(self, request: str) -> None:
        self.rows = [row for row in self.rows if row.request.id != request]

    def step(self) -> list[Event]:
        """Guess, check, and take every token up to the first that differs."""
        row = self.rows[0]
        guesses = self._guess(row, min(self._guesses, row.limit - row.drawn - 1))
        count = len(guesses)
        inputs = mx.concatenate([mx.array([self._last], mx.uint32), *guesses])
        logits = self._model.net(inputs[None], cache=self._caches)[0].astype(mx.float32)
        adjusted = logits
        if row.special:
            ahead = [inputs[1 : n + 1] if n else None for n in range(count + 1)]
            adjusted = mx.stack([row.adjust(logits[n], tokens) for n, tokens in enumerate(ahead)])
        sampler = Sampler([(row.request.sampling, row.key)] * (count + 1))
        drawn = sampler(adjusted, range(row.drawn, row.drawn + count + 1))
        mx.eval(drawn, inputs)
        guessed, truth = _ints(inputs)[1:], _ints(drawn)
        right = next((n for n in range(count) if guessed[n] != truth[n]), count)
        self.accepted += right
        self.rejected += count - right
        kv.trim(self._caches, count - right)
        kv.trim(self._draft_caches, max(0, count - 1 - right))
        if count:
            self._unseen = []
        self._unseen += truth[max(0, count - 1) : right + 1] if right == count else [truth[right]]
        self._last = truth[right]
        return self._take(row, logits, drawn, truth[: right + 1])

    def _guess(self, row: Row, count: int) -> list[mx.array]:
        """Up to `count` tokens [1] of the draft model."""
        sampler = Sampler([(row.request.sampling, row.key)])
        inputs = mx.array(self._unseen, mx.uint32)
        guesses: list[mx.array] = []
        for n in range(count):
            logits = self._draft.net(inputs[None], cache=self._draft_caches)[0, -1].astype(mx.float32)
            if row.special:
                logits = row.adjust(logits, mx.concatenate(guesses) if guesses else None)
            inputs = sampler(logits[None], [row.drawn + n])
            mx.async_eval(inputs)
            guesses.append(inputs)
        return guesses

    def _take(self, row: Row, logits: mx.array, drawn: mx.array, tokens: list[int]) -> list[Event]:
        events: list[Event] = []
        for n, token in enumerate(tokens):
            row.weigh(logits[n], drawn[n])
            row.count(drawn[n])
            row.drawn += 1
            events += row.take(token, row.likelihood)
            if row.over:
                self.rows = []
                break
        return events


def _ints(array: mx.array) -> list[int]:
    values: list[int] = array.tolist()  # pyright: ignore[reportAssignmentType]
    return values
