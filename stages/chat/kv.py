"""Layer caches as values: cut out what a chunk of tokens added, put it back, copy it, join rows to a batch.

mlx-lm's cache objects are mutable and an MLX array assigned to is changed in place, so whatever is kept holds
handles of its own (`a[...]`); the buffers are shared until one side writes.
"""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import (
    CacheList,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

Caches = list[Any]
"""One mlx-lm cache object a layer."""
Part = Any
"""What one leaf cache holds for a chunk: a tree of arrays and plain values."""

APPENDING = (KVCache, QuantizedKVCache, ConcatenateKVCache)
"""Kinds whose state is one row per token along axis -2; every other kind is kept as a whole."""


def leaves(caches: Caches) -> list[Any]:
    """The caches of all layers with `CacheList` unfolded."""
    flat: list[Any] = []
    for cache in caches:
        flat += leaves(list(cache.caches)) if isinstance(cache, CacheList) else [cache]
    return flat


def kinds(caches: Caches) -> list[str]:
    """Sorted names of the cache classes."""
    return sorted({type(leaf).__name__ for leaf in leaves(caches)})


def cut(caches: Caches, start: int, end: int) -> list[Part]:
    """What the tokens [start, end) left behind, one part a leaf; `end` is the number of tokens seen so far."""
    return [_cut(leaf, start, end) for leaf in leaves(caches)]


def _cut(leaf: Any, start: int, end: int) -> Part:
    if isinstance(leaf, APPENDING):

        def rows(array: mx.array) -> mx.array:
            return mx.contiguous(array[..., start:end, :])

        return tree_map(rows, (leaf.keys, leaf.values))
    return _fresh(leaf.state)


def restore(caches: Caches, chunks: list[list[Part]]) -> None:
    """Bring empty caches to the state after the given consecutive chunks."""
    for leaf, *parts in zip(leaves(caches), *chunks, strict=True):
        if isinstance(leaf, APPENDING):
            leaf.keys, leaf.values = tree_map(_join, *parts)
            leaf.offset = sum(_length(part) for part in parts)
        else:
            leaf.state = _fresh(parts[-1])


def clone(source: Caches, empty: Caches) -> Caches:
    """Copy `source` into caches of the same kinds; the copy may be written to without touching the source."""
    for old, new in zip(leaves(source), leaves(empty), strict=True):
        new.state = _fresh(old.state)
    return empty


def nbytes(parts: list[Part]) -> int:
    return sum(array.nbytes for array in _arrays(parts))


def evaluate(*trees: Any) -> None:
    mx.eval(_arrays(list(trees)))


def queue(*trees: Any) -> list[mx.array]:
    """Have the device compute the trees, and go on; evaluate what is returned to wait until they are there."""
    arrays = _arrays(list(trees))
    mx.async_eval(arrays)
    return [array[...] for array in arrays[-1:]]


def _fresh(state: Any) -> Any:
    def handle(leaf: Any) -> Any:
        return leaf[...] if isinstance(leaf, mx.array) else leaf

    return tree_map(handle, state)


def _join(*rows: mx.array) -> mx.array:
    return mx.concatenate(list(rows), axis=-2)


def _length(part: Part) -> int:
    return int(_arrays(part)[0].shape[-2])


def _arrays(tree: Any) -> list[mx.array]:
    leaves: Any = tree_flatten(tree)
    return [leaf for _, leaf in leaves if isinstance(leaf, mx.array)]


def batchable(caches: Caches) -> bool:
    """Whether rows of different lengths can share these kinds. A batch forgets a rotating cache's kept tokens."""
    return all(
        hasattr(leaf, "merge") and not (isinstance(leaf, RotatingKVCache) and leaf.keep)
        for leaf in leaves(caches)
    )


def trimmable(caches: Caches) -> bool:
    """Whether the last tokens can always be forgotten; a rotating cache cannot once it is full."""
    return all(isinstance(leaf, APPENDING) for leaf in leaves(caches))


def trim(caches: Caches, tokens: int) -> None:
    """Forget the last tokens."""
    if tokens:
        for leaf in leaves(caches):
            leaf.trim(tokens)


def merge(rows: list[Caches]) -> Caches:
    """One batch cache a layer, from single-row caches."""
    return [layer[0].merge(list(layer)) for layer in zip(*rows, strict=True)]


def extend(batch: Caches, other: Caches) -> None:
    """Append the rows of `other` to `batch`."""
    for mine, more in zip(batch, other, strict=True):
        mine.extend(more)


def keep(batch: Caches, rows: list[int]) -> None:
    for layer in batch:
        layer.filter(rows)


def single(batch: Caches, row: int) -> Caches:
    """The caches of one row, of the kinds that the model makes."""
    return [layer.extract(row) for layer in batch]
