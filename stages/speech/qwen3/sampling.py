"""Choosing a code from logits, on the device, in fp32, with one stateless key per request.

Order and meaning of the processors are those of the official generation: repetition penalty over the whole
history, minimum length, suppressed ids, then (only when sampling) temperature, top-k keeping ties, top-p.
A code is argmax(logits + temperature * Gumbel noise), which samples softmax(logits / temperature) exactly.

Requests that are computed together are the B rows of every array here; none of them sees another.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import msgspec

from .ops import joined


class Sampling(msgspec.Struct, frozen=True):
    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    """0 keeps every id."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    """The predictor ignores it, as the official code does."""

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature <= 0

    @property
    def nucleus(self) -> bool:
        """Whether the top-p trace is needed."""
        return not self.greedy and self.top_p < 1


class Controls(NamedTuple):
    """A `Sampling` on the device, so that one trace serves all settings: [B, 1] each."""

    noise: mx.array
    """float32: the temperature, or 0 when greedy."""
    temperature: mx.array
    """float32; 1 when greedy."""
    rank: mx.array
    """int32: place, in ascending order, of the smallest logit that top-k keeps."""
    top_p: mx.array
    penalty: mx.array


@lru_cache(maxsize=256)
def controls(sampling: Sampling, vocabulary: int) -> Controls:
    """`sampling` for one request with logits of `vocabulary` ids."""
    kept = vocabulary if sampling.top_k <= 0 else min(sampling.top_k, vocabulary)
    made = Controls(
        mx.array([[0.0 if sampling.greedy else sampling.temperature]], mx.float32),
        mx.array([[1.0 if sampling.greedy else sampling.temperature]], mx.float32),
        mx.array([[vocabulary - kept]], mx.int32),
        mx.array([[sampling.top_p]], mx.float32),
        mx.array([[sampling.repetition_penalty]], mx.float32),
    )
    mx.eval(made)
    return made


def stacked(rows: Sequence[Controls]) -> Controls:
    """Those of several requests."""
    columns: list[list[mx.array]] = [list(column) for column in zip(*rows, strict=True)]
    return Controls(*(joined(column) for column in columns))


def request_key(seed: int) -> mx.array:
    """uint32 [1, 2]: the key of a request, hashed once so that neighbouring seeds share nothing."""
    return mx.random.split(mx.random.key(seed & 0xFFFF_FFFF_FFFF_FFFF))[:1]


def noise(
    key: mx.array, frame: mx.array, first: int, groups: int, vocabulary: int, control: Controls
) -> mx.array:
    """Gumbel noise times the temperature (0 when greedy), float32 [groups, B, vocabulary], for the code groups of
    one frame from `first` on; key uint32 [B, 2], frame int32 [B].

    The key of a draw is the request's key xor (frame, group): distinct for every draw, whatever ran before.
    """
    shape = groups, frame.shape[0]
    group = mx.arange(first, first + groups, dtype=mx.uint32)[:, None]
    place = [mx.broadcast_to(part, shape) for part in (frame.astype(mx.uint32), group)]
    folded = (key ^ mx.stack(place, axis=-1)).reshape(-1, 2)

    def draw(one: mx.array) -> mx.array:
        return mx.random.gumbel((vocabulary,), key=one)

    # A uniform draw of exactly 0 gives -inf, which would turn into NaN when greedy; the next smallest gives -3.1.
    return mx.maximum(mx.vmap(draw)(folded), -4).reshape(*shape, vocabulary) * control.noise


def penalise(logits: mx.array, seen: mx.array, penalty: mx.array) -> mx.array:
    """Repetition penalty [B, 1] on float32 [B, V] for the ids marked in bool `seen` [B, V]."""
    return mx.where(seen, mx.where(logits < 0, logits * penalty, logits / penalty), logits)


def choose(logits: mx.array, drawn: mx.array, control: Controls, nucleus: bool) -> mx.array:
    """One id a row, int32 [B, 1], from float32 logits [B, V] (suppressed ids are -inf) and scaled noise [B, V]."""
    return mx.argmax(kept(logits, control, nucleus) + drawn, axis=-1, keepdims=True).astype(mx.int32)


def kept(logits: mx.array, control: Controls, nucleus: bool) -> mx.array:
    """Top-k and top-p: float32 [B, V] → the same, -inf where dropped. The temperature is not applied yet.

    `nucleus` is part of the trace, not of the data: top-p costs more operations. Ids that tie with the last one
    kept by top-p stay, where the official code keeps those that its sort happens to put last.
    """
    ordered = mx.sort(logits, axis=-1)
    threshold = mx.take_along_axis(ordered, control.rank, axis=-1)
    if nucleus:
        threshold = mx.maximum(threshold, _floor(ordered, threshold, control))
    return mx.where(logits < threshold, -mx.inf, logits)


def _floor(ordered: mx.array, threshold: mx.array, control: Controls) -> mx.array:
    """The smallest logit that top-p keeps of those that top-k kept: [B, 1], from ascending logits [B, V].

    Dropped is the ascending tail whose cumulative probability is <= 1 - top_p; the largest id always stays.
    """
    ranked = mx.where(ordered < threshold, -mx.inf, ordered)
    tail = mx.cumsum(mx.softmax(ranked / control.temperature, axis=-1), axis=-1) <= 1 - control.top_p
    last = mx.arange(ordered.shape[-1]) == ordered.shape[-1] - 1
    return mx.min(mx.where(tail & ~last, mx.inf, ranked), axis=-1, keepdims=True)
