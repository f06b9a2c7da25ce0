"""A cache bounded by bytes."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class ByteCache(Generic[V]):
    """Values by name; the ones used longest ago make room. With a bound of 0 nothing is kept."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._kept: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: str) -> V | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: str, value: V, size: int) -> None:
        """Keep a value of `size` bytes; one that is larger than the bound is not kept."""
        if size > self._bound:
            return
        if key in self._kept:
            self.bytes -= self._kept.pop(key)[1]
        self._kept[key] = value, size
        self.bytes += size
        while self.bytes > self._bound:
            self.bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)
