"""The prompt cache: a tree of chunks of tokens, each with what it left in the layer caches.

Where a prompt is cut into chunks depends only on the tokens before the cut: after `size` tokens, or after an
end-of-turn token once `size // 4` tokens are together. A chunk is always computed alone, in one call, on top of
the chunks before it. So a chunk's state is a pure function of the tokens up to its end, whichever request
computed it and wherever that request ended, and a warm answer equals a cold one bit for bit. Decoded tokens
are computed one at a time, which rounds differently, and are therefore never stored.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import kv


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

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self.hits = 0
        """Tokens that were found."""
        self.misses = 0
        """Tokens that had to be computed."""
        self.root = Node()
        # A node stands behind its children in this order, so the first one is always a leaf.
        self._order: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, tokens: Sequence[int], ends: Sequence[int]) -> Node:
        """The deepest stored chunk on the way through `tokens`, cut at `ends`; the root if there is none."""
        node = self.root
        for end in ends:
            child = node.children.get(tuple(tokens[node.end : end]))
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
            node = Node(parent, key, parts, parent.end + len(key), kv.nbytes(parts))
            if not self._holds(parent):
                return node
            parent.children[key] = node
            self._order[node] = None
            self.nbytes += node.nbytes
        self._touch(node)
        self._shrink()
        return node

    def clear(self) -> None:
        self.root = Node()
        self._order.clear()
        self.nbytes = 0

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
            assert node.parent is not None
            del node.parent.children[node.tokens]
