"""Reads a prompt, a chunk or a part of one a slice, and finds or leaves its chunks in the prompt cache.

What is computed in one pass decides how it rounds. So a chunk is cut into passes of one size, which is set when
the model is loaded and never changed: a reply depends on what was asked, not on how busy the device was.
"""

import time

import mlx.core as mx

from . import kv
from .events import Request, Started
from .model import ChatModel
from .prefix import Node, PrefixCache, cuts

SMALLEST_SLICE = 16
"""Tokens; a pass of fewer takes hardly less time."""


def measure_slice(model: ChatModel, chunk: int, most_s: float) -> int:
    """The most tokens, of `chunk` and its halves, that are read in one pass within so many seconds."""
    sizes = [chunk]
    while sizes[-1] // 2 >= SMALLEST_SLICE:
        sizes.append(sizes[-1] // 2)
    best = sizes.pop()
    while sizes and _pass_s(model, sizes[-1]) <= most_s:
        best = sizes.pop()
    return best


def _pass_s(model: ChatModel, tokens: int) -> float:
    """Seconds that a pass takes; the first one, which makes kernels, is not counted."""
    seconds = 0.0
    for _ in range(2):
        caches, started = model.new_caches(), time.perf_counter()
        model.net(mx.zeros((1, tokens), mx.uint32), cache=caches)
        kv.evaluate([leaf.state for leaf in kv.leaves(caches)])
        seconds = time.perf_counter() - started
    return seconds


class Reader:
    """One model's way through a prompt, up to its last token, which the first decoding step takes in."""

    def __init__(
        self, model: ChatModel, store: PrefixCache, prompt: list[int], chunk: int, slice_tokens: int | None
    ) -> None:
        self.caches = model.new_caches()
        self.cached = 0
        """How many tokens were found and not computed."""
        self._model = model
        self._store = store
        self._prompt = prompt
        self._end = len(prompt) - 1
        self._slice = slice_tokens or chunk
        self._cuts = cuts(prompt[: self._end], chunk, model.turn_ends)
        self._node: Node = store.root
        self._at = 0

    @property
    def ready(self) -> bool:
        return self._at == self._end

    def advance(self) -> None:
        """Compute the next slice, after what the store has by now."""
        found = self._store.find(self._prompt, self._cuts)
        if found.end > self._at:
            self._take(found)
        if self.ready:
            return
        end = next((cut for cut in self._cuts if cut > self._at), self._end)
        stop = min(self._at + self._slice, end)
        self._model.net(mx.array([self._prompt[self._at : stop]]), cache=self.caches)
        if stop in self._cuts:
            begin = self._node.end
            parts = kv.cut(self.caches, begin, stop)
            kv.evaluate(parts, [leaf.state for leaf in kv.leaves(self.caches)])
            self._node = self._store.add(self._node, self._prompt[begin:stop], parts)
        else:
            kv.evaluate([leaf.state for leaf in kv.leaves(self.caches)])
        self._at = stop

    def _take(self, node: Node) -> None:
        self.caches = self._model.new_caches()
        kv.restore(self.caches, [one.parts for one in node.path()])
        self.cached += node.end - self._at
        self._node, self._at = node, node.end


class Prefill:
    """A request whose prompt is being read, by the model and, if there is one, by the draft model."""

    def __init__(self, request: Request, readers: list[Reader]) -> None:
        self.request = request
        self.readers = readers
        self.seconds = 0.0

    @property
    def ready(self) -> bool:
        return all(reader.ready for reader in self.readers)

    def step(self) -> None:
        """One slice."""
        started = time.perf_counter()
        for reader in self.readers:
            if not reader.ready:
                reader.advance()
        self.seconds += time.perf_counter() - started

    def started(self) -> Started:
        prompt = len(self.request.prompt)
        return Started(self.request.id, prompt, self.readers[0].cached, self.seconds)
