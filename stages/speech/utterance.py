"""One request at the stage `talker`: the part of the text that is spoken now, its newest frame, and how it ends."""

from collections import deque
from dataclasses import dataclass, field
from typing import Self, cast

import mlx.core as mx
import msgspec

from ...bus.layout import Speech
from ...bus.messages import Ending, Prompt, Rows, Speak, StageTime
from ...bus.schedule import Playout, cost_after
from ..arrays import array
from .chunks import sizes
from .qwen3.model import Qwen3TTS
from .qwen3.sampling import Sampling
from .qwen3.talker import TalkerState

SEED_STEP = 0x9E3779B97F4A7C15
"""Odd, so that no two parts of a text get the same seed."""

SLACK_S = 0.015
"""What a listener has to have in hand beyond what is measured, to let a prompt go ahead."""


@dataclass
class Run:
    """What a prompt sets off."""

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
    frame: int = 0
    """Number of the newest frame queued."""
    going_on: bool = False
    """Whether the newest frame has been seen not to be the end."""
    parked: mx.array | None = None
    """The next frame's input, while there is no credit or no text to start it."""

    @property
    def starved(self) -> bool:
        """Whether the next frame's row of text has not come yet."""
        return not self.final and self.frame >= self.trailing.shape[1]

    def add(self, message: Rows) -> None:
        """More of the text."""
        self.trailing = mx.concatenate([self.trailing, array(message.rows)], axis=1)
        self.text_tokens, self.final = self.text_tokens + message.text_tokens, message.final

    def text(self) -> mx.array:
        """The next frame's row of text, [1, 1, H]: padding behind the last."""
        row = self.trailing[:, self.frame : self.frame + 1]
        return row if row.shape[1] else self.pad


@dataclass(eq=False)
class Utterance:
    """A request's whole text, of which one part after the other has a run."""

    speak: Speak
    model: Qwen3TTS
    settings: Speech
    sampling: Sampling
    playout: Playout
    credit: int
    """Frames that may still be started."""
    recent: deque[int]
    """Code 0 of the last frames, for the repetition watchdog."""
    run: Run | None = None
    waiting: deque[Prompt] = field(default_factory=deque[Prompt])
    """Prompts of parts that have not been begun."""
    rows: deque[Rows] = field(default_factory=deque[Rows])
    """More of the text, come before its prompt was begun."""
    parts_left: int = 0
    """Parts that have not been begun."""
    done: int = 0
    """Frames of the parts that are spoken."""
    text_tokens: int = 0
    """Of those parts."""
    prompted: StageTime | None = None
    """What the stage `prompt` has spent."""

    @classmethod
    def of(cls, speak: Speak, model: Qwen3TTS, settings: Speech) -> Self:
        playout = Playout(sizes(settings, speak), speak.speed)
        recent: deque[int] = deque(maxlen=settings.repeat_limit_frames)
        return cls(speak, model, settings, _sampling(model, speak), playout, speak.lookahead, recent)

    @property
    def kind(self) -> tuple[int, bool]:
        """Equal for those that one step can serve."""
        return id(self.model), self.model.talker.nucleus(self.sampling)

    @property
    def running(self) -> Run:
        assert self.run is not None
        return self.run

    @property
    def stepping(self) -> bool:
        """Whether the newest frame has not come back yet."""
        return self.run is not None and self.run.parked is None

    def spare_s(self, now: float, step_s: float) -> float:
        """For how long its listener can do without the device, where a frame takes `step_s`; below 0: too late."""
        frame = self.done + self.running.frame + (not self.stepping)
        return self.playout.spare_s(frame, now, step_s)

    def next_seed(self, parts: int) -> int:
        """The seed of the part that is begun, with which `parts` are left. Each draws from a key of its own."""
        self.parts_left = self.parts_left or parts
        part = parts - self.parts_left
        self.parts_left -= 1
        return (self.speak.seed + part * SEED_STEP) % 2**64

    def ending(self) -> Ending | None:
        """How the request ends with the newest frame, None if it does not."""
        run = self.running
        code0 = cast(int, run.code0.item())
        if code0 == self.model.config.talker_config.codec_eos_token_id:
            reason, frames = "stop", run.frame
        else:
            self.recent.append(code0)
            stuck = len(self.recent) == self.recent.maxlen and len(set(self.recent)) == 1
            if not stuck and run.frame + 1 < self._limit():
                return None
            reason, frames = "length", run.frame + 1
        return Ending(
            request=self.speak.request,
            reason=reason,
            frames=self.done + frames,
            text_tokens=self.text_tokens + run.text_tokens,
            stages={} if self.prompted is None else {"prompt": self.prompted},
        )

    def _limit(self) -> int:
        """Most frames that the run may have."""
        tokens, most = self.running.text_tokens, self.speak.max_frames
        budget = int(self.settings.frames_floor + self.settings.frames_per_token * tokens)
        return min(budget if most is None else most - self.done, self.model.max_frames, budget)


@dataclass
class Costs:
    """What frames take, by those made (`cost_after`)."""

    step_s: float = 0.01
    """The next frame of some together."""
    prompt_s: float = 0.03
    """A prompt with its first frame."""

    def stepped(self, took_s: float) -> None:
        self.step_s = cost_after(self.step_s, took_s)

    def prompted(self, took_s: float) -> None:
        self.prompt_s = cost_after(self.prompt_s, took_s)

    def urgent(self, spare_s: float) -> bool:
        """Whether a listener with so much to spare cannot do without the device while a prompt is read."""
        return spare_s < self.prompt_s + SLACK_S

    def holds(self, spare_s: float, waited_s: float) -> bool:
        """Whether a listener keeps a prompt waiting that has waited so long: briefly if it is too late anyway."""
        return self.urgent(spare_s) and waited_s < self.prompt_s * (2 if spare_s >= 0 else 0.5)


def step(batch: list[Utterance]) -> list[tuple[mx.array, mx.array]]:
    """Queue the next frame of each: code 0 [1, 1] and hidden state [1, 1, H]."""
    runs = [utterance.running for utterance in batch]
    made = batch[0].model.talker.steps(
        [run.state for run in runs],
        [cast(mx.array, run.parked) for run in runs],
        [run.text() for run in runs],
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
