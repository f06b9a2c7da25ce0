"""Which requests a step computes together."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def batches(items: list[T], kind: Callable[[T], Any], most: Callable[[T], int]) -> Iterator[list[T]]:
    """Items of one kind in groups of at most `most` of such; kinds in ascending order, items in their own."""
    kinds = [kind(item) for item in items]
    for one in sorted(set(kinds)):
        same = [item for item, its in zip(items, kinds, strict=True) if its == one]
        size = most(same[0])
        for at in range(0, len(same), size):
            yield same[at : at + size]
