"""Rows that are decoded together, one token each a step."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from . import kv
from .events import Event
from .model import ChatModel
from .row import Row
from .sampling import Sampler


def never() -> bool:
    return False


class Batch:
    """Decodes its rows. The next step is queued on the device before the tokens of the last one are read.

    Rows may join and leave between steps. A batch of one row uses the caches that the model makes, so that it
    computes exactly what a loop without batching does. How logits round depends on the number of rows and on
    their lengths: a request that wants the same tokens whatever runs beside it needs a batch of its own.
    """

    def __init__(self, model: ChatModel) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._caches: kv.Caches = []
        self._inputs = mx.array([], mx.uint32)
        """The tokens [B] drawn last; for a new row the last one of its prompt."""
        self.held = False
        """Whether those are still to be queued."""
        self._sampler: Sampler | None = None

    def join(self, rows: Sequence[Row], caches: list[kv.Caches]) -> None:
        """Add rows, each with the caches of its prompt but for the last token."""
        self._add(rows, caches, mx.array([row.request.prompt[-1] for row in rows], mx.uint32))

    def _add(self, rows: Sequence[Row], caches: list[kv.Caches], inputs: mx.array) -> None:
        if len(self.rows) > 1:
            kv.extend(self._caches, kv.merge(caches))
        else:
            self._caches = _together([self._caches, *caches] if self.rows else caches)
        self._inputs = mx.concatenate([self._inputs, inputs])
        self.rows += rows
        self._sampler = None

    def split(self, request: str) -> "Batch":
        """Take the rows of a request out, into a batch of their own that stands where they stand."""
        places = [n for n, row in enumerate(self.rows) if row.request.id == request]
        apart = Batch(self._model)
        apart.rows = [self.rows[n] for n in places]
        apart._caches = _together([kv.single(self._caches, n) for n in places])
        apart._inputs = self._inputs[mx.array(places, mx.uint32)]
        self.leave(request)
        return apart

    def absorb(self, other: "Batch") -> None:
        """Add the rows of another batch, which is not used any more."""
        rows = range(len(other.rows))
        caches = [other._caches] if len(rows) == 1 else [kv.single(other._caches, n) for n in rows]
        self._add(other.rows, caches, other._inputs)

    def leave(self, request: str) -> None:
        """Drop the rows of a request."""
        self._keep([n for n, row in enumerate(self.rows) if row.request.id != request])

    def step(self, recalled: Callable[[], bool] = never) -> list[Event]:
        """Queue one more token for every row, then read the ones queued before.

        :param recalled: asked when they are ready to be queued; if the device is to be given back, the next step
            does it, and whoever waits has no token to wait for that nobody reads yet.
        """
        if self.held:
            mx.async_eval(self._inputs)
            self.held = False
        pending = [row.drawn > 0 for row in self.rows]
        inputs, likelihoods = self._inputs, [row.likelihood for row in self.rows]
        if all(row.last for row in self.rows):
            events = self._read(inputs, pending, likelihoods)
            self._keep([])
            return events
        logits = self._model.net(inputs[:, None], cache=self._caches)[:, -1, :].astype(mx.float32)
        # A grammar's mask depends on the token before it, so that one is read while the logits are computed.
        blind = not any(row.waits for row in self.rows)
        if blind:
            self._draw(logits, pending, recalled)
        elif not recalled():
            mx.async_eval(logits)
        events = self._read(inputs, pending, likelihoods)
        alive = [n for n, row in enumerate(self.rows) if not row.over]
        pending = [pending[n] for n in alive]
        if not blind:
            logits = logits if len(alive) == len(self.rows) else logits[mx.array(alive, mx.uint32)]
        self._keep(alive)
        if not blind and alive:
            self._draw(logits, pending, recalled)
        return events

    def _draw(self, logits: mx.array, pending: list[bool], recalled: Callable[[], bool]) -> None:
        """Draw a token for every row from logits fp32 [B, V]; `pending` rows have one that is not counted yet."""
        rows = self.rows
        for n, row in enumerate(rows):
            if pending[n]:
                row.count(self._inputs[n])
        if self._sampler is None:
            self._sampler = Sampler([(row.request.sampling, row.key) for row in rows])
        adjusted = logits
        if any(row.special for row in rows):
            adjusted = mx.stack(
                [row.adjust(logits[n]) if row.special else logits[n] for n, row in enumerate(rows)]
            )
        self._inputs = self._sampler(adjusted, [row.drawn for row in rows])
        self.held = recalled()
        if not self.held:
            mx.async_eval(self._inputs)
        for n, row in enumerate(rows):
            row.weigh(logits[n], self._inputs[n])
            row.drawn += 1

    def _read(self, inputs: mx.array, pending: list[bool], likelihoods: list[Any]) -> list[Event]:
        tokens: Any = inputs.tolist()
        events: list[Event] = []
        for row, token, likelihood, drawn in zip(self.rows, tokens, likelihoods, pending, strict=True):
            if drawn:
                events += row.take(token, likelihood)
        return events

    def _keep(self, alive: list[int]) -> None:
        if len(alive) == len(self.rows):
            return
        self.rows = [self.rows[n] for n in alive]
        self._inputs = self._inputs[mx.array(alive, mx.uint32)]
        self._sampler = None
        if not alive:
            self._caches = []
        elif len(alive) == 1:
            self._caches = kv.single(self._caches, alive[0])
        else:
            kv.keep(self._caches, alive)


def _together(rows: list[kv.Caches]) -> kv.Caches:
    return rows[0] if len(rows) == 1 else kv.merge(rows)
