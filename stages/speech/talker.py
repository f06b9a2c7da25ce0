"""Stage `talker`: one frame of code group 0 and hidden state a turn, and the decision when a request ends.

Frame n+1 is queued on the device before code 0 of frame n is read here, so the device never waits for Python.
When that code turns out to be the end, the one frame queued too many is dropped.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import cast

import anyio
import anyio.lowlevel
import mlx.core as mx
import msgspec

from ...bus.channel import Inbox, Outbox
from ...bus.layout import Speech
from ...bus.messages import Credit, Ending, Feedback, Hidden, Hold, Message, Prompt, Rows, Seam, Speak
from ...bus.turns import SpeechParty
from ...configs.voice_files import VoiceFiles
from ..actor import Actor
from ..arrays import array
from .batches import batches
from .kept import Kept
from .qwen3.model import Qwen3TTS
from .qwen3.talker import PREFIX_ROWS, Prefix, TalkerState
from .utterance import Costs, Run, Utterance, step


class TalkerStage(Actor[Utterance]):
    name = "talker"

    def __init__(
        self,
        models: Mapping[str, Qwen3TTS],
        settings: Speech,
        progress: AbstractContextManager[None],
        party: SpeechParty | None = None,
        files: VoiceFiles | None = None,
        rows: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param rows: requests computed together, at most."""
        super().__init__(progress, party)
        self._clock = clock
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
        self._ready: dict[str, Utterance] = {}
        """Those whose next frame may be begun."""
        self._prompted: dict[str, float] = {}
        """Those whose next part can be begun, and since when."""
        self._begun = -math.inf
        """When a part was begun last."""
        self._costs = Costs()
        self._stepped_at: tuple[float, int] | None = None
        """When frames were begun last, in how many steps, if none has come back and no part was begun since."""

    def open(self, speak: Speak) -> Utterance:
        return Utterance.of(speak, self._models[speak.model], self._settings)

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

    async def handle(self, state: Utterance, message: Message, outbox: Outbox) -> None:
        run = state.run
        if isinstance(message, Prompt | Rows):
            state.prompted = message.spent
        match message:
            case Prompt():
                if run is not None:
                    state.waiting.append(message)
                elif self._prompted or self._ready or self._held(self._clock()):
                    state.waiting.append(message)
                    self._prompted.setdefault(message.request, self._clock())
                else:
                    await self._begin(state, message, outbox)
                return
            case Feedback():
                assert run is not None
                run.parked = array(message.embedding)
                self._measure(run)
            case Rows():
                if run is None:
                    state.rows.append(message)
                else:
                    run.add(message)
            case Credit():
                state.credit += message.frames
                state.playout.taken(self._clock(), message.played_s)
            case _:
                raise TypeError(f"talker takes no {type(message).__name__}")
        if run is not None:
            await self._advance(state, run, outbox)

    async def _begin_next(self, outbox: Outbox) -> None:
        """The part that has waited longest, unless it has to wait on."""
        await anyio.lowlevel.checkpoint()  # the first frame before it has its codes: the decoder goes ahead
        while self._prompted:
            name = next(iter(self._prompted))
            if name in self.requests and self._held(self._prompted[name]):
                return
            del self._prompted[name]
            if (request := self.requests.get(name)) is not None:
                async with self._party:
                    await self._attempt(name, self._begin(request, request.waiting.popleft(), outbox), outbox)

    def _held(self, since: float) -> bool:
        """Whether a part that could be begun since then waits for frames on their way.

        For the first frame of another part, which goes straight through, and for those of who is running dry. Each
        comes back here as `Feedback`.
        """
        if self._first_coming():
            return True
        now = self._clock()
        waited_s = now - max(since, self._begun)
        coming = [one for one in self.requests.values() if one.stepping]
        return any(self._costs.holds(one.spare_s(now, self._costs.step_s), waited_s) for one in coming)

    def _first_coming(self) -> bool:
        return any(one.stepping and one.running.frame == 0 for one in self.requests.values())

    def _measure(self, run: Run) -> None:
        """A frame has come back."""
        now = self._clock()
        if run.frame == 0:
            self._costs.prompted(now - self._begun)
        elif self._stepped_at is not None:
            (begun, steps), self._stepped_at = self._stepped_at, None
            self._costs.stepped((now - begun) / steps)

    async def _begin(self, request: Utterance, message: Prompt, outbox: Outbox) -> None:
        """Frame 0 of a prompt, which is the first or that of the next part of a long text."""
        self._begun, self._stepped_at = self._clock(), None
        self._party.move(request.speak.request, heard=request.playout.heard)
        state, code0, hidden = self._start(request, message, request.next_seed(message.parts))
        request.run = Run(
            state,
            code0,
            array(message.trailing),
            array(message.pad),
            message.text_tokens,
            message.final,
            message.pause,
        )
        while request.rows:
            request.run.add(request.rows.popleft())
        request.credit -= 1
        name, frame = request.speak.request, request.done
        await outbox.send(Hidden(request=name, frame=frame, hidden=hidden, code0=code0))

    def _start(
        self, request: Utterance, message: Prompt, seed: int
    ) -> tuple[TalkerState, mx.array, mx.array]:
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

    async def _advance(self, request: Utterance, run: Run, outbox: Outbox, *, granted: bool = False) -> None:
        name, playout = request.speak.request, request.playout
        if run.parked is None or name in self._ready:
            return
        if request.credit < 1:
            # The credit that the first audio earns is a hop away: what it starts should find the device free.
            if playout.heard:
                self._party.still(name)
            return
        if run.starved:
            self._party.still(name)
            await self._wait_for_text(request, run, outbox)
            return
        if not granted and not self._party.ready(name, playout, request.done + run.frame + 1):
            return
        self._ready[name] = request

    async def caught_up(self, outbox: Outbox) -> None:
        """The frames that may be begun; then a prompt."""
        if self._ready:
            await self._step(outbox)
        if self._prompted:
            await self._begin_next(outbox)
            if self._ready and not self._prompted:
                await self._step(outbox)

    async def _step(self, outbox: Outbox) -> None:
        async with self._party:
            ready = [request for name, request in self._ready.items() if name in self.requests]
            self._ready.clear()
            now = self._clock()
            steps = self._steps(ready, now)
            if steps:
                self._stepped_at = now, len(steps)
            for batch in steps:
                names = [request.speak.request for request in batch]
                for request, queued in await self._together(batch, names, step, outbox):
                    if (name := request.speak.request) in self.requests:
                        await self._attempt(name, self._stepped(request, *queued, outbox), outbox)

    def _steps(self, ready: list[Utterance], now: float) -> list[list[Utterance]]:
        """Those of one model together. While a first frame is waited for: one step, if somebody is running dry."""
        if not (self._first_coming() or any(name in self.requests for name in self._prompted)):
            return list(batches(ready, lambda request: request.kind, self._most))
        spare = {request: request.spare_s(now, self._costs.step_s) for request in ready}
        order = sorted(ready, key=lambda request: spare[request])
        first: list[Utterance] = []
        if order and self._costs.urgent(spare[order[0]]):
            groups = batches(order, lambda request: request.kind, self._most)
            first = next(batch for batch in groups if order[0] in batch)
        for request in order:
            if request not in first:
                name = request.speak.request
                self._ready[name] = request
                self._party.move(name, heard=True)  # what it waits here is no cost of a frame
        return [first] if first else []

    def _most(self, request: Utterance) -> int:
        return min(self._rows, request.model.talker.widest)

    async def _stepped(self, request: Utterance, code0: mx.array, hidden: mx.array, outbox: Outbox) -> None:
        """A frame is queued behind the newest, which can be read now."""
        run = request.running
        if not run.going_on and (ending := request.ending()) is not None:
            await self._end_part(request, run, ending, outbox)
            return
        run.frame, run.code0, run.going_on = run.frame + 1, code0, False
        request.credit -= 1
        frame = request.done + run.frame
        await outbox.send(Hidden(request=request.speak.request, frame=frame, hidden=hidden, code0=code0))

    async def _end_part(self, request: Utterance, run: Run, ending: Ending, outbox: Outbox) -> None:
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

    async def _wait_for_text(self, request: Utterance, run: Run, outbox: Outbox) -> None:
        if run.going_on:
            return
        if (ending := request.ending()) is not None:
            await self.finish(ending, outbox)
        else:
            run.going_on = True
            frames = request.done + run.frame + 1
            await outbox.send(Hold(request=request.speak.request, frames=frames))
