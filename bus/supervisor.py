"""Keeps a stage process alive: start, watch, restart with back-off, give up, stop."""

import logging
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import zmq
import zmq.asyncio
from anyio.abc import Process

from . import logs, wire
from .child import SAID_WHY, Task
from .control import Beat, Failed, FromProcess, Loading, Ready, Relink, Stop
from .errors import StartError
from .keys import Keys
from .layout import Layout, Supervision

log = logging.getLogger(__name__)

LAST_WORDS_MS = 3000
"""For what a process said right before it ended to come through, if it has said why."""
FAREWELL_S = 1.0
"""For a process to end by itself once its standard input is closed."""


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
        changed: Callable[[], None] = lambda: None,
        keys: Keys | None = None,
        taps: str | None = None,
    ) -> None:
        """
        :param died: called when an incarnation has ended unasked, before the next one is started.
        :param changed: called when the process has said something, or has ended.
        """
        self.name = name
        self.state = "loading"
        """`loading`, `ready`, `restarting`, `failed` (given up) or `stopped`."""
        self.epoch = 0
        self.restarts = 0
        self.why = ""
        """Why the last incarnation ended."""
        self.ready = anyio.Event()
        """Set when the first incarnation serves, or never will."""
        self.over = anyio.Event()
        """Set when the last incarnation has ended."""
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
        self._changed = changed
        self._keys = keys
        self._taps = taps
        self._control: zmq.asyncio.Socket | None = None
        self._stopping = anyio.Event()
        self._heard = anyio.Event()
        self._began = self._ready_at = time.monotonic()
        self._pause_s = self._load_s = 0.0

    @property
    def retry_after_s(self) -> int:
        """When it is likely to serve again, counted from its end: the pause before its start, and its loading."""
        return min(max(math.ceil(self._pause_s + self._load_s), 1), 60)

    async def run(self, epochs: Mapping[str, int]) -> None:
        """Start the process, and start it again whenever it ends, until stopped or given up."""
        try:
            await self._lives(epochs)
        finally:
            self.over.set()
            self.ready.set()

    async def _lives(self, epochs: Mapping[str, int]) -> None:
        in_a_row = 0
        while not self._stopping.is_set():
            why = await self._incarnation(epochs)
            if self._stopping.is_set():
                break
            self.why = why
            log.error("process %s (pid %d) ended: %s", self.name, self.pid, self.why)
            served = self.state == "ready"
            stable = served and time.monotonic() - self._ready_at > self._settings.stable_s
            in_a_row = 1 if stable else in_a_row + 1
            # What does not even start once is the fault of the layout or the machine, and is to be told at once.
            hopeless = not self.ready.is_set() or in_a_row > self._settings.max_restarts
            self.epoch += 1
            self.state = "failed" if hopeless else "restarting"
            self.beat = Beat(0, 0.0, 0.0, 0, {})
            doubled = self._settings.backoff_s * 2.0 ** min(in_a_row - 1, 30)
            self._pause_s = min(doubled, self._settings.backoff_max_s)
            self._died(self, self.why)
            self._changed()
            if hopeless:
                log.error("process %s is given up after %d attempts", self.name, in_a_row)
                return
            with anyio.move_on_after(self._pause_s):
                await self._stopping.wait()
            self.restarts += 1
        self.state = "stopped"

    async def _incarnation(self, epochs: Mapping[str, int]) -> str:
        """One life of the process. Returns why it ended."""
        process = self._layout.find(self.name)
        number = self._layout.process.index(process)
        path = self._folder / f"{number}-{self.epoch}"
        address = process.control or f"ipc://{path}"
        with ExitStack() as stack:
            try:
                control = wire.control_socket(self._context, address, bind=True, keys=self._keys)
            except StartError as error:
                return str(error)
            stack.callback(path.unlink, missing_ok=True)
            stack.callback(control.close)
            task = Task(
                layout=self._layout,
                process=self.name,
                folder=None if process.control else str(self._folder),
                epochs=dict(epochs) | {self.name: self.epoch},
                control=address,
                module=self._module,
                beat_s=self._settings.beat_s,
                keys=self._keys,
                taps=self._taps,
                log_json=logs.in_use(),
            )
            self._began = time.monotonic()
            command = [*(process.python or (sys.executable,)), "-P", "-m", "vivavoce.bus.child"]
            try:
                started = await anyio.open_process(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=2,  # standard output is the server's own, for audio perhaps
                    stderr=None,
                    start_new_session=True,  # Ctrl-C is the parent's to handle
                )
            except OSError as error:
                return f"{command[0]} cannot be run: {error.strerror}"
            self.pid, self._control = started.pid, control
            try:
                return await self._attend(started, control, task)
            finally:
                self._control = None
                with anyio.CancelScope(shield=True):
                    await _reap(started)

    async def _attend(self, process: Process, control: zmq.asyncio.Socket, task: Task) -> str:
        """Be there until the process ends. Returns why it did."""
        self._why = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_instruct, process, task)
            tasks.start_soon(self._listen, process, control)
            tasks.start_soon(self._watch, process)
            tasks.start_soon(self._end_when_asked, process, control)
            await process.wait()
            tasks.cancel_scope.cancel()
        with suppress(msgspec.DecodeError):
            while not self._why and await control.poll(
                LAST_WORDS_MS if process.returncode == SAID_WHY else 0
            ):
                self._take(wire.Decoder(FromProcess)((await control.recv_multipart())[0]))
        return self._why or f"it exited with {_describe(process.returncode or 0)}"

    async def _listen(self, process: Process, control: zmq.asyncio.Socket) -> None:
        decode = wire.Decoder(FromProcess)
        while True:
            data = (await control.recv_multipart())[0]
            try:
                self._take(decode(data))
            except msgspec.DecodeError as error:
                self._end(process, f"it said what cannot be understood: {error}")
            self._heard.set()
            self._changed()

    def _take(self, message: Loading | Ready | Failed | Beat) -> None:
        match message:
            case Loading():
                self._notify(message)
            case Ready():
                self.said, self.state, self._ready_at = message, "ready", time.monotonic()
                self._load_s = self._ready_at - self._began
                self.ready.set()
            case Failed():
                self._why = message.why
            case Beat():
                self.beat = message

    async def _watch(self, process: Process) -> None:
        """Kill the process when it says nothing, or its device stands still."""
        while True:
            limit = self._settings.silence_s if self.state == "ready" else self._settings.start_timeout_s
            if not await self._hears(limit):
                why = f"it gave no sign of life for {limit:g} s"
                self._ask_for_stacks(process, why)
                # It may have been us who were held up: what it said meanwhile is read first.
                if await self._hears(self._settings.stacks_s):
                    log.warning("process %s (pid %d) lives", self.name, process.pid)
                else:
                    self._end(process, why)
            elif self.beat.busy_s > self._settings.wedged_s:
                why = f"its device has stood still for {self.beat.busy_s:.1f} s"
                self._ask_for_stacks(process, why)
                await anyio.sleep(self._settings.stacks_s)
                self._end(process, why)

    async def _hears(self, within_s: float) -> bool:
        self._heard = anyio.Event()
        with anyio.move_on_after(within_s):
            await self._heard.wait()
        return self._heard.is_set()

    def _ask_for_stacks(self, process: Process, why: str) -> None:
        """Have the process say where it stands, on standard error."""
        log.error("process %s (pid %d): %s; its stacks follow", self.name, process.pid, why)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)

    def _end(self, process: Process, why: str) -> None:
        self._why = why
        with suppress(ProcessLookupError):
            process.kill()

    async def _end_when_asked(self, process: Process, control: zmq.asyncio.Socket) -> None:
        await self._stopping.wait()
        if self.state == "ready":  # before, it does not listen
            await control.send(wire.encode(Stop()))
            with anyio.move_on_after(self._settings.grace_s):
                await process.wait()
        await _reap(process)

    def tell(self, command: Relink) -> None:
        if self._control is not None:
            self._control.send(wire.encode(command))  # waits in the socket while the process is loading

    def stop(self) -> None:
        """Have the process end, for good; `over` tells when it has."""
        self._stopping.set()


async def _instruct(process: Process, task: Task) -> None:
    assert process.stdin is not None
    with suppress(
        anyio.BrokenResourceError, anyio.ClosedResourceError
    ):  # it has ended, and is told by its code
        await process.stdin.send(msgspec.json.encode(task) + b"\n")


async def _reap(process: Process) -> None:
    """End the process: by closing its standard input, which it takes for our death, or else by force."""
    if process.returncode is None:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
        with anyio.move_on_after(FAREWELL_S):
            await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    await process.aclose()


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
