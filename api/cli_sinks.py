"""Where `vivavoce speak` puts audio: a file that appears whole, a stream written as it is made, the speakers.

A sink is a context manager; leaving it through an exception leaves no partial file behind.
"""

import contextlib
import os
import select
import stat
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import anyio.to_thread

from ..bus.errors import VivavoceError


class Sink(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def write(self, data: bytes) -> None:
        """Waits until the reader or the speakers took it; may be cancelled."""
        ...


class WholeFile:
    """Written beside the target and renamed over it at the end: the target is whole, or as it was."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        if self._path.is_dir():
            raise VivavoceError(f"{self._path} is a folder: name a file")
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        except OSError as error:
            raise VivavoceError(f"{self._path} cannot be written: {error.strerror}") from None
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "wb")
        return self

    async def write(self, data: bytes) -> None:
        self._file.write(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None:
                # mkstemp makes files that only the owner may read; a result has the usual mode.
                mask = os.umask(0)
                os.umask(mask)
                self._temporary.chmod(0o666 & ~mask)
                self._temporary.replace(self._path)
        finally:
            self._temporary.unlink(missing_ok=True)


class Stream:
    """Written as it is made, to standard output (`-`), a pipe or a growing file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Self:
        if self._path == "-":
            if sys.stdout.isatty():
                raise VivavoceError(
                    "standard output is a terminal: pipe the audio to a program, or name a file"
                )
            # No buffer of Python's in between: its lock would be held while a reader makes us wait.
            self._file = open(1, "wb", buffering=0, closefd=False)
        else:
            try:
                self._file = open(self._path, "wb", buffering=0)
            except OSError as error:
                raise VivavoceError(f"{self._path} cannot be written: {error.strerror}") from None
        kind = os.fstat(self._file.fileno()).st_mode
        self._regular = stat.S_ISREG(kind)
        self._waits = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        return self

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if self._waits:
                # A thread that is stuck in a write would outlive Ctrl-C. A pipe that is ready takes this much.
                await anyio.wait_writable(self._file)
                left = left[self._file.write(left[: select.PIPE_BUF]) :]
            else:
                left = left[self._file.write(left) :]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None and self._regular and self._path != "-":
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class Speakers:
    """Bare 16-bit mono samples to the default output device."""

    def __init__(self, rate: int, *, instead: str) -> None:
        """:param instead: the option for those who have none."""
        self._rate, self._instead = rate, instead

    def __enter__(self) -> Self:
        try:
            import sounddevice  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise VivavoceError(
                f"playing needs the extra `play`: pip install 'vivavoce[play]', or give {self._instead}"
            ) from None
        except OSError:
            raise VivavoceError(
                "playing needs the PortAudio library: install it (Debian and Ubuntu: apt install libportaudio2), "
                f"or give {self._instead}"
            ) from None
        try:
            self._stream: Any = sounddevice.RawOutputStream(samplerate=self._rate, channels=1, dtype="int16")
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise VivavoceError(f"no sound device can be opened ({error}): give {self._instead}") from None
        return self

    async def write(self, data: bytes) -> None:
        # Waits for the device's buffer, a fraction of a second.
        await anyio.to_thread.run_sync(self._stream.write, data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._stream.stop()
        else:
            self._stream.abort()
        self._stream.close()
