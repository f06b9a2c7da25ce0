"""The private folder of a running server: its Unix sockets, and where `vivavoce tap` finds it while it runs."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO

from .errors import StartError

LONGEST_NAME = 24
"""Of a socket in the folder: process or link by number, and incarnations."""
LONGEST_PATH = 103
"""Of a Unix socket on macOS; Linux allows four more."""

WAITING_S = 0.2
"""Between two looks whether the others are ready: who waits for a lock in one call cannot tell that it waits."""

Alone = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Takes what is called again and again while it waits for others."""


def base() -> Path:
    """The folder that holds those of this user's servers. It may not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "vivavoce"
    return Path(tempfile.gettempdir()) / f"vivavoce-{os.getuid()}"


@contextmanager
def run_folder() -> Generator[Path]:
    """A new folder with mode 0700, removed at the end; those of servers that were killed are removed first.

    Raises StartError where none can be made.
    """
    root = _private(base())
    for folder in root.iterdir():
        tidy(folder)
    with ExitStack() as stack:
        # Others take an unlocked folder for a dead server's, so it gets its lock before its place.
        made = Path(tempfile.mkdtemp(prefix=".", dir=root))
        folder = made.with_name(f"{os.getpid()}{made.name[:5]}")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        lock = stack.enter_context((made / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(folder)
        if len(str(folder)) + 1 + LONGEST_NAME > LONGEST_PATH:
            raise StartError(f"the path {folder} is too long for Unix sockets: set TMPDIR to a shorter one")
        yield folder


@contextmanager
def starting(folder: Path) -> Generator[Alone]:
    """While a process of this server makes itself ready. Yields what is entered to be the only one that does."""
    with (folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)

        @contextmanager
        def alone(waiting: Callable[[], None]) -> Generator[None]:
            while not _locked(lock):
                waiting()
                time.sleep(WAITING_S)
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_SH)

        yield alone


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tidy(folder: Path) -> None:
    """Remove the folder of a server that is no more."""
    if not _alive(folder):
        shutil.rmtree(folder, ignore_errors=True)


def running() -> list[Path]:
    """Folders of the servers of this user that run now, the oldest first."""
    root = base()
    folders = [folder for folder in root.iterdir() if _alive(folder)] if root.is_dir() else []
    return sorted(
        (folder for folder in folders if not folder.name.startswith(".")),
        key=lambda folder: folder.stat().st_ctime,
    )


def pid(folder: Path) -> int:
    """Of the server with this folder."""
    return int(folder.name.partition(".")[0])


def _private(root: Path) -> Path:
    try:
        root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"{root} cannot be made ({error.strerror}): set TMPDIR to a folder of yours"
        ) from None
    found = root.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or root.is_symlink():
        raise StartError(f"{root} is not private to you: remove it, or set TMPDIR to a folder of yours")
    return root


def _alive(folder: Path) -> bool:
    if folder.name.startswith("."):
        return True  # being made
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
