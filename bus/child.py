"""A stage process: `python -m vivavoce.bus.child`, started and watched by the supervisor.

Its standard input carries one line (what to be) and then nothing: its end means that the parent is gone. It exits
with 0 when it is told to, 1 when it fails, 3 when its parent is gone, and 4 when it cannot start and has said why.
"""

import faulthandler
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import zmq
import zmq.asyncio

from . import logs, wire
from .body import Body
from .control import Beat, Failed, Relink, Stop, ToProcess
from .errors import VivavoceError, innermost
from .keys import Keys, gate
from .layout import Layout
from .loop import Station
from .run_folder import tidy

log = logging.getLogger(__name__)

TIDY_S = 1.0
"""How long the folder of a server that died is tried to be removed."""
PARENT_GONE = 3
SAID_WHY = 4
"""Exit codes."""


class Task(msgspec.Struct, frozen=True):
    """What a stage process is told to be."""

    layout: Layout
    process: str
    folder: str | None
    """Private folder for Unix sockets; None on another machine, which makes its own."""
    epochs: dict[str, int]
    control: str
    """Address of the supervisor's socket."""
    module: str
    beat_s: float
    keys: Keys | None = None
    taps: str | None = None
    log_json: bool = False


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # A service manager tells every process at once to end; only the parent knows what has to be finished first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(PARENT_GONE)
    task = msgspec.json.decode(line, type=Task)
    if task.log_json:
        logs.setup(lambda: {"process": task.process})
    folder = Path(task.folder or tempfile.mkdtemp(prefix="vivavoce-"))
    threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    try:
        sys.exit(anyio.run(_live, task, folder))
    finally:
        if task.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent(folder: Path) -> None:
    """Exit at once when the parent is gone: nobody is left to answer to, nor to tidy up."""
    while os.read(0, 1):
        pass
    # A dying process closes one descriptor after the other: its lock on the folder may outlive the pipe a little.
    gone_by = time.monotonic() + TIDY_S
    while folder.exists() and time.monotonic() < gone_by:
        tidy(folder)
        time.sleep(0.01)
    os._exit(PARENT_GONE)


async def _live(task: Task, folder: Path) -> int:
    context: zmq.Context[Any] = zmq.Context()
    control = wire.control_socket(context, task.control, bind=False, keys=task.keys)
    try:
        await _serve(task, folder, context, control)
        return 0
    except (VivavoceError, ExceptionGroup) as error:
        cause = innermost(error)
        if not isinstance(cause, VivavoceError):
            raise
        await control.send(wire.encode(Failed(str(cause))))
        return SAID_WHY
    finally:
        control.close(linger=1000)  # the last words
        context.term()


async def _serve(task: Task, folder: Path, context: zmq.Context[Any], control: zmq.asyncio.Socket) -> None:
    def tell(notice: msgspec.Struct) -> None:
        control.send(wire.encode(notice))  # the connecting side can always queue

    station = Station(task.layout, task.process, "loop", context, folder, task.epochs, task.keys, task.taps)
    body = Body(station, module=task.module, notify=tell)
    async with (
        gate(context, task.keys),
        body,
        anyio.create_task_group() as tasks,
    ):
        tell(_state(body))
        tell(body.ready)
        log.info("ready, with %s", ", ".join(body.active()), extra={"pid": os.getpid()})
        tasks.start_soon(_beat, control, body, task.beat_s)
        tasks.start_soon(_obey, control, body, tasks.cancel_scope)
        await body.wait()
        tasks.cancel_scope.cancel()


async def _beat(control: zmq.asyncio.Socket, body: Body, every_s: float) -> None:
    while True:
        await anyio.sleep(every_s)
        await control.send(wire.encode(_state(body)))


def _state(body: Body) -> Beat:
    return Beat(
        device_steps=body.progress.steps,
        last_progress_s=body.progress.age_s,
        busy_s=body.progress.busy_s,
        rss_bytes=psutil.Process().memory_info().rss,
        active=body.active(),
        deaths=body.deaths,
        tapped=body.tapped,
        waiting_s=body.progress.waiting_s(),
    )


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


if __name__ == "__main__":
    main()
