"""A layout, running: its processes, and the client that the API talks through."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec
import psutil
import zmq

from .body import Body
from .client import Client
from .control import Beat, ModelInfo, Notice, Ready, Relink
from .errors import StartError
from .layout import Layout
from .messages import Failure
from .supervisor import Supervisor


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process as /health shows it."""

    name: str
    pid: int
    state: str
    """`loading`, `ready`, `restarting`, `failed` (given up) or `stopped`."""
    restarts: int
    stages: tuple[str, ...]
    rss_bytes: int
    device_steps: int
    last_progress_s: float
    busy_s: float
    """How long the device step under way has taken; 0 when idle."""
    active: dict[str, int]
    """Open requests in each stage."""


class Running:
    """Starts every process of a layout and stops them. Use as an async context manager, in one task.

    Entering raises StartError or another VivavoceError when a process cannot start.
    """

    def __init__(
        self,
        layout: Layout,
        notify: Callable[[Notice], None] = lambda _: None,
        *,
        module: str = "vivavoce.stages.host",
    ) -> None:
        place = layout.place("api")
        assert place is not None
        self.layout = layout
        self.process = place[0]
        self.models: tuple[ModelInfo, ...] = ()
        self.hints: tuple[str, ...] = ()
        self.backend = ""
        self.started = time.monotonic()
        self._notify = notify
        self._module = module
        self._supervisors: list[Supervisor] = []
        self._epochs = {process.name: 0 for process in layout.process}
        self._failure: str | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def _start(self, stack: AsyncExitStack) -> None:
        folder = Path(tempfile.mkdtemp(prefix="vivavoce-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.term)
        lives = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(lives.cancel_scope.cancel)
        for process in self.layout.process:
            if process.name != self.process:
                supervisor = Supervisor(
                    self.layout,
                    process.name,
                    folder,
                    context,
                    module=self._module,
                    notify=self._notify,
                    died=self._died,
                )
                self._supervisors.append(supervisor)
                lives.start_soon(supervisor.run, self._epochs)
        stack.push_async_callback(self._stop_processes)
        self._body = Body(
            self.layout, self.process, folder, self._epochs, context, module=self._module, notify=self._notify
        )
        await stack.enter_async_context(self._body)
        self.client = Client(self._body.wiring.outbox("api"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self.client.run, self._body.wiring.inbox("api"))
        tasks.start_soon(self._watch)
        for supervisor in self._supervisors:
            await supervisor.ready.wait()
            if supervisor.state != "ready":
                raise StartError(f"process {supervisor.name} could not start: {supervisor.why}")
        self._take([self._body.ready, *(supervisor.said for supervisor in self._supervisors)])

    async def _stop_processes(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(self.layout.supervision.grace_s):
            for supervisor in self._supervisors:
                supervisor.stop()
            for supervisor in self._supervisors:
                await supervisor.over.wait()

    def _take(self, ready: list[Ready]) -> None:
        self.models = tuple({model.name: model for said in ready for model in said.models}.values())
        self.hints = tuple(dict.fromkeys(hint for said in ready for hint in said.hints))
        self.backend = ", ".join(dict.fromkeys(said.backend for said in ready if said.backend))

    async def _watch(self) -> None:
        try:
            await self._body.wait()
        except Exception as error:  # whatever ended the device thread is the reason that requests are given
            self._failure = f"the device thread ended: {error}"
            self.client.fail_all(Failure(status=503, code="stage_down", message=self._failure))

    def _died(self, dead: Supervisor, why: str) -> None:
        """A process has ended unasked: end the requests it had a part in, and link the others to its successor."""
        failure = Failure(status=503, code="stage_down", message=f"the process {dead.name} ended: {why}")
        self._epochs[dead.name] = dead.epoch
        command = Relink(dead.name, dead.epoch, failure)
        self._body.relink(command)
        for supervisor in self._supervisors:
            if supervisor is not dead:
                supervisor.tell(command)
        self.client.fail_all(failure)

    @property
    def failed(self) -> str | None:
        """Why speech cannot be served now, None when it can."""
        if self._failure is not None:
            return self._failure
        down = (s for s in self._supervisors if s.state != "ready")
        return next((f"process {s.name} is {s.state}: {s.why}" for s in down), None)

    def processes(self) -> list[ProcessStatus]:
        """State of every process, without waiting for any of them."""
        own = self._body.progress
        beat = Beat(
            device_steps=own.steps,
            last_progress_s=own.age_s,
            busy_s=own.busy_s,
            rss_bytes=psutil.Process().memory_info().rss,
            active={"api": self.client.active(), **self._body.active()},
        )
        state = "failed" if self._failure else "ready"
        return [
            _status(self.layout, self.process, os.getpid(), state, 0, beat),
            *(_status(self.layout, s.name, s.pid, s.state, s.restarts, s.beat) for s in self._supervisors),
        ]


def _status(layout: Layout, name: str, pid: int, state: str, restarts: int, beat: Beat) -> ProcessStatus:
    process = layout.find(name)
    return ProcessStatus(
        name=name,
        pid=pid,
        state=state,
        restarts=restarts,
        stages=process.loop + process.device,
        rss_bytes=beat.rss_bytes,
        device_steps=beat.device_steps,
        last_progress_s=beat.last_progress_s,
        busy_s=beat.busy_s,
        active=beat.active,
    )
