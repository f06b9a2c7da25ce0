"""The prompt cache: a tree of chunks of tokens, each with what it left in the layer caches.

Where a prompt is cut into chunks depends only on the tokens before the cut: after `size` tokens, or after an
end-of-turn token once `size // 4` tokens are together. A chunk is always computed alone, in one call, on top of
the chunks before it. So a chunk's state is a pure function of the tokens up to its end, whichever request
computed it and wherever that request ended, and a warm answer equals a cold one bit for bit. Decoded tokens
are computed one at a time, which rounds differently, and are therefore never stored.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import kv
from .prefix_disk import ChunkFiles, name_of


def cuts(tokens: Sequence[int], size: int, turn_ends: frozenset[int]) -> list[int]:
    """Positions after which a chunk ends, ascending; what follows the last one is the prompt's tail."""
    floor = max(1, size // 4)
    found: list[int] = []
    last = 0
    for position, token in enumerate(tokens, 1):
        length = position - last
        if length == size or (token in turn_ends and length >= floor):
            found.append(position)
            last = position
    return found


@dataclass(eq=False)
class Node:
    """One chunk: `parts` is the state it added, `end` the number of tokens up to and with it."""

    parent: "Node | None" = None
    tokens: tuple[int, ...] = ()
    parts: list[kv.Part] = field(default_factory=list)
    end: int = 0
    nbytes: int = 0
    name: bytes = b""
    """On disk."""
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)

    def path(self) -> "list[Node]":
        """The nodes from the first chunk to this one, without the root."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixCache:
    """Chunks of many conversations, shared where they begin alike, bounded by bytes, least recently used first."""

    def __init__(self, limit_bytes: int, files: ChunkFiles | None = None, name: bytes = b"") -> None:
        """
        :param files: where chunks go that are evicted, and where those are looked for that are not here.
        :param name: of the model there.
        """
        self.limit_bytes = limit_bytes
        self._files = files
        self.nbytes = 0
        self.hits = 0
        """Tokens that were found."""
        self.misses = 0
        """Tokens that had to be computed."""
        self.root = Node(name=name)
        # A node stands behind its children in this order, so the first one is always a leaf.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, tokens: Sequence[int], ends: Sequence[int]) -> Node:
        """The deepest stored chunk on the way through `tokens`, cut at `ends`; the root if there is none."""
        node = self.root
        for end in ends:
            key = tuple(tokens[node.end : end])
            child = node.children.get(key) or self._recall(node, key)
            if child is None:
                break
            node = child
        self._touch(node)
        self.hits += node.end
        self.misses += len(tokens) - node.end
        return node

    def add(self, parent: Node, tokens: Sequence[int], parts: list[kv.Part]) -> Node:
        """Store a chunk behind `parent`. What does not fit is handed back without being kept."""
        key = tuple(tokens)
        node = parent.children.get(key)
        if node is None:
            name = name_of(parent.name, key) if self._files else b""
            node = Node(parent, key, parts, parent.end + len(key), kv.nbytes(parts), name)
            if not self._holds(parent):
                self._write(node)
                return node
            parent.children[key] = node
            self._order[node] = None
            self.nbytes += node.nbytes
        self._touch(node)
        self._shrink()
        return node

    def save(self, seconds: float) -> None:
        """Put what is here on disk, the most recently used first, for so long."""
        end = time.monotonic() + seconds
        for node in reversed(self._order):
            if time.monotonic() < end:
                self._write(node)

    def _write(self, node: Node) -> None:
        if self._files is not None:
            self._files.save(node.name, node.parts)

    def _recall(self, parent: Node, tokens: tuple[int, ...]) -> Node | None:
        """A chunk that is on disk."""
        parts = self._files.load(name_of(parent.name, tokens)) if self._files else None
        return None if parts is None else self.add(parent, tokens, parts)

    def _holds(self, node: Node) -> bool:
        return node is self.root or node in self._order

    def _touch(self, node: Node) -> None:
        while node.parent is not None:
            if node in self._order:
                self._order.move_to_end(node)
            node = node.parent

    def _shrink(self) -> None:
        while self.nbytes > self.limit_bytes:
            node, _ = self._order.popitem(last=False)
            self.nbytes -= node.nbytes
            self._write(node)
            assert node.parent is not None
            del node.parent.children[node.tokens]
