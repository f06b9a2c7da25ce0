"""A layout, running: its processes, and the client that the API talks through."""

import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec
import psutil
import zmq

from .channel import Stage
from .client import Client
from .control import ModelInfo, Notice, Progress, Ready
from .device_thread import DeviceThread
from .errors import StartError
from .layout import Layout
from .loop import Station, Wiring
from .messages import Failure


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process as /health shows it."""

    name: str
    pid: int
    state: str
    """`loading`, `ready` or `failed`."""
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

    def __init__(self, layout: Layout, notify: Callable[[Notice], None] = lambda _: None) -> None:
        self.layout = layout
        self.models: tuple[ModelInfo, ...] = ()
        self.hints: tuple[str, ...] = ()
        self.backend = ""
        self.failed: str | None = None
        self.started = time.monotonic()
        self._notify = notify
        self._stages: Mapping[str, Stage] = {}
        self._thread: DeviceThread | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def _start(self, stack: AsyncExitStack) -> None:
        place = self.layout.place("api")
        assert place is not None
        self.process = place[0]
        folder = Path(tempfile.mkdtemp(prefix="vivavoce-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.term)
        station = Station(self.layout, self.process, "loop", context, folder)
        wiring = await stack.enter_async_context(Wiring(station))
        device = Station(self.layout, self.process, "device", context, folder)
        if device.stages:
            self._thread = DeviceThread(device)
            stack.push_async_callback(self._thread.stop)
            self._take(await self._thread.start(self._notify))
        self.client = Client(wiring.outbox("api"))
        host = importlib.import_module("vivavoce.stages.host")
        self._stages = host.loop_stages(station.stages)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self.client.run, wiring.inbox("api"))
        tasks.start_soon(wiring.run, self._stages)
        if self._thread is not None:
            tasks.start_soon(self._watch, self._thread)

    def _take(self, ready: Ready) -> None:
        self.models, self.hints, self.backend = ready.models, ready.hints, ready.backend
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise StartError(
                f"two models have the same name ({', '.join(names)}): name one with `name=source`"
            )

    async def _watch(self, thread: DeviceThread) -> None:
        try:
            await thread.wait()
            self.failed = "the device thread ended"
        except Exception as error:  # whatever ended the thread is the reason that requests are given
            self.failed = f"the device thread ended: {error}"
        self.client.fail_all(Failure(status=503, code="stage_down", message=self.failed))

    @property
    def ready(self) -> bool:
        return self.failed is None

    def processes(self) -> list[ProcessStatus]:
        """State of every process, without waiting for any of them."""
        progress = Progress() if self._thread is None else self._thread.progress
        here = {"api": self.client.active(), **{name: stage.active() for name, stage in self._stages.items()}}
        return [
            ProcessStatus(
                name=self.process,
                pid=os.getpid(),
                state="failed" if self.failed else "ready",
                restarts=0,
                stages=next(p.loop + p.device for p in self.layout.process if p.name == self.process),
                rss_bytes=psutil.Process().memory_info().rss,
                device_steps=progress.steps,
                last_progress_s=progress.age_s,
                busy_s=progress.busy_s,
                active=here | progress.active(),
            )
        ]
