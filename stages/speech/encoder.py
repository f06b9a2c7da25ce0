"""Stage `encoder`: PCM becomes one continuous container, written as the audio is made.

Runs on the process's event loop, away from the device.
"""

from dataclasses import dataclass

from ...bus.channel import Outbox
from ...bus.messages import Audio, Ending, Message, Pcm, Speak
from ..actor import Actor
from .containers import Container, container


@dataclass
class _Request:
    container: Container
    samples: int = 0


class EncoderStage(Actor[_Request]):
    def open(self, speak: Speak) -> _Request:
        return _Request(container(speak.format, streamed=speak.container_streamed))

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        assert isinstance(message, Pcm)
        samples = len(message.samples) // 2
        state.samples += samples
        data = state.container.feed(message.samples)
        # Sent even when the container still holds everything back: it returns the frames' credit.
        await outbox.send(Audio(request=message.request, data=data, frames=message.frames, samples=samples))

    async def end(self, state: _Request, ending: Ending, outbox: Outbox) -> None:
        if ending.reason in ("stop", "length") and (tail := state.container.finish()):
            await outbox.send(Audio(request=ending.request, data=tail, frames=0, samples=0))
        await outbox.send(ending)
