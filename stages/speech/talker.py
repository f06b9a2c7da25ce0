"""Stage `talker`: one frame of code group 0 and hidden state a turn, and the decision when a request ends.

Frame n+1 is queued on the device before code 0 of frame n is read here, so the device never waits for Python. When
that code turns out to be the end, the one frame queued too many is dropped.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import mlx.core as mx

from ...bus.channel import Outbox
from ...bus.layout import Speech
from ...bus.messages import Credit, Ending, Feedback, Hidden, Message, Prompt, Speak
from ..actor import Actor
from ..device import array
from .qwen3.model import Qwen3TTS
from .qwen3.talker import TalkerState


@dataclass
class _Request:
    speak: Speak
    model: Qwen3TTS
    credit: int
    """Frames that may still be started."""
    recent: deque[int]
    """Code 0 of the last frames, for the repetition watchdog."""
    state: TalkerState | None = None
    trailing: mx.array = field(default_factory=lambda: mx.zeros((1, 0, 0)))
    pad: mx.array = field(default_factory=lambda: mx.zeros((1, 1, 0)))
    text_tokens: int = 0
    limit: int = 0
    """Most frames that the request may have."""
    frame: int = 0
    """Number of the newest frame queued."""
    code0: mx.array = field(default_factory=lambda: mx.zeros((1, 1)))
    parked: mx.array | None = None
    """The next frame's input, while there is no credit to start it."""


class TalkerStage(Actor[_Request]):
    def __init__(
        self, models: Mapping[str, Qwen3TTS], settings: Speech, progress: AbstractContextManager[None]
    ) -> None:
        super().__init__(progress)
        self._models = models
        self._settings = settings

    def open(self, speak: Speak) -> _Request:
        recent: deque[int] = deque(maxlen=self._settings.repeat_limit_frames)
        return _Request(speak, self._models[speak.model], speak.lookahead, recent)

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        match message:
            case Prompt():
                await self._begin(state, message, outbox)
            case Feedback():
                state.parked = array(message.embedding)
                await self._advance(state, outbox)
            case Credit():
                state.credit += message.frames
                await self._advance(state, outbox)
            case _:
                raise TypeError(f"talker takes no {type(message).__name__}")

    async def _begin(self, state: _Request, prompt: Prompt, outbox: Outbox) -> None:
        speak, model = state.speak, state.model
        state.trailing, state.pad = array(prompt.trailing), array(prompt.pad)
        state.text_tokens = prompt.text_tokens
        budget = self._settings.frames_floor + self._settings.frames_per_token * prompt.text_tokens
        state.limit = min(speak.max_frames or model.max_frames, model.max_frames, int(budget))
        sampling = model.sampling.override(
            temperature=speak.temperature,
            top_k=speak.top_k,
            top_p=speak.top_p,
            repetition_penalty=speak.repetition_penalty,
        )
        state.state, state.code0, hidden = model.talker.start(
            array(prompt.prefill), sampling, speak.seed
        )
        state.credit -= 1
        await outbox.send(Hidden(request=speak.request, frame=0, hidden=hidden, code0=state.code0))

    async def _advance(self, state: _Request, outbox: Outbox) -> None:
        if state.parked is None or state.state is None or state.credit < 1:
            return
        frame = state.frame
        text = state.trailing[:, frame : frame + 1] if frame < state.trailing.shape[1] else state.pad
        embedding, state.parked = state.parked, None
        state.state, code0, hidden = state.model.talker.step(state.state, embedding, text)
        mx.async_eval(code0, hidden)
        reason = self._ending(state, state.code0.item())
        if reason is not None:
            await self.finish(reason, outbox)
            return
        state.frame, state.code0 = frame + 1, code0
        state.credit -= 1
        await outbox.send(Hidden(request=state.speak.request, frame=frame + 1, hidden=hidden, code0=code0))

    def _ending(self, state: _Request, code0: object) -> Ending | None:
        """Whether the request ends with the newest frame, whose code 0 is given."""
        assert isinstance(code0, int)
        request, frames = state.speak.request, state.frame
        if code0 == state.model.eos:
            return Ending(request=request, reason="stop", frames=frames, text_tokens=state.text_tokens)
        state.recent.append(code0)
        stuck = len(state.recent) == state.recent.maxlen and len(set(state.recent)) == 1
        if stuck or frames + 1 >= state.limit:
            return Ending(request=request, reason="length", frames=frames + 1, text_tokens=state.text_tokens)
        return None
