"""What stages have computed of stored voices, on disk beside them: nothing that could not be computed again.

The voice `ada.voice` has the folder `ada.files`, which goes with it. A file's name stands for all that its content
depends on, and a hash of name and data comes first in it: what is damaged, half written or brought from elsewhere
is taken for absent. Like the voices, the files are for the user alone and are moved into their place whole.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from . import whole_file

log = logging.getLogger(__name__)

ENDING = ".files"
MOST_BYTES = 256 * 1024 * 1024
"""Of the files of one voice; the ones used longest ago make room."""
_HASH = 16


class VoiceFiles:
    def __init__(self, folder: Path) -> None:
        """:param folder: that of the voices."""
        self._folder = folder

    def has(self, voice: str, name: str) -> bool:
        """Whether there is such a file, whatever is in it."""
        return os.path.exists(self._folder / f"{voice.lower()}{ENDING}" / name)

    def find(self, voice: str, name: str) -> bytes | None:
        return _read(self._folder / f"{voice.lower()}{ENDING}" / name)

    def all(self, beginning: str) -> Iterator[tuple[str, bytes]]:
        """(name, data) of each file of any voice whose name begins so, the last used ones first."""
        paths = self._folder.glob(f"*{ENDING}/{beginning}*")
        for path in sorted(paths, key=_used, reverse=True):
            if (data := _read(path)) is not None:
                yield path.name, data

    def keep(self, voice: str, name: str, data: bytes) -> None:
        """Keep data, if there is such a voice and it has room. Where it cannot be written it is not kept."""
        folder = self._folder / f"{voice.lower()}{ENDING}"
        if len(data) > MOST_BYTES or not os.path.isfile(folder.with_suffix(".voice")):
            return
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            whole_file.write(folder / name, _hash(name, data), data)
            _make_room(folder)
        except OSError as error:
            log.warning("%s cannot be kept: %s", folder / name, error.strerror)

    def forget(self, voice: str) -> None:
        shutil.rmtree(self._folder / f"{voice.lower()}{ENDING}", ignore_errors=True)

    def sweep(self) -> None:
        """Forget what is left of voices that are gone."""
        for folder in self._folder.glob(f"*{ENDING}"):
            try:
                folder.with_suffix(".voice").stat()
            except FileNotFoundError:
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:  # there is no telling whether the voice is gone
                continue


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data[:_HASH] != _hash(path.name, data[_HASH:]):
        log.warning("%s is damaged and is made anew", path)
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)
    return data[_HASH:]


def _hash(name: str, data: bytes) -> bytes:
    made = blake2b(name.encode() + b"\0", digest_size=_HASH)
    made.update(data)
    return made.digest()


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _make_room(folder: Path) -> None:
    left = MOST_BYTES
    for path in sorted(folder.iterdir(), key=_used, reverse=True):
        left -= path.lstat().st_size
        if left < 0:
            path.unlink()
