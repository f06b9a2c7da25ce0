"""Which requests a step computes together."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...bus.layout import Speech
from ..device import on_cpu
from .qwen3 import kernels

T = TypeVar("T")


def widest(settings: Speech) -> int:
    """How many requests a step may have.

    On a CPU and with our own kernels none of them changes a bit of another: each row of a product is summed in the
    same order, however many rows there are. MLX's kernels promise nothing like it: with them requests go alone, and
    quantised models, which use some of them beside ours, may change each other's last bits.
    """
    if on_cpu():
        return settings.rows
    return min(settings.rows, kernels.WIDTHS[-1]) if kernels.serve() else 1


def batches(items: list[T], kind: Callable[[T], Any], most: int) -> Iterator[list[T]]:
    """Items of one kind in groups of at most `most`; kinds in ascending order, items in their own."""
    kinds = [kind(item) for item in items]
    for one in sorted(set(kinds)):
        same = [item for item, its in zip(items, kinds, strict=True) if its == one]
        for at in range(0, len(same), most):
            yield same[at : at + most]
