"""Stages that are each named for one vice, for real processes without a model.

Named to `Running` in place of `vivavoce.stages.host`. A layout's stages become links of a chain that hands numbered
frames on; what goes wrong where is said by the text of a request, or at the start by a file in `$VICES`:
`<process>.<vice>` with the number of times that it shall happen.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from vivavoce.bus.channel import Inbox, Outbox, Stage
from vivavoce.bus.control import Loading, ModelInfo, Notice, Progress, Ready
from vivavoce.bus.device_thread import Commands
from vivavoce.bus.errors import StartError
from vivavoce.bus.loop import Station, Wiring
from vivavoce.bus.messages import (
    Audio,
    Close,
    Codes,
    Credit,
    Ending,
    Feedback,
    Hidden,
    Message,
    Pcm,
    Prompt,
    Speak,
    Tensor,
)

FRAMES = 40
EMPTY = Tensor("float32", (0,), b"")


def frame_data(frame: int, text: str) -> bytes:
    return bytes((frame + len(text) + i) % 251 for i in range(16)) * 8


class Vice:
    """One stage of the chain. State lives in `requests`; each stage works as its namesake does, in small."""

    def __init__(self, name: str, progress: Progress | None = None) -> None:
        self.name = name
        self.requests: dict[str, Speak] = {}
        self.credit: dict[str, int] = {}
        self.next: dict[str, int] = {}
        self.due: set[str] = set()
        """Requests whose next frame could be begun, but for credit."""
        self.progress = progress or Progress()

    def open_requests(self) -> tuple[str, ...]:
        return tuple(self.requests)

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        async for message in inbox:
            with self.progress:
                await self.take(message, outbox)

    async def take(self, message: Message, outbox: Outbox) -> None:
        request = message.request
        if isinstance(message, Speak):
            self.requests[request] = message
            self.credit[request], self.next[request] = message.lookahead, 0
            await outbox.send(message)
            if self.name == "prompt":
                await outbox.send(
                    Prompt(request=request, prefill=EMPTY, trailing=EMPTY, pad=EMPTY, text_tokens=1)
                )
        elif request not in self.requests:
            return
        elif isinstance(message, Close | Ending):
            await self.end(message, outbox)
        else:
            await self.pass_on(message, outbox)

    async def end(self, message: Close | Ending, outbox: Outbox) -> None:
        ending = (
            message if isinstance(message, Ending) else Ending(request=message.request, reason="cancelled")
        )
        del self.requests[message.request]
        await outbox.send(ending)

    async def pass_on(self, message: Message, outbox: Outbox) -> None:
        request = message.request
        speak = self.requests[request]
        match message:
            case Credit() if self.name == "prompt":
                await outbox.send(message)
            case Prompt() | Feedback() | Credit():
                if isinstance(message, Credit):
                    self.credit[request] += message.frames
                await self.talk(speak, outbox, waiting=not isinstance(message, Credit))
            case Hidden(frame=frame):
                codes = Tensor("int32", (1, 16), frame.to_bytes(4, "little") * 16)
                await outbox.send(Codes(request=request, frame=frame, codes=codes))
                await outbox.send(Feedback(request=request, frame=frame, embedding=EMPTY))
            case Codes(frame=frame):
                misbehave(speak.text, frame)
                data = frame_data(frame, speak.text)
                for _ in range(5000 if speak.text == f"flood@{frame}" else 1):
                    await outbox.send(Pcm(request=request, frame=frame, frames=1, samples=data))
            case Pcm():
                if speak.text == f"wedge_loop@{message.frame}":
                    threading.Event().wait()
                await outbox.send(
                    Audio(request=request, data=message.samples, frames=1, samples=len(message.samples) // 2)
                )
            case _:
                raise TypeError(type(message).__name__)

    async def talk(self, speak: Speak, outbox: Outbox, *, waiting: bool) -> None:
        """Begin the next frame if the last one is through and there is credit."""
        request = speak.request
        if waiting:
            self.due.add(request)
        if request not in self.due or self.credit[request] < 1:
            return
        self.due.discard(request)
        frame = self.next[request]
        if frame == (speak.max_frames or FRAMES):
            del self.requests[request]
            await outbox.send(Ending(request=request, reason="stop", frames=frame))
            return
        self.next[request], self.credit[request] = frame + 1, self.credit[request] - 1
        await outbox.send(Hidden(request=request, frame=frame, hidden=EMPTY, code0=EMPTY))


def misbehave(text: str, frame: int) -> None:
    """`vice@frame` in a request's text, done by the codec decoder."""
    vice, _, at = text.partition("@")
    if at != str(frame):
        return
    if vice == "crash_mid_stream":
        os._exit(41)
    elif vice == "raise":
        raise RuntimeError("the device is lost")
    elif vice == "wedge_device":
        threading.Event().wait()
    elif vice == "slow":
        time.sleep(1)


def due(process: str, vice: str) -> bool:
    """Whether the process shall do this now; counts down."""
    file = Path(os.environ["VICES"]) / f"{process}.{vice}"
    left = int(file.read_text()) if file.is_file() else 0
    if left:
        file.write_text(str(left - 1))
    return left > 0


def loop_stages(names: tuple[str, ...]) -> dict[str, Stage]:
    return {name: Vice(name) for name in names if name == "encoder"}


async def device_main(
    station: Station, progress: Progress, notify: Callable[[Notice], None], commands: Commands
) -> None:
    process = station.process
    notify(Loading(f"loading {process}"))
    if due(process, "crash_on_start"):
        os._exit(42)
    if due(process, "refuse_to_start"):
        raise StartError("there is no such model")
    if due(process, "slow_start"):
        await anyio.sleep(0.7)
    if due(process, "silent_start"):
        await anyio.sleep_forever()
    stages = {name: Vice(name, progress) for name in station.stages}
    progress.active = lambda: {name: len(stage.open_requests()) for name, stage in stages.items()}
    async with Wiring(station) as wiring:
        wiring.run(stages)
        notify(Ready(backend="vices", models=(ModelInfo("m", "speech", "custom_voice", "0", "m"),)))
        async for command in commands:
            wiring.relink(command.process, command.epoch, command.failure)
    if due(process, "ignore_term"):
        threading.Event().wait()
