"""A layout, running: its processes, and the client that the API talks through."""

import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import psutil
import zmq

from .body import Body
from .client import Client
from .control import Beat, ModelInfo, Notice, Ready, Relink
from .errors import StartError, innermost
from .keys import Keys, gate
from .keys import read as read_keys
from .layout import Layout
from .lease import LeaseServer
from .listener import SOCKET
from .loop import Station
from .messages import FAMILIES, Failure
from .run_folder import run_folder
from .status import GIVEN_UP_S, Outage, ProcessStatus, starved, status_of
from .supervisor import Supervisor
from .tap import Exchange


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
        self._deaths = dict.fromkeys((None, *FAMILIES), 0)
        """How many deaths have to be known before a family (or everything) can be served: all up to the last one
        of a process that has a part in it."""
        self._failure: str | None = None
        self._body: Body | None = None
        self._up = False
        self._change = anyio.Event()
        self._early = ""
        """Which process ended before all of them served."""
        self._stack = AsyncExitStack()
        self.tap: str | None = None
        """Address where outside programs of this user can listen."""

    async def __aenter__(self) -> Self:
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                self._stack = stack.pop_all()
        except BaseExceptionGroup as group:
            raise innermost(group) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # What the block raised itself goes on as it was.
            if (cause := innermost(group)) is not error:
                raise cause from None

    async def _start(self, stack: AsyncExitStack) -> None:
        folder = stack.enter_context(run_folder())
        keys = read_keys(self.layout.keys) if self.layout.keys is not None else None
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.term)
        await stack.enter_async_context(gate(context, keys))
        taps = self._open_taps(context, folder, keys)
        lives = await stack.enter_async_context(anyio.create_task_group())
        self._lease = LeaseServer(self.layout, context, folder, lives)
        stack.callback(self._lease.close)
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
                    changed=self._changed,
                    keys=keys,
                    taps=taps and (self.layout.taps.collect if process.control else taps),
                )
                self._supervisors.append(supervisor)
                lives.start_soon(supervisor.run, self._epochs)
        stack.push_async_callback(self._stop_processes)
        station = Station(self.layout, self.process, "loop", context, folder, dict(self._epochs), keys, taps)
        body = Body(station, module=self._module, notify=self._notify)
        await stack.enter_async_context(body)
        self.client = Client(body.wiring.outbox("api"), body.wiring.ended)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self.client.run, body.wiring.inbox("api"))
        self._body = body
        tasks.start_soon(self._watch)
        await self._all_ready()
        if self._early:
            raise StartError(self._early)
        self._up = True
        self._take([body.ready, *(supervisor.said for supervisor in self._supervisors)])

    def _open_taps(self, context: zmq.Context[Any], folder: Path, keys: Keys | None) -> str | None:
        """Where stages publish to, None where nobody may listen."""
        settings = self.layout.taps
        if not settings.enabled:
            return None
        source, self.tap = f"ipc://{folder}/taps", f"ipc://{folder}/{SOCKET}"
        Exchange(context, source, self.tap, settings.backlog)
        further = ("address", self.tap, settings.address), ("collect", settings.collect, source)
        for key, there, here in further:
            if there is not None and here is not None:
                try:
                    Exchange(context, there, here, settings.backlog, keys)
                except zmq.ZMQError as error:
                    raise StartError(f"taps.{key}: {error.strerror}; choose another address") from None
        return source

    async def _all_ready(self) -> None:
        """Raises StartError as soon as one process cannot start."""

        async def one(supervisor: Supervisor) -> None:
            await supervisor.ready.wait()
            if supervisor.state == "failed":
                failed.append(supervisor)
                tasks.cancel_scope.cancel()

        failed: list[Supervisor] = []
        async with anyio.create_task_group() as tasks:
            for supervisor in self._supervisors:
                tasks.start_soon(one, supervisor)
        for supervisor in failed:
            raise StartError(f"process {supervisor.name} could not start: {supervisor.why}")

    async def _stop_processes(self) -> None:
        with anyio.CancelScope(shield=True):
            for supervisor in self._supervisors:
                supervisor.stop()
            for supervisor in self._supervisors:
                await supervisor.over.wait()

    def _take(self, ready: list[Ready]) -> None:
        self.models = tuple({model.name: model for said in ready for model in said.models}.values())
        self.hints = tuple(dict.fromkeys(hint for said in ready for hint in said.hints))
        self.backend = ", ".join(dict.fromkeys(said.backend for said in ready if said.backend))

    async def _watch(self) -> None:
        assert self._body is not None
        try:
            await self._body.wait()
        except Exception as error:  # whatever ended the device thread is the reason that requests are given
            self._failure = f"the device thread ended, restart the server: {error}"
            failure = Failure(status=503, code="stage_down", message=self._failure)
            self.client.fail_all(failure, self._families(self.process))

    def _died(self, dead: Supervisor, why: str) -> None:
        """A process has ended unasked: end the requests it had a part in, and link the others to its successor."""
        if not self._up:
            self._early = f"the process {dead.name} ended: {why}"
            return
        assert self._body is not None
        failure = Failure(status=503, code="stage_down", message=f"the process {dead.name} ended: {why}")
        self._epochs[dead.name] = dead.epoch
        deaths = sum(self._epochs.values())
        self._deaths |= dict.fromkeys((None, *self._families(dead.name)), deaths)
        self._lease.open(dead.name, dead.epoch)
        self.client.fail_all(failure, self._families(dead.name))
        command = Relink(dead.name, dead.epoch, failure)
        self._body.relink(command)
        for supervisor in self._supervisors:
            if supervisor is not dead:
                supervisor.tell(command)

    def _changed(self) -> None:
        self._change.set()

    async def wait_served(self) -> None:
        """Until everything can be served again."""
        while self.outage() is not None:
            await self.beat()

    async def beat(self) -> None:
        """Until some process has said how it is, or has ended."""
        self._change = anyio.Event()
        await self._change.wait()

    @property
    def failed(self) -> str | None:
        """Why not everything can be served now, None when it can."""
        outage = self.outage()
        return outage.reason if outage is not None else None

    def _families(self, process: str) -> tuple[str, ...]:
        """Those that have a stage in a process; a process without any is part of all."""
        return tuple(family for family in FAMILIES if self._part_of(process, family))

    def _part_of(self, process: str, family: str | None) -> bool:
        stages = {*self.layout.find(process).loop, *self.layout.find(process).device} - {"api"}
        return family is None or not stages or bool(stages & {*FAMILIES[family]})

    def outage(self, family: str | None = None) -> Outage | None:
        """Why a family (or not everything) cannot be served now, None when it can."""
        assert self._body is not None
        own = self._part_of(self.process, family)
        if own and self._failure is not None:
            return Outage(self._failure, GIVEN_UP_S)
        busy_s = self._body.progress.busy_s
        if own and busy_s > self.layout.supervision.wedged_s:
            return Outage(f"the device has stood still for {busy_s:.0f} s: restart the server", GIVEN_UP_S)
        if own and (outage := starved(self.layout, self.process, self._body.progress.waiting_s())):
            return outage
        parts = [one for one in self._supervisors if self._part_of(one.name, family)]
        for supervisor in parts:
            if supervisor.state == "failed":
                why = f"the process {supervisor.name} is given up, it ended too often: {supervisor.why}"
                return Outage(why, GIVEN_UP_S)
            if supervisor.state != "ready":
                why = f"the process {supervisor.name} is {supervisor.state}: {supervisor.why}"
                return Outage(why, supervisor.retry_after_s)
            if outage := starved(self.layout, supervisor.name, supervisor.beat.waiting_s):
                return outage
        # A process that has not linked to the successor of another would send what it gets to the dead one.
        known = [self._body.deaths, *(supervisor.beat.deaths for supervisor in parts)]
        if min(known) < self._deaths[family]:
            return Outage("a process has just been started again", 1)
        return None

    def processes(self) -> list[ProcessStatus]:
        """State of every process, without waiting for any of them."""
        assert self._body is not None
        own = self._body.progress
        beat = Beat(
            device_steps=own.steps,
            last_progress_s=own.age_s,
            busy_s=own.busy_s,
            rss_bytes=psutil.Process().memory_info().rss,
            active={"api": self.client.active(), **self._body.active()},
            tapped=self._body.tapped,
            waiting_s=own.waiting_s(),
        )
        state = "failed" if self._failure else "ready"
        return [
            status_of(self.layout, self.process, os.getpid(), state, 0, beat),
            *(status_of(self.layout, s.name, s.pid, s.state, s.restarts, s.beat) for s in self._supervisors),
        ]
