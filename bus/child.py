"""A stage process: `python -m vivavoce.bus.child`, started and watched by the supervisor.

Its standard input carries one line (what to be) and then nothing: its end means that the parent is gone.
"""

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import zmq
import zmq.asyncio

from . import wire
from .body import Body
from .control import Beat, Failed, Relink, Stop, ToProcess
from .errors import VivavoceError
from .layout import Layout


class Task(msgspec.Struct, frozen=True):
    """What a stage process is told to be."""

    layout: Layout
    process: str
    folder: str
    epochs: dict[str, int]
    control: str
    """Address of the supervisor's socket."""
    module: str
    beat_s: float


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(anyio.run(_live, task))


def _end_with_parent() -> None:
    """Exit at once when the parent is gone: nobody is left to answer to."""
    while os.read(0, 1):
        pass
    os._exit(3)


async def _live(task: Task) -> int:
    context: zmq.Context[Any] = zmq.Context()
    control = wire.socket(context, task.control, bind=False)
    try:
        await _serve(task, context, control)
        return 0
    except (VivavoceError, ExceptionGroup) as error:
        cause = _innermost(error)
        if not isinstance(cause, VivavoceError):
            raise
        await control.send(wire.encode(Failed(str(cause))))
        return 1
    finally:
        control.close(linger=1000)  # the last words
        context.term()


async def _serve(task: Task, context: zmq.Context[Any], control: zmq.asyncio.Socket) -> None:
    def tell(notice: msgspec.Struct) -> None:
        control.send(wire.encode(notice))  # the connecting side can always queue

    body = Body(
        task.layout, task.process, Path(task.folder), task.epochs, context, module=task.module, notify=tell
    )
    async with body, anyio.create_task_group() as tasks:
        tell(body.ready)
        tasks.start_soon(_beat, control, body, task.beat_s)
        tasks.start_soon(_obey, control, body, tasks.cancel_scope)
        await body.wait()


async def _beat(control: zmq.asyncio.Socket, body: Body, every_s: float) -> None:
    process = psutil.Process()
    while True:
        beat = Beat(
            device_steps=body.progress.steps,
            last_progress_s=body.progress.age_s,
            busy_s=body.progress.busy_s,
            rss_bytes=process.memory_info().rss,
            active=body.active(),
        )
        await control.send(wire.encode(beat))
        await anyio.sleep(every_s)


async def _obey(control: zmq.asyncio.Socket, body: Body, scope: anyio.CancelScope) -> None:
    decode = wire.Decoder(ToProcess)
    while True:
        match decode((await control.recv_multipart())[0]):
            case Relink() as command:
                body.relink(command)
            case Stop():
                scope.cancel()
            case other:
                raise TypeError(f"a stage process takes no {type(other).__name__}")


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
