"""What a device does at best: its memory, and the smallest operation that waits for the one before."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ..device import on_cpu

if TYPE_CHECKING:
    import mlx.core as mx


class Machine(msgspec.Struct, frozen=True):
    description: str
    bytes_per_s: float
    """The faster of a copy and of a product of a row with a matrix."""
    operation_s: float
    """One of many additions of a single number, each of which needs the one before."""


def measure_machine(description: str) -> Machine:
    import mlx.core as mx

    rows = 8192 if on_cpu() else 16_384
    dtype = mx.float32 if on_cpu() else mx.bfloat16
    matrix, row = mx.ones((rows, rows), dtype), mx.ones((1, rows), dtype)
    product = matrix.nbytes / _fastest(lambda: row @ matrix)
    copy = 2 * matrix.nbytes / _fastest(lambda: matrix + 1)

    def chain() -> mx.array:
        x = mx.zeros(1)
        for _ in range(500):
            x = x + 1
        return x

    return Machine(description, max(product, copy), _fastest(chain) / 500)


def _fastest(make: Callable[[], "mx.array"]) -> float:
    """Seconds that the device needs for what `make` queues; the least of some."""
    import mlx.core as mx

    seconds: list[float] = []
    for _ in range(7):
        made = make()
        start = time.perf_counter()
        mx.eval(made)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
