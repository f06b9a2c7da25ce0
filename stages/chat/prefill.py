"""Reads a prompt, a chunk or a part of one a slice, and finds or leaves its chunks in the prompt cache.

What is computed in one pass decides how it rounds. So a chunk is cut into passes of one size, which is set when
the model is loaded and never changed: a reply depends on what was asked, not on how busy the device was.
"""

import time
from dataclasses import dataclass, field

import mlx.core as mx

from . import kv
from .events import Request, Started
from .model import ChatModel
from .prefix import Node, PrefixCache, cuts

MOST = 3 / 4
"""Of a slice: when so much of it is computed, the next one may be queued. What is left keeps the device busy until
that arrives, and is all that it has to finish before it can be given back."""


@dataclass
class _Slice:
    """What one pass leaves, up to `end`: lazily, until it is queued."""

    end: int
    states: list[kv.Part]
    """Of the layer caches, while it is not queued."""
    parts: list[kv.Part] | None
    """For the store, where it ends a chunk."""
    most: list[mx.array] = field(default_factory=list[mx.array])
    """There when most of it is."""
    last: list[mx.array] = field(default_factory=list[mx.array])
    """There when all of it is."""

    def queue(self) -> None:
        layers = list(zip(self.states, self.parts or [None] * len(self.states), strict=True))
        early = max(1, int(MOST * len(layers)))
        self.most, self.last = kv.queue(layers[:early]), kv.queue(layers[early:])
        self.states = []  # or the next pass could not write where this one wrote


class Reader:
    """One model's way through a prompt, up to its last token, which the first decoding step takes in.

    The host builds a slice while the device computes the one before. It is queued by the next call: between two
    calls the device has only the end of a slice to finish.
    """

    def __init__(
        self, model: ChatModel, store: PrefixCache, prompt: list[int], chunk: int, slice_tokens: int | None
    ) -> None:
        self.caches = model.new_caches()
        """Of the whole prompt but for its last token, once `finish` was called and it is `ready`."""
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
        """Tokens found or queued."""
        self._built: _Slice | None = None
        self._queued: list[_Slice] = []
        """Those of which the last part may still be on the device."""

    @property
    def ready(self) -> bool:
        """Whether all is queued."""
        return self._at == self._end

    def queue(self) -> None:
        """Have the device compute the next slice, after what the store has by now, and build the one behind it."""
        found = self._store.find(self._prompt, self._cuts)
        if found.end > self._at:
            self._take(found)
        if self.ready:
            return
        one = self._built or self._build()
        one.queue()
        self._queued.append(one)
        self._at = one.end
        self._built = None if self.ready else self._build()

    def wait(self) -> None:
        """Until the device is through most of what is queued."""
        if self._queued:
            kv.evaluate(self._queued[-1].most)
            self._keep(self._queued[:-1])
            del self._queued[:-1]

    def finish(self) -> None:
        """Until all is there that is queued."""
        kv.evaluate([one.last or one.most for one in self._queued])
        self._keep(self._queued)
        self._queued = []

    def _build(self) -> _Slice:
        begin = max((cut for cut in self._cuts if cut <= self._at), default=0)
        end = next((cut for cut in self._cuts if cut > self._at), self._end)
        stop = min(self._at + self._slice, end)
        self._model.net(mx.array([self._prompt[self._at : stop]]), cache=self.caches)
        parts = kv.cut(self.caches, begin, stop) if stop in self._cuts else None
        return _Slice(stop, [leaf.state for leaf in kv.leaves(self.caches)], parts)

    def _keep(self, there: list[_Slice]) -> None:
        for one in there:
            if one.parts is not None:
                begin = self._node.end
                self._node = self._store.add(self._node, self._prompt[begin : one.end], one.parts)

    def _take(self, node: Node) -> None:
        self.caches = self._model.new_caches()
        kv.restore(self.caches, [one.parts for one in node.path()])
        self.cached += node.end - self._at
        self._node, self._at = node, node.end
        self._built, self._queued = None, []


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
        """Queue one slice and wait for most of it; for all of it, if it is the last."""
        started = time.perf_counter()
        for reader in self.readers:
            if not reader.ready:
                reader.queue()
        for reader in self.readers:
            reader.finish() if self.ready else reader.wait()
        self.seconds += time.perf_counter() - started

    def finish(self) -> None:
        """Wait for the rest of the slice."""
        started = time.perf_counter()
        for reader in self.readers:
            reader.finish()
        self.seconds += time.perf_counter() - started

    def started(self) -> Started:
        prompt = len(self.request.prompt)
        return Started(self.request.id, prompt, self.readers[0].cached, self.seconds)
