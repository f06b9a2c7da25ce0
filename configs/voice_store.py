"""Stored voices: one file for each, in a folder of the user's; what is computed of it lies beside (voice_files.py).

A file holds the recording and what is known of it, so that it appears and goes as one. It is written beside its
place and moved there; what a crash leaves behind is never taken for a voice. Everything is for the user alone.
"""

import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from ..bus.errors import RequestError, VivavoceError
from .voice_files import VoiceFiles

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
ENDING = ".voice"
RATE = 24_000
STALE_S = 3600


class StoredVoice(msgspec.Struct, frozen=True, kw_only=True):
    """A voice to imitate."""

    name: str
    pcm: bytes
    """16-bit little-endian mono PCM at 24 kHz."""
    digest: str
    """Hash of `pcm`."""
    text: str | None = None
    """What is said in it; without, only its x-vector is of use."""
    consent: str | None = None
    description: str | None = None
    created: int = 0
    """Seconds since 1970."""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / RATE


class VoiceStore:
    """Reads the folder anew each time something is asked, so that several programs may share it."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder).expanduser() if folder else default_folder()
        self.files = VoiceFiles(self.folder)
        self._read: dict[Path, tuple[tuple[int, int], StoredVoice | None]] = {}

    def all(self) -> list[StoredVoice]:
        """Every voice that can be used, by name."""
        return sorted((voice for voice in self._voices() if voice), key=lambda voice: voice.name.lower())

    def refused(self) -> list[str]:
        """Names of files that are no voices though they are called so."""
        list(self._voices())
        return sorted(path.name for path, (_, voice) in self._read.items() if voice is None)

    def find(self, name: str) -> StoredVoice | None:
        """The voice of this name in whatever case; None also for what cannot be a name."""
        if not NAME.fullmatch(name):
            return None
        return self._load(self._path(name))

    def add(
        self,
        name: str,
        pcm: bytes,
        *,
        text: str | None = None,
        consent: str | None = None,
        description: str | None = None,
        replace: bool = False,
    ) -> StoredVoice:
        """Keep a voice.

        :raises RequestError: the name is none (400) or taken (409).
        :raises VivavoceError: the folder cannot be written.
        """
        check_name(name)
        voice = StoredVoice(
            name=name,
            pcm=pcm,
            digest=digest(pcm),
            text=text,
            consent=consent,
            description=description,
            created=int(time.time()),
        )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            free = self._write(self._path(name), msgspec.msgpack.encode(voice), replace=replace)
        except OSError as error:
            raise VivavoceError(f"voices cannot be kept in {self.folder}: {error.strerror}") from None
        if not free:
            raise RequestError(
                f"There is a voice {name!r} already: choose another name, or remove it first.",
                "name",
                status=409,
                code="voice_exists",
            )
        self.files.forget(name)
        return voice

    def remove(self, name: str) -> bool:
        """Forget a voice; False where there was none."""
        if not NAME.fullmatch(name):
            return False
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        self.files.forget(name)
        return True

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.lower()}{ENDING}"

    def _write(self, path: Path, data: bytes, *, replace: bool) -> bool:
        """False where the place is taken."""
        handle, made = tempfile.mkstemp(dir=self.folder, prefix=".new-")  # mode 0600
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(made, path)
            else:
                os.link(made, path)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(made)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def _sweep(self) -> None:
        """Remove what crashed uploads left behind, and what is left of voices that are gone."""
        self.files.sweep()
        for path in self.folder.glob(".new-*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()

    def _voices(self) -> Iterator[StoredVoice | None]:
        paths = set(self.folder.glob(f"*{ENDING}")) if self.folder.is_dir() else set[Path]()
        for gone in set(self._read) - paths:
            del self._read[gone]
        for path in paths:
            yield self._load(path)

    def _load(self, path: Path) -> StoredVoice | None:
        try:
            status = path.stat()
            state = (status.st_mtime_ns, status.st_size)
            if path not in self._read or self._read[path][0] != state:
                self._read[path] = state, _decode(path)
            return self._read[path][1]
        except OSError:
            self._read.pop(path, None)
            return None


def _decode(path: Path) -> StoredVoice | None:
    try:
        voice = msgspec.msgpack.decode(path.read_bytes(), type=StoredVoice)
    except msgspec.DecodeError as error:
        log.warning("%s is no stored voice: %s", path, error)
        return None
    if digest(voice.pcm) != voice.digest or f"{voice.name.lower()}{ENDING}" != path.name:
        log.warning("%s is damaged: remove it and add the voice again", path)
        return None
    return voice


def check_name(name: str) -> None:
    """:raises RequestError: a voice cannot be called so."""
    if not NAME.fullmatch(name):
        raise RequestError(
            "A voice's name has 1 to 64 letters a-z, digits, - and _, and begins with a letter or digit.",
            "name",
        )


def digest(pcm: bytes) -> str:
    return blake2b(pcm, digest_size=16).hexdigest()


def default_folder() -> Path:
    """Where this system keeps a user's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "vivavoce" / "voices"
    given = os.environ.get("XDG_DATA_HOME")
    return (Path(given) if given else Path.home() / ".local" / "share") / "vivavoce" / "voices"
