"""Stage `encoder`: PCM becomes one continuous container, written as the audio is made.

Runs on the process's event loop, away from the device.
"""

from dataclasses import dataclass

import numpy as np

from ...bus.channel import Outbox
from ...bus.messages import Audio, Ending, Message, Pcm, Speak
from ..actor import Actor
from .containers import Container, container
from .tempo import MODEL_RATE, Tempo

SILENCE = 100  # of 32,767, about -50 dBFS


@dataclass
class _Request:
    container: Container
    tempo: Tempo | None
    silent: bool = True
    """Whether nothing but silence has gone in so far."""


class EncoderStage(Actor[_Request]):
    name = "encoder"

    def open(self, speak: Speak) -> _Request:
        rate = speak.sample_rate or MODEL_RATE
        tempo = Tempo(speak.speed, rate) if speak.speed != 1 or rate != MODEL_RATE else None
        return _Request(container(speak.format, rate=rate, streamed=speak.container_streamed), tempo)

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        assert isinstance(message, Pcm)
        samples = state.tempo.feed(message.samples) if state.tempo else message.samples
        # Sent even when everything is still held back: it returns the frames' credit.
        await self._write(state, message.request, samples, message.frames, outbox)

    async def end(self, state: _Request, ending: Ending, outbox: Outbox) -> None:
        if ending.reason in ("stop", "length"):
            if state.tempo:
                await self._write(state, ending.request, state.tempo.finish(), 0, outbox)
            if tail := state.container.finish():
                await outbox.send(Audio(request=ending.request, data=tail, frames=0, samples=0))

    async def _write(
        self, state: _Request, request: str, samples: bytes, frames: int, outbox: Outbox
    ) -> None:
        quiet = 0
        if state.silent:
            quiet = leading_silence(samples)
            state.silent = quiet == len(samples) // 2
        data = state.container.feed(samples)
        await outbox.send(
            Audio(request=request, data=data, frames=frames, samples=len(samples) // 2, quiet=quiet)
        )


def leading_silence(samples: bytes) -> int:
    """Samples before the first that is louder than silence."""
    loud = np.flatnonzero(np.abs(np.frombuffer(samples, "<i2").astype(np.int32)) >= SILENCE)
    return int(loud[0]) if len(loud) else len(samples) // 2
