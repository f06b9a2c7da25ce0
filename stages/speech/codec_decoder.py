"""Stage `codec_decoder`: codes become PCM, chunk by chunk, each exactly once.

Frame 0 is read back at once. A later chunk is queued on the device when its last frame arrives and read when
the next frame is queued behind it, which is also the proof that the talker did not end before that last frame.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ...bus.channel import Outbox
from ...bus.layout import Speech
from ...bus.messages import Codes, Ending, Hold, Message, Pcm, Seam, Speak
from ...bus.turns import SpeechParty
from ...configs.voice_files import VoiceFiles
from ..actor import Actor
from ..arrays import array
from .chunks import sizes, split
from .kept import Kept
from .qwen3.codec_decoder import CodecState, to_int16
from .qwen3.model import Qwen3TTS

FRAME_SAMPLES, RATE = 1920, 24_000
SILENCE = 100  # of 32,767, about -50 dBFS


@dataclass
class _Request:
    model: Qwen3TTS
    sizes: Iterator[int]
    size: int
    """Frames of the chunk being gathered."""
    state: CodecState
    gathered: list[mx.array] = field(default_factory=list[mx.array])
    queued: tuple[list[mx.array], CodecState, mx.array] | None = None
    """A chunk on the device: its codes, the state before it, and its PCM."""
    frames: int = 0
    """Frames handed out."""
    quiet: int = 0
    """Samples of silence at the end of what was handed out."""


class CodecDecoderStage(Actor[_Request]):
    name = "codec_decoder"

    def __init__(
        self,
        models: Mapping[str, Qwen3TTS],
        settings: Speech,
        progress: AbstractContextManager[None],
        party: SpeechParty | None = None,
        files: VoiceFiles | None = None,
    ) -> None:
        super().__init__(progress, party)
        self._models = models
        self._settings = settings
        self._silence_limit = round(settings.silence_limit_s * RATE)
        self._primed: Kept[CodecState] = Kept(
            "codec",
            settings.voice_cache_bytes // 8,
            files,
            parts=lambda state: [state.tails, state.cache, [state.position]],
            whole=lambda groups: CodecState(groups[0], groups[1], groups[2][0]),
        )
        self._primed.load(models)

    def open(self, speak: Speak) -> _Request:
        model = self._models[speak.model]
        chunks = sizes(self._settings, speak)
        return _Request(model, chunks, next(chunks), self._first_state(model, speak))

    def _first_state(self, model: Qwen3TTS, speak: Speak) -> CodecState:
        """The state that a clone's reference leaves; nothing before the audio of other voices."""
        if speak.primer is None:
            return model.codec.start()
        state = self._primed.get(speak, model, speak.voice_key)
        if state is None:
            state = model.codec.after(array(speak.primer))
            self._primed.put(speak, model, speak.voice_key, state)
        return state

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        match message:
            case Hold():
                if state.queued is not None:
                    ready, state.queued = state.queued, None
                    await self._hand_out(state, message.request, ready[2], outbox)
            case Seam():
                await self._hand_out_until(state, message.request, message.frames, outbox)
                if (missing := round(message.pause * RATE) - state.quiet) > 0:
                    await self._send(state, message.request, bytes(2 * missing), 0, outbox)
            case Codes():
                await self._gather(state, message, outbox)
            case _:
                raise TypeError(f"codec_decoder takes no {type(message).__name__}")

    async def _gather(self, state: _Request, message: Codes, outbox: Outbox) -> None:
        state.gathered.append(array(message.codes))
        ready, state.queued = state.queued, None
        if len(state.gathered) == state.size:
            state.queued = self._decode(state, state.gathered)
            state.gathered, state.size = [], next(state.sizes)
        if ready is not None:
            await self._hand_out(state, message.request, ready[2], outbox)
        if message.frame == 0 and state.queued is not None:
            # min_new_tokens is 2, so the first frame is never the end.
            first, state.queued = state.queued, None
            await self._hand_out(state, message.request, first[2], outbox)
        if state.quiet >= self._silence_limit:
            # What is queued and gathered lies beyond these frames, and is dropped.
            await self.finish(Ending(request=message.request, reason="length", frames=state.frames), outbox)

    async def end(self, state: _Request, ending: Ending, outbox: Outbox) -> None:
        if ending.reason in ("stop", "length"):
            await self._hand_out_until(state, ending.request, ending.frames, outbox)

    async def _hand_out_until(self, state: _Request, request: str, frames: int, outbox: Outbox) -> None:
        """What is left of the first `frames` frames. The rest is dropped; the state is as if it had not come."""
        if state.queued is not None:
            codes, before, pcm = state.queued
            if state.frames + len(codes) <= frames:
                await self._hand_out(state, request, pcm, outbox)
            else:
                state.gathered, state.state = codes + state.gathered, before
        rest = state.gathered[: frames - state.frames]
        state.gathered, state.queued = [], None
        for size in split(len(rest), self._settings.max_chunk_frames):
            chunk, rest = rest[:size], rest[size:]
            await self._hand_out(state, request, self._decode(state, chunk)[2], outbox)

    def _decode(self, state: _Request, codes: list[mx.array]) -> tuple[list[mx.array], CodecState, mx.array]:
        before = state.state
        frames = mx.concatenate([c[:, None] for c in codes], axis=1) if len(codes) > 1 else codes[0][:, None]
        pcm, state.state = state.model.codec.step(frames, before)
        pcm = to_int16(pcm)
        mx.async_eval(pcm)
        return codes, before, pcm

    async def _hand_out(self, state: _Request, request: str, pcm: mx.array, outbox: Outbox) -> None:
        samples = np.array(pcm).reshape(-1)
        frames = len(samples) // FRAME_SAMPLES
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) >= SILENCE)
        state.quiet = len(samples) - 1 - int(loud[-1]) if len(loud) else state.quiet + len(samples)
        await self._send(state, request, samples.astype("<i2").tobytes(), frames, outbox)
        state.frames += frames

    async def _send(self, state: _Request, request: str, samples: bytes, frames: int, outbox: Outbox) -> None:
        await outbox.send(Pcm(request=request, frame=state.frames, frames=frames, samples=samples))
