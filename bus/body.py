"""What one process runs: the stages of its event loop, and a device thread for those that use the device."""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

import anyio

from .channel import Stage
from .control import Notice, Progress, Ready, Relink
from .device_thread import DeviceThread
from .loop import Station, Wiring


class Body:
    """The loops of one process of a layout. Open it with `async with`, in the task that later leaves it.

    Entering raises StartError or another VivavoceError when a model cannot be had.
    """

    def __init__(
        self,
        station: Station,
        *,
        module: str = "vivavoce.stages.host",
        notify: Callable[[Notice], None],
    ) -> None:
        """:param station: the process's event loop."""
        self._stations = [station]
        self._device: DeviceThread | None = None
        device = station.beside("device")
        if device.stages:
            self._stations.append(device)
            self._device = DeviceThread(device, module)
        self._module = module
        self._notify = notify
        self._stack = AsyncExitStack()
        self.stages: Mapping[str, Stage] = {}
        self.ready = Ready(backend="", models=())

    async def __aenter__(self) -> Self:
        here = self._stations[0]
        async with AsyncExitStack() as stack:
            self.wiring = await stack.enter_async_context(Wiring(here))
            if self._device is not None:
                stack.push_async_callback(self._device.stop)
                self.ready = await self._device.start(self._notify)
            self.stages = importlib.import_module(self._module).loop_stages(here.stages)
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

    @property
    def deaths(self) -> int:
        """How many deaths of processes all loops know of and have linked around."""
        return min(station.deaths for station in self._stations)

    @property
    def tapped(self) -> int:
        """Messages that were handed to taps."""
        return sum(station.tally.tapped for station in self._stations)

    async def wait(self) -> None:
        """Until the device thread ends, which it does by itself only when it fails. Raises what ended it."""
        if self._device is None:
            await anyio.sleep_forever()
        else:
            await self._device.wait()

    def relink(self, command: Relink) -> None:
        self.wiring.relink(command.process, command.epoch, command.failure)
        if self._device is not None:
            self._device.relink(command)
