"""Times one step of one stage: until Python has queued it, and until the device has done it."""

import time
from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

from .records import Piece

T = TypeVar("T")


class Stopwatch:
    """Gathers the seconds of one stage, call by call."""

    def __init__(self, frames: int = 1) -> None:
        self._frames = frames
        self.piece = Piece([], [])

    def __call__(self, step: Callable[[], T]) -> T:
        """Run `step`, which returns arrays, and wait for them."""
        start = time.perf_counter()
        made = step()
        queued = time.perf_counter()
        mx.eval(made)
        done = time.perf_counter()
        self.piece.build.append((queued - start) / self._frames)
        self.piece.total.append((done - start) / self._frames)
        return made
