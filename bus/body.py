"""What one process runs: the stages of its event loop, and a device thread for those that use the device."""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import zmq

from .channel import Stage
from .control import Notice, Progress, Ready, Relink
from .device_thread import DeviceThread
from .layout import Layout
from .loop import Station, Wiring


class Body:
    """The loops of one process of a layout. Open it with `async with`, in the task that later leaves it.

    Entering raises StartError or another VivavoceError when a model cannot be had.
    """

    def __init__(
        self,
        layout: Layout,
        process: str,
        folder: Path,
        epochs: Mapping[str, int],
        context: zmq.Context[Any],
        *,
        module: str = "vivavoce.stages.host",
        notify: Callable[[Notice], None],
    ) -> None:
        self._here = Station(layout, process, "loop", context, folder, dict(epochs))
        device = Station(layout, process, "device", context, folder, dict(epochs))
        self._device = DeviceThread(device, module) if device.stages else None
        self._module = module
        self._notify = notify
        self._stack = AsyncExitStack()
        self.stages: Mapping[str, Stage] = {}
        self.ready = Ready(backend="", models=())

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.wiring = await stack.enter_async_context(Wiring(self._here))
            if self._device is not None:
                stack.push_async_callback(self._device.stop)
                self.ready = await self._device.start(self._notify)
            self.stages = importlib.import_module(self._module).loop_stages(self._here.stages)
            self.wiring.run(self.stages)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    @property
    def progress(self) -> Progress:
        return Progress() if self._device is None else self._device.progress

    def active(self) -> dict[str, int]:
        """Open requests in each stage of the process."""
        return {
            name: len(stage.open_requests()) for name, stage in self.stages.items()
        } | self.progress.active()

    async def wait(self) -> None:
        """Until the device thread ends, which it does by itself only when it fails. Raises what ended it."""
        if self._device is not None:
            await self._device.wait()

    def relink(self, command: Relink) -> None:
        self.wiring.relink(command.process, command.epoch, command.failure)
        if self._device is not None:
            self._device.relink(command)
