"""What a step is made of, read from its graph before it is computed: primitives, and the bytes of loaded arrays."""

import io
import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import mlx.core as mx

VIEWS = {
    "AsStrided",
    "Broadcast",
    "ExpandDims",
    "Flatten",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
}
"""Primitives that as a rule compute nothing: their output is another look at their input."""
WRITES = {"SliceUpdate", "DynamicSliceUpdate"}
"""They write in place where they can: their output is their first input, a little changed."""
LOOK_UPS = {"Gather", "GatherAxis"}
"""They read a few rows of their first input."""
NAMED = 1000
"""Arrays that MLX can be told the names of at a time."""

_NODE = re.compile(r'(\d+) \[label ="([^"]*)"')
_INTO = re.compile(r'"([^"]*)" -> (\d+)')
_OUT = re.compile(r'(\d+) -> "([^"]*)"')


class Census(NamedTuple):
    primitives: int
    kernels: int
    """Of these, those that compute something."""
    bytes: int
    """Of the given arrays, each as often as it is read; what is made on the way is not counted."""


@contextmanager
def held_back() -> Generator[None]:
    """`mx.async_eval` queues nothing inside: what a step makes that would queue it still has a graph."""
    with patch.object(mx, "async_eval", _ignored):
        yield


def _ignored(*_: Any) -> None:
    pass


def census(made: Any, given: dict[str, mx.array]) -> Census:
    """The graph of lazy arrays, in any nesting. A kernel of our own reads each of its inputs whole, and once.

    :param given: evaluated arrays by identifiers of the caller's; those that the graph does not read count nothing.
    """
    named = list(given.items())
    parts = [_census(made, dict(named[at : at + NAMED])) for at in range(0, max(len(named), 1), NAMED)]
    return parts[0]._replace(bytes=sum(part.bytes for part in parts))


def _census(made: Any, given: dict[str, mx.array]) -> Census:
    text = io.StringIO()
    mx.export_to_dot(text, *arrays(made), **given)
    kinds, behind = dict[str, str](), dict[str, str]()
    reads: dict[str, list[str]] = defaultdict(list)
    first: dict[str, str] = {}
    for line in text.getvalue().splitlines():
        if found := _NODE.search(line):
            kinds[found[1]] = found[2]
        elif found := _INTO.match(line):
            reads[found[1]].append(found[2])
            first.setdefault(found[2], found[1])
        elif found := _OUT.match(line):
            behind[found[1]] = found[2]

    def times(array: str) -> int:
        """How often it is read whole, itself or by another look at it."""
        count = 0
        for primitive in reads[array]:
            kind, foremost = kinds[primitive], first[primitive] == array
            if kind in VIEWS or (kind in WRITES and foremost):
                count += times(behind[primitive]) if primitive in behind else 0
            elif not (kind in LOOK_UPS and foremost):
                count += 1
        return count

    kernels = sum(kind not in VIEWS for kind in kinds.values())
    return Census(len(kinds), kernels, sum(times(name) * array.nbytes for name, array in given.items()))


def arrays(thing: Any) -> Iterator[mx.array]:
    """All arrays in lists, tuples, dicts and objects of this package, each object once."""
    seen = set[int]()

    def inside(one: Any) -> Iterator[mx.array]:
        if id(one) in seen:
            return
        if isinstance(one, mx.array):
            seen.add(id(one))
            yield one
        elif isinstance(one, list | tuple | dict):
            for part in one.values() if isinstance(one, dict) else one:
                yield from inside(part)
        elif type(one).__module__.startswith("vivavoce.") and hasattr(one, "__dict__"):
            seen.add(id(one))
            yield from inside(vars(one))

    yield from inside(thing)
