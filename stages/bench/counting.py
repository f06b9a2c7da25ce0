"""Counts how often Python waits for the device: MLX's reading methods are wrapped while a request runs."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import mlx.core as mx
import numpy as np

READERS = ("item", "tolist", "__int__", "__float__", "__bool__", "__array__")
BARRIERS = ("eval", "synchronize")


class Counting:
    """`reads` and `barriers` since entering; every thread of the process counts."""

    def __init__(self) -> None:
        self.reads = self.barriers = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for name in READERS:
            self._wrap(mx.array, name, self._read)
        for name in BARRIERS:
            self._wrap(mx, name, self._barrier)
        for name in ("array", "asarray"):
            # NumPy takes an MLX array's buffer without calling any of its methods.
            self._wrap(np, name, self._converted)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _wrap(self, owner: Any, name: str, count: Callable[..., None]) -> None:
        original = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            count(*given)
            return original(*given, **named)

        self._stack.enter_context(patch.object(owner, name, wrapped))

    def _read(self, *_: Any) -> None:
        self.reads += 1

    def _barrier(self, *_: Any) -> None:
        self.barriers += 1

    def _converted(self, *given: Any) -> None:
        if given and isinstance(given[0], mx.array):
            self.reads += 1
