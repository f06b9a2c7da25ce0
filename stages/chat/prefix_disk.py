"""The prompt cache on disk: one file a chunk, named by a hash of the model and of all tokens up to its end.

What is read back is what was written, bit for bit, so it is the state that this model would compute; another
model, another precision or another kind of cache has other names. Files appear whole, and the least recently used
ones make room.
"""

import contextlib
import json
import logging
import os
import platform
import re
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from mlx.utils import tree_flatten

from ...bus.errors import StartError
from . import kv
from .model import ChatModel

log = logging.getLogger(__name__)

ENDING = ".safetensors"
_CHUNK = re.compile("[0-9a-f]+")
_UNFINISHED = re.compile(r"\.[0-9a-f]+\.[0-9]+")
_WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def fingerprint(model: ChatModel) -> bytes:
    """A hash of what a chunk's state depends on beside its tokens: weights, cache options, libraries, device.

    Of each weight the sums of its words along the first and the last axis count, which one pass over the memory
    yields.
    """
    seen = blake2b(digest_size=16)
    versions = [f"{name} {metadata.version(name)}" for name in ("mlx", "mlx-lm")]
    settings = [*versions, str(mx.default_device()), platform.machine(), *model.cache_kinds]
    seen.update(
        json.dumps([*settings, msgspec.to_builtins(model.options), model.config], default=str).encode()
    )
    leaves: Any = tree_flatten(model.net.parameters())
    for name, leaf in leaves:
        words = leaf.view(_WORDS[leaf.dtype.size])
        sums = [words.sum(axis=axis) for axis in ((0, -1) if words.ndim else ())]
        seen.update(f"{name} {leaf.dtype} {leaf.shape}".encode())
        for one in sums or [words]:
            seen.update(np.array(one).tobytes())
    return seen.digest()


def name_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a chunk of tokens behind the chunk, or the model, of that name."""
    return blake2b(before + np.array(tokens, "<u4").tobytes(), digest_size=16).digest()


class ChunkFiles:
    """A folder of chunks, shared by all models, bounded by bytes. A file that cannot be read is no chunk."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """:raises StartError: the folder cannot be used."""
        self._folder = folder
        self._limit_bytes = limit_bytes
        found = list[tuple[Path, os.stat_result]]()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.glob(f"*{ENDING}"):
                with contextlib.suppress(OSError):  # it may be gone by now
                    if _CHUNK.fullmatch(file.stem):
                        found.append((file, file.stat()))
                    elif _UNFINISHED.fullmatch(file.stem):
                        file.unlink()  # a writer who lives goes without it
        except OSError as error:
            raise StartError(f"the prompt cache {folder} cannot be used: {error.strerror}") from error
        by_age = sorted(found, key=lambda one: one[1].st_mtime_ns)
        self._sizes = OrderedDict((file.stem, state.st_size) for file, state in by_age)
        """The least recently used first."""

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def __contains__(self, name: bytes) -> bool:
        return name.hex() in self._sizes

    def save(self, name: bytes, parts: list[kv.Part]) -> None:
        """Keep a chunk, unless it is kept already or does not fit."""
        if name in self or kv.nbytes(parts) > self._limit_bytes:
            return
        arrays: list[mx.array] = []
        temporary = self._folder / f".{name.hex()}.{os.getpid()}{ENDING}"
        try:
            outline = json.dumps([_outline(part, arrays) for part in parts])
            named = {str(number): array for number, array in enumerate(arrays)}
            noted = {"outline": outline, "hash": _hash(name, outline, named)}
            mx.save_safetensors(str(temporary), named, noted)
            size = temporary.stat().st_size
            temporary.replace(self._file(name))
        except (OSError, RuntimeError, TypeError) as error:
            log.warning("a chunk of the prompt cache was not saved: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._sizes[name.hex()] = size
        while self.nbytes > self._limit_bytes:
            self._forget(next(iter(self._sizes)))

    def load(self, name: bytes) -> list[kv.Part] | None:
        """The parts of a chunk, if it is kept."""
        if name not in self:
            return None
        try:
            os.utime(self._file(name))
            loaded: Any = mx.load(str(self._file(name)), return_metadata=True)
            arrays, noted = loaded
            if noted["hash"] != _hash(name, noted["outline"], arrays):
                raise ValueError("its hash is another")
            parts = [_fill(outline, arrays) for outline in json.loads(noted["outline"])]
            kv.evaluate(parts)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            log.warning("a chunk of the prompt cache cannot be read and is dropped: %s", error)
            self._forget(name.hex())
            return None
        self._sizes.move_to_end(name.hex())
        return parts

    def _file(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}{ENDING}"

    def _forget(self, stem: str) -> None:
        del self._sizes[stem]
        with contextlib.suppress(OSError):
            os.unlink(self._folder / f"{stem}{ENDING}")


def _hash(name: bytes, outline: str, arrays: dict[str, mx.array]) -> str:
    """Of all that a file tells."""
    seen = blake2b(name + outline.encode(), digest_size=16)
    for key, array in sorted(arrays.items()):
        seen.update(f"{key} {array.dtype} {array.shape}".encode())
        seen.update(np.ascontiguousarray(array.view(_WORDS[array.dtype.size])).data)
    return seen.hexdigest()


def _outline(tree: kv.Part, arrays: list[mx.array]) -> Any:
    """The tree as JSON, with numbers in place of its arrays, which are appended."""
    if isinstance(tree, mx.array):
        arrays.append(tree)
        return {"array": len(arrays) - 1}
    if isinstance(tree, tuple | list):
        inner: list[Any] = list(tree)  # pyright: ignore[reportUnknownArgumentType]
        return {"tuple" if isinstance(tree, tuple) else "list": [_outline(part, arrays) for part in inner]}
    return {"value": tree}


def _fill(outline: Any, arrays: dict[str, mx.array]) -> kv.Part:
    match outline:
        case {"array": number}:
            return arrays[str(number)]
        case {"tuple": inner}:
            return tuple(_fill(part, arrays) for part in inner)
        case {"list": inner}:
            return [_fill(part, arrays) for part in inner]
        case _:
            return outline["value"]
