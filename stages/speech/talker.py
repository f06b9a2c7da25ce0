"""Stage `talker`: one frame of code group 0 and hidden state a turn, and the decision when a request ends.

Frame n+1 is queued on the device before code 0 of frame n is read here, so the device never waits for Python.
When that code turns out to be the end, the one frame queued too many is dropped.
"""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import cast

import anyio
import mlx.core as mx
import msgspec

from ...bus.channel import Inbox, Outbox
from ...bus.layout import Speech
from ...bus.messages import (
    Credit,
    Ending,
    Feedback,
    Hidden,
    Hold,
    Message,
    Prompt,
    Rows,
    Seam,
    Speak,
    StageTime,
)
from ...bus.schedule import Playout
from ...bus.turns import SpeechParty
from ...configs.voice_files import VoiceFiles
from ..actor import Actor
from ..arrays import array
from .batches import batches
from .chunks import sizes
from .kept import Kept
from .qwen3.model import Qwen3TTS
from .qwen3.sampling import Sampling
from .qwen3.talker import PREFIX_ROWS, Prefix, TalkerState

SEED_STEP = 0x9E3779B97F4A7C15
"""Odd, so that no two parts of a text get the same seed."""


@dataclass
class _Request:
    speak: Speak
    model: Qwen3TTS
    credit: int
    """Frames that may still be started."""
    recent: deque[int]
    """Code 0 of the last frames, for the repetition watchdog."""
    run: "_Run | None" = None
    """What the prompt sets off."""
    waiting: deque[Prompt] = field(default_factory=deque[Prompt])
    """Prompts of the text's later parts."""
    parts_left: int = 0
    """Parts that have not been begun."""
    done: int = 0
    """Frames of the parts that are spoken."""
    text_tokens: int = 0
    """Of those parts."""
    sampling: Sampling = field(kw_only=True)
    playout: Playout = field(kw_only=True)
    prompted: StageTime | None = None
    """What the stage `prompt` has spent."""


@dataclass
class _Run:
    state: TalkerState
    code0: mx.array
    """Of the newest frame queued."""
    trailing: mx.array
    pad: mx.array
    text_tokens: int
    final: bool
    """Whether `trailing` is the whole text."""
    pause: float
    """Seconds of silence before the next part."""
    limit: int = 0
    """Most frames that the request may have."""
    frame: int = 0
    """Number of the newest frame queued."""
    going_on: bool = False
    """Whether the newest frame has been seen not to be the end."""
    parked: mx.array | None = None
    """The next frame's input, while there is no credit or no text to start it."""


class TalkerStage(Actor[_Request]):
    name = "talker"

    def __init__(
        self,
        models: Mapping[str, Qwen3TTS],
        settings: Speech,
        progress: AbstractContextManager[None],
        party: SpeechParty | None = None,
        files: VoiceFiles | None = None,
        rows: int = 1,
    ) -> None:
        """:param rows: requests computed together, at most."""
        super().__init__(progress, party)
        self._models = models
        self._settings = settings
        self._prefixes: Kept[Prefix] = Kept(
            "prefix",
            settings.voice_cache_bytes,
            files,
            parts=lambda prefix: [prefix.cache, [mx.array(prefix.length)]],
            whole=lambda groups: Prefix(groups[0], cast(int, groups[1][0].item())),
        )
        self._prefixes.load(models)
        self._rows = rows
        self._ready: dict[str, _Request] = {}
        """Those whose next frame may be begun."""

    def open(self, speak: Speak) -> _Request:
        recent: deque[int] = deque(maxlen=self._settings.repeat_limit_frames)
        playout = Playout(sizes(self._settings, speak), speak.speed)
        model = self._models[speak.model]
        return _Request(
            speak, model, speak.lookahead, recent, sampling=_sampling(model, speak), playout=playout
        )

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        if self._party.alone:
            await super().run(inbox, outbox)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_turns, outbox)
            await super().run(inbox, outbox)
            tasks.cancel_scope.cancel()

    async def _take_turns(self, outbox: Outbox) -> None:
        """Begin frames that had to wait for the device."""
        while True:
            name: str | None = await self._party.next_turn()
            while name is not None:
                request = self.requests.get(name)
                if request is not None and request.run is not None:
                    frame = self._advance(request, request.run, outbox, granted=True)
                    await self._attempt(name, frame, outbox)
                name = self._party.turn()
            await self.caught_up(outbox)

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        run = state.run
        if isinstance(message, Prompt | Rows):
            state.prompted = message.spent
        match message:
            case Prompt():
                if run is None:
                    await self._begin(state, message, outbox)
                else:
                    state.waiting.append(message)
                return
            case Feedback():
                assert run is not None
                run.parked = array(message.embedding)
            case Rows():
                assert run is not None
                run.trailing = mx.concatenate([run.trailing, array(message.rows)], axis=1)
                run.text_tokens, run.final = run.text_tokens + message.text_tokens, message.final
                run.limit = self._limit(state, run.text_tokens)
            case Credit():
                state.credit += message.frames
                state.playout.taken(time.monotonic(), message.played_s)
            case _:
                raise TypeError(f"talker takes no {type(message).__name__}")
        if run is not None:
            await self._advance(state, run, outbox)

    async def _begin(self, request: _Request, message: Prompt, outbox: Outbox) -> None:
        """Frame 0 of a prompt, which is the first or that of the next part of a long text."""
        self._party.move(request.speak.request)
        request.parts_left = request.parts_left or message.parts
        done, part = request.done, message.parts - request.parts_left
        # Each part draws from a key of its own; the first from the request's.
        seed = (request.speak.seed + part * SEED_STEP) % 2**64
        state, code0, hidden = self._start(request, message, seed)
        request.run = _Run(
            state,
            code0,
            array(message.trailing),
            array(message.pad),
            message.text_tokens,
            message.final,
            message.pause,
        )
        request.run.limit = self._limit(request, message.text_tokens)
        request.parts_left -= 1
        request.credit -= 1
        await outbox.send(Hidden(request=request.speak.request, frame=done, hidden=hidden, code0=code0))

    def _start(self, request: _Request, message: Prompt, seed: int) -> tuple[TalkerState, mx.array, mx.array]:
        """Long prefixes go in a pass of their own, remembered or not, so that remembering changes no bit."""
        talker, sampling = request.model.talker, request.sampling
        prefill, static = array(message.prefill), message.static
        if static < PREFIX_ROWS:
            return talker.start(prefill, sampling, seed)
        prefix = self._prefixes.get(request.speak, request.model, message.static_key)
        if prefix is None:
            prefix = talker.prefix(prefill[:, :static])
            self._prefixes.put(request.speak, request.model, message.static_key, prefix)
        return talker.resume(prefix, prefill[:, static:], sampling, seed)

    async def _advance(self, request: _Request, run: _Run, outbox: Outbox, *, granted: bool = False) -> None:
        name, playout = request.speak.request, request.playout
        if run.parked is None or name in self._ready:
            return
        if request.credit < 1:
            # The credit that the first audio earns is a hop away: what it starts should find the device free.
            if playout.heard:
                self._party.still(name)
            return
        if not run.final and run.frame >= run.trailing.shape[1]:
            self._party.still(name)
            await self._wait_for_text(request, run, outbox)
            return
        if not granted and not self._party.ready(name, playout, request.done + run.frame + 1):
            return
        self._ready[name] = request

    async def caught_up(self, outbox: Outbox) -> None:
        """The frames that may be begun, those of one model together."""
        if not self._ready:
            return
        async with self._party:
            ready = [request for name, request in self._ready.items() if name in self.requests]
            self._ready.clear()
            for batch in batches(ready, _kind, self._rows):
                names = [request.speak.request for request in batch]
                for request, queued in await self._together(batch, names, _step, outbox):
                    if (name := request.speak.request) in self.requests:
                        await self._attempt(name, self._stepped(request, *queued, outbox), outbox)

    async def _stepped(self, request: _Request, code0: mx.array, hidden: mx.array, outbox: Outbox) -> None:
        """A frame is queued behind the newest, which can be read now."""
        run = _run(request)
        if not run.going_on and (ending := self._ending(request, run)) is not None:
            await self._end_part(request, run, ending, outbox)
            return
        run.frame, run.code0, run.going_on = run.frame + 1, code0, False
        request.credit -= 1
        frame = request.done + run.frame
        await outbox.send(Hidden(request=request.speak.request, frame=frame, hidden=hidden, code0=code0))

    async def _end_part(self, request: _Request, run: _Run, ending: Ending, outbox: Outbox) -> None:
        """Go on with the next part of the text, or end."""
        most = request.speak.max_frames
        if ending.reason != "stop" or not request.parts_left:
            await self.finish(ending, outbox)
        elif most is not None and ending.frames >= most:
            await self.finish(msgspec.structs.replace(ending, reason="length"), outbox)
        else:
            request.done, request.text_tokens = ending.frames, ending.text_tokens
            request.credit += 1  # the frame that was the end is never handed out
            request.run = None
            request.playout.seam(ending.frames)
            await outbox.send(Seam(request=ending.request, frames=ending.frames, pause=run.pause))
            if request.waiting:
                await self._begin(request, request.waiting.popleft(), outbox)

    async def _wait_for_text(self, request: _Request, run: _Run, outbox: Outbox) -> None:
        if run.going_on:
            return
        if (ending := self._ending(request, run)) is not None:
            await self.finish(ending, outbox)
        else:
            run.going_on = True
            frames = request.done + run.frame + 1
            await outbox.send(Hold(request=request.speak.request, frames=frames))

    def _limit(self, request: _Request, text_tokens: int) -> int:
        budget = int(self._settings.frames_floor + self._settings.frames_per_token * text_tokens)
        most = request.speak.max_frames
        return min(budget if most is None else most - request.done, request.model.max_frames, budget)

    def _ending(self, request: _Request, run: _Run) -> Ending | None:
        """How the request ends with the newest frame, None if it does not."""
        code0 = cast(int, run.code0.item())
        if code0 == request.model.config.talker_config.codec_eos_token_id:
            reason, frames = "stop", run.frame
        else:
            request.recent.append(code0)
            stuck = len(request.recent) == request.recent.maxlen and len(set(request.recent)) == 1
            if not stuck and run.frame + 1 < run.limit:
                return None
            reason, frames = "length", run.frame + 1
        return Ending(
            request=request.speak.request,
            reason=reason,
            frames=request.done + frames,
            text_tokens=request.text_tokens + run.text_tokens,
            stages={} if request.prompted is None else {"prompt": request.prompted},
        )


def _kind(request: _Request) -> tuple[int, bool]:
    """Equal for those that one step can serve."""
    return id(request.model), request.sampling.nucleus


def _run(request: _Request) -> _Run:
    assert request.run is not None
    return request.run


def _text(run: _Run) -> mx.array:
    """The next frame's row of text, [1, 1, H]: padding behind the last."""
    row = run.trailing[:, run.frame : run.frame + 1]
    return row if row.shape[1] else run.pad


def _step(batch: list[_Request]) -> list[tuple[mx.array, mx.array]]:
    """Queue the next frame of each: code 0 [1, 1] and hidden state [1, 1, H]."""
    runs = [_run(request) for request in batch]
    made = batch[0].model.talker.steps(
        [run.state for run in runs],
        [cast(mx.array, run.parked) for run in runs],
        [_text(run) for run in runs],
    )
    for run, (state, _, _) in zip(runs, made, strict=True):
        run.state, run.parked = state, None
    queued = [(code0, hidden) for _, code0, hidden in made]
    del made  # else the caches could not be written in place
    mx.async_eval(queued)
    return queued


def _sampling(model: Qwen3TTS, speak: Speak) -> Sampling:
    """The model's own settings, with what the request gives."""
    given = {
        name: value
        for name in ("temperature", "top_k", "top_p", "repetition_penalty")
        if (value := getattr(speak, name)) is not None
    }
    return msgspec.structs.replace(model.sampling, **given)
