"""How many tokens of a prompt are read in one slice beside speech: measured once, then remembered on disk.

Slices of another size round differently, so what was measured once holds from one start to the next. There is a
file for each setting, in the user's cache; one that cannot be read is measured and written anew.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import msgspec

from ...configs import whole_file
from .model import ChatModel
from .prefill import Reader
from .prefix import PrefixCache
from .prefix_disk import fingerprint

log = logging.getLogger(__name__)

SMALLEST = 32
"""Tokens; a pass of fewer takes hardly less time."""
STEP = 16
"""Passes have a multiple of so many tokens, as kernels work on tiles."""
PASSES = 3
"""Behind each other, of a try."""
TRIES = 3
MOST_FILES = 100
"""The ones used longest ago make room."""
MOST_BYTES = 1 << 16
"""Of a file: more cannot be ours."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All that a measurement depends on."""

    model: str
    fingerprints: tuple[str, ...]
    """Of the model and its draft model: weights, cache options, versions of MLX and mlx-lm."""
    device: str
    chunk: int
    slice_s: float


class _File(msgspec.Struct, frozen=True):
    tokens: Annotated[int, msgspec.Meta(ge=1)]
    """In a slice."""
    setting: Setting


def slice_tokens(
    folder: Path,
    device: str,
    models: Sequence[ChatModel],
    *,
    chunk: int,
    slice_s: float,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """What is remembered in the folder, or else measured, and remembered from now on.

    :param device: backend and name.
    :param models: a chat model and, if there is one, its draft model, which read the same slices in turn.
    :param chunk: tokens, the most that a slice may have.
    :param slice_s: the longest that one may take.
    :param alone: entered to measure, so that no other process of the server makes it longer.
    """
    setting = Setting(
        model=models[0].name,
        fingerprints=tuple(fingerprint(model).hex() for model in models),
        device=device,
        chunk=chunk,
        slice_s=slice_s,
    )
    name = blake2b(msgspec.json.encode(setting), digest_size=8).hexdigest()
    file = folder / f"{name}.json"
    tokens = _remembered(file, setting)
    if tokens is None:
        with alone():
            tokens = measure(models, chunk, slice_s)
        _remember(file, _File(tokens, setting))
    log.info("%s reads %d tokens a slice (%s)", setting.model, tokens, file)
    return tokens


def measure(models: Sequence[ChatModel], chunk: int, most_s: float) -> int:
    """The most tokens, of a chunk and its even parts, of which a slice takes no longer than so many seconds."""
    chunk = min(chunk, *(model.context for model in models))
    even = {-(-chunk // parts) for parts in range(1, chunk // SMALLEST + 1)}
    whole = {min(chunk, -(-tokens // STEP) * STEP) for tokens in even}
    best, *larger = sorted(whole) or [chunk]
    for tokens in larger:
        if not _fits(models, tokens, most_s):
            break
        best = tokens
    return best


def _fits(models: Sequence[ChatModel], tokens: int, most_s: float) -> bool:
    """Whether a slice was short enough in one of a few tries: other work on the machine only makes it longer."""
    if PASSES * tokens >= min(model.context for model in models):
        return False
    took_s(models, tokens, PASSES)  # makes kernels, on CUDA for each length of a context anew
    for _ in range(TRIES):
        took = took_s(models, tokens, PASSES)
        if took <= most_s:
            return True
        if took > 2 * most_s:
            break
    return False


def took_s(models: Sequence[ChatModel], tokens: int, passes: int) -> float:
    """Seconds that a slice took, of so many behind each other."""
    prompt = [0] * (passes * tokens + 1)
    began = time.perf_counter()
    readers = [Reader(model, PrefixCache(0), prompt, len(prompt), tokens) for model in models]
    for _ in range(passes):
        for reader in readers:
            reader.queue()
        for reader in readers:
            reader.wait()
    for reader in readers:
        reader.finish()
    took = (time.perf_counter() - began) / passes
    mx.clear_cache()
    return took


def _remembered(file: Path, setting: Setting) -> int | None:
    try:
        if not file.exists():
            return None
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            raise OSError("not a file of ours")
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read and is measured anew: %s", file, error)
        return None
    if found.setting != setting or found.tokens > setting.chunk:
        log.warning("%s is of something else and is measured anew", file)
        return None
    with suppress(OSError):
        os.utime(file)
    return found.tokens


def _remember(file: Path, found: _File) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole_file.write(file, msgspec.json.format(msgspec.json.encode(found)), b"\n")
    except OSError as error:
        log.warning("%s cannot be written, so the next start measures again: %s", file, error.strerror)
        return
    with suppress(OSError):  # another program may make room at the same time
        for old in sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-MOST_FILES]:
            old.unlink()
