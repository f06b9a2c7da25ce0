"""The one thread that owns a device: MLX is imported and models load, warm up and run there only."""

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Protocol, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .control import Notice, Progress, Ready, Relink
from .errors import StartError, VivavoceError, innermost
from .loop import Station

Commands = MemoryObjectReceiveStream[Relink]


class DeviceHost(Protocol):
    """What the module named to `DeviceThread` offers as `device_main`: serve until the commands end."""

    def __call__(
        self, station: Station, progress: Progress, notify: Callable[[Notice], None], commands: Commands
    ) -> Awaitable[None]: ...


class DeviceThread:
    """Runs `module.device_main` on a thread with its own event loop."""

    def __init__(self, station: Station, module: str = "vivavoce.stages.host") -> None:
        self.progress = Progress()
        self._station = station
        self._module = module
        self._ready: Future[Ready] = Future()
        self._over: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: MemoryObjectSendStream[Relink] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"device-{station.process}")

    async def start(self, notify: Callable[[Notice], None]) -> Ready:
        """Start, and return when the stages are warm; `notify` is called on the caller's loop.

        Raises StartError (or another VivavoceError) with the cause.
        """
        self._listener = (asyncio.get_running_loop(), notify)
        self._thread.start()
        try:
            return await asyncio.wrap_future(self._ready)
        except VivavoceError:
            raise
        except (OSError, ValueError, RuntimeError, ImportError, MemoryError) as error:
            raise StartError(f"the device thread could not start: {error}") from error

    async def wait(self) -> None:
        """Until the thread ends. Raises whatever ended it."""
        await asyncio.shield(asyncio.wrap_future(self._over))

    def relink(self, command: Relink) -> None:
        """Tell the stages that another process has died."""
        if self._loop is not None and self._commands is not None and not self._over.done():
            self._loop.call_soon_threadsafe(self._commands.send_nowait, command)

    async def stop(self) -> None:
        """Ask the stages to end and wait for the thread; a step under way, also of loading, is finished first."""
        self._stopping = True
        if self._loop is not None and self._commands is not None and not self._over.done():
            self._loop.call_soon_threadsafe(self._commands.close)
        if self._thread.is_alive():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._thread.join)

    def _main(self) -> None:
        try:
            anyio.run(self._run)
        except BaseException as error:  # the thread's boundary: told to whoever waits, re-raised nowhere else
            cause = innermost(error)
            self._over.set_exception(cause)  # first: whoever learns of it next may call `stop`
            if not self._ready.done():
                self._ready.set_exception(cause)
        else:
            self._over.set_result(None)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._commands, commands = anyio.create_memory_object_stream[Relink](64)
        with self._commands, commands:
            host = cast(DeviceHost, importlib.import_module(self._module).device_main)
            await host(self._station, self.progress, self._take, commands)

    def _take(self, notice: Notice) -> None:
        if self._stopping:
            raise StartError("the process was stopped while it was loading")
        if isinstance(notice, Ready):
            self._ready.set_result(notice)
        else:
            loop, notify = self._listener
            loop.call_soon_threadsafe(notify, notice)
