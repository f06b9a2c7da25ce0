"""Keeps a stage process alive: start, watch, restart with back-off, give up, stop."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import zmq
import zmq.asyncio
from anyio.abc import Process

from . import wire
from .child import Task
from .control import Beat, Failed, FromProcess, Loading, Ready, Relink, Stop
from .layout import Layout, Supervision

log = logging.getLogger(__name__)


class Supervisor:
    """One stage process, through all its incarnations."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        folder: Path,
        context: zmq.Context[Any],
        *,
        module: str = "vivavoce.stages.host",
        notify: Callable[[Loading], None],
        died: Callable[["Supervisor", str], None],
    ) -> None:
        """`died` is called when an incarnation has ended unasked, before the next one is started."""
        self.name = name
        self.state = "loading"
        """`loading`, `ready`, `restarting`, `failed` (given up) or `stopped`."""
        self.epoch = 0
        self.restarts = 0
        self.why = ""
        """Why the last incarnation ended."""
        self.ready = anyio.Event()
        """Set when the first incarnation serves, or never will."""
        self.said = Ready(backend="", models=())
        self.beat = Beat(0, 0.0, 0.0, 0, {})
        self.pid = 0
        self._layout = layout
        self._settings: Supervision = layout.supervision
        self._folder = folder
        self._context = context
        self._module = module
        self._notify = notify
        self._died = died
        self._control: zmq.asyncio.Socket | None = None
        self._stopping = False
        self.over = anyio.Event()
        """Set when the last incarnation has ended."""

    async def run(self, epochs: Mapping[str, int]) -> None:
        """Start the process, and start it again whenever it ends, until stopped or given up."""
        try:
            await self._lives(epochs)
        finally:
            self.over.set()
            self.ready.set()

    async def _lives(self, epochs: Mapping[str, int]) -> None:
        in_a_row = 0
        while not self._stopping:
            began = time.monotonic()
            self.why = await self._incarnation(epochs)
            if self._stopping:
                break
            log.error("process %s (pid %d) ended: %s", self.name, self.pid, self.why)
            stable = time.monotonic() - began > self._settings.stable_s and self.state == "ready"
            in_a_row = 1 if stable else in_a_row + 1
            hopeless = self.state == "hopeless" or in_a_row > self._settings.max_restarts
            self.epoch += 1
            self.state = "failed" if hopeless else "restarting"
            self._died(self, self.why)
            if hopeless:
                log.error("process %s is given up after %d attempts", self.name, in_a_row)
                return
            await anyio.sleep(
                min(self._settings.backoff_s * 2 ** (in_a_row - 1), self._settings.backoff_max_s)
            )
            self.restarts += 1
        self.state = "stopped"

    async def _incarnation(self, epochs: Mapping[str, int]) -> str:
        """One life of the process. Returns why it ended."""
        path = self._folder / f"{self.name}-{self.epoch}.control"
        self._control = wire.socket(self._context, f"ipc://{path}", bind=True)
        task = Task(
            layout=self._layout,
            process=self.name,
            folder=str(self._folder),
            epochs=dict(epochs) | {self.name: self.epoch},
            control=f"ipc://{path}",
            module=self._module,
            beat_s=self._settings.beat_s,
        )
        process = await anyio.open_process(
            [sys.executable, "-P", "-m", "vivavoce.bus.child"],
            stdin=subprocess.PIPE,
            stdout=None,
            stderr=None,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self.pid = process.pid
        self._why = ""
        try:
            assert process.stdin is not None
            await process.stdin.send(msgspec.json.encode(task) + b"\n")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, self._control, process)
                await process.wait()
                tasks.cancel_scope.cancel()
            return self._why or f"it exited with {_describe(process.returncode or 0)}"
        finally:
            with anyio.CancelScope(shield=True):
                await self._reap(process)
            self._control.close()
            self._control = None
            path.unlink(missing_ok=True)

    async def _watch(self, control: zmq.asyncio.Socket, process: Process) -> None:
        """Take what the process says; kill it when it says nothing, or its device stands still."""
        heard = anyio.Event()

        async def listen() -> None:
            nonlocal heard
            decode = wire.Decoder(FromProcess)
            while True:
                self._take(decode((await control.recv_multipart())[0]))
                heard.set()
                heard = anyio.Event()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            limit = self._settings.start_timeout_s
            while True:
                with anyio.move_on_after(limit) as silence:
                    await heard.wait()
                if silence.cancelled_caught:
                    await self._kill(process, f"it gave no sign of life for {limit:g} s")
                if self.beat.busy_s > self._settings.wedged_s:
                    await self._kill(process, f"its device has stood still for {self.beat.busy_s:.0f} s")
                if self.state == "ready":
                    limit = self._settings.silence_s

    def _take(self, message: Loading | Ready | Failed | Beat) -> None:
        match message:
            case Loading():
                self._notify(message)
            case Ready():
                self.said, self.state = message, "ready"
                self.ready.set()
            case Failed():
                self._why, self.state = message.why, "hopeless"
            case Beat():
                self.beat = message

    async def _kill(self, process: Process, why: str) -> None:
        """Have the process say where it stands, on standard error, then end it."""
        self._why = why
        log.error("process %s (pid %d): %s; its stacks follow", self.name, process.pid, why)
        process.send_signal(signal.SIGUSR1)
        await anyio.sleep(self._settings.stacks_s)
        process.kill()
        await anyio.sleep_forever()

    def tell(self, command: Relink) -> None:
        if self._control is not None:
            self._control.send(wire.encode(command))

    def stop(self) -> None:
        """Ask the process to end, for good; `over` tells when it has."""
        self._stopping = True
        if self._control is not None:
            self._control.send(wire.encode(Stop()))

    async def _reap(self, process: Process) -> None:
        if process.returncode is None:
            process.terminate()
            with anyio.move_on_after(self._settings.grace_s):
                await process.wait()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
