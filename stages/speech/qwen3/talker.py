"""The talker: one transformer step per frame → code 0 and the hidden state that the predictor starts from.

Here are the prompts: their rows [1, L, H] go through all layers at once, into preallocated caches
[2, kv_heads, S, D] of each layer, S a bucket of 256, 512, 1024 … Frames follow in `talker_step`.
Nothing is waited for here.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from ...device import compiled, on_cpu
from . import kernels, launch
from .config import ModelConfig
from .layers import Layer
from .ops import CAUSAL, bias, rotary
from .sampling import Controls, Sampling, controls, request_key
from .talker_step import CodeZero, KernelStep, PlainStep, TalkerState
from .weights import Weights

BUCKET = 256
"""Positions of the smallest cache on a GPU; larger ones double."""
PROMPT_ROWS = 32
"""Rows of the smallest prompt on a GPU; longer ones are padded to the next double, so that few traces exist."""
WARM = 1024
"""Positions up to which every trace is run before the first request."""
PREFIX_ROWS = 32
"""A prefix shorter than this is not worth a pass of its own."""


class Prefix(NamedTuple):
    """What the first rows of a prompt leave in the cache; the same for every prompt that begins with them."""

    cache: list[mx.array]
    """Keys and values of each layer, [2, kv_heads, S, D]."""
    length: int


class Talker:
    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        talker = config.talker_config
        self.embedding = weights.table("talker.model.codec_embedding", talker.vocab_size, talker.hidden_size)
        self.first = CodeZero(config, weights)
        layers = [
            Layer.build(weights, f"talker.model.layers.{i}", talker) for i in range(talker.num_hidden_layers)
        ]
        self._layers, (self.first.head,), stack = kernels.stack(layers, [self.first.head], self.first.norm)
        self._theta = talker.rope_theta
        self._max_positions = talker.max_position_embeddings
        self._dim = talker.head_dim
        self._start = {flag: compiled(self._starter(flag)) for flag in (False, True)}
        self._prefix = compiled(self._prefiller)
        self._resume = {flag: compiled(self._resumer(flag)) for flag in (False, True)}
        stack = stack if talker.vocab_size <= kernels.CHOICES else None
        self._step = (
            KernelStep(stack, self.first, rotary(mx.arange(self._max_positions), self._dim, self._theta))
            if stack
            else PlainStep(self._layers, self.first, self._dim, self._theta)
        )
        self.widest = kernels.widest(stack)
        """Requests whose frames may be computed together."""
        room = (
            (len(self._layers), 2, talker.num_key_value_heads, kernels.RECENT, self._dim) if stack else (0,)
        )
        self._recent = mx.zeros(room, weights.dtype)

    def nucleus(self, sampling: Sampling) -> bool:
        """Whether the frames of such a request have a trace of their own: others are not computed with them."""
        return kernels.nucleus(sampling, self.first.vocabulary)

    def start(
        self, prefill: mx.array, sampling: Sampling, seed: int
    ) -> tuple[TalkerState, mx.array, mx.array]:
        """Prompt rows [1, L, H] → (state, code0 int32 [1, 1], hidden [1, 1, H]) of frame 0."""
        length, rows = prefill.shape[1], self._padded(prefill)
        control, key = controls(sampling, self.first.vocabulary), request_key(seed)
        position, frame = mx.array([length], mx.int32), mx.array([0], mx.int32)
        nucleus = self.nucleus(sampling)
        cache, seen, code, hidden = self._start[nucleus](rows, position, frame, key, control)
        own = cache, position, seen, frame, key, control, nucleus, length
        return TalkerState(*own, self._recent, position, length), code, hidden

    def prefix(self, rows: mx.array) -> Prefix:
        """The first rows of a prompt, [1, L, H], in a pass of their own."""
        length = rows.shape[1]
        return Prefix(self._prefix(self._padded(rows)), length)

    def resume(
        self, prefix: Prefix, rows: mx.array, sampling: Sampling, seed: int
    ) -> tuple[TalkerState, mx.array, mx.array]:
        """`start` for a prompt of `prefix` and rows [1, L, H].

        The result does not depend on when the prefix was computed. It differs in rounding from that of one pass.
        """
        padded, length = self._padded(rows), prefix.length + rows.shape[1]
        size = self._bucket(max(prefix.cache[0].shape[2], prefix.length + padded.shape[0], length + 1))
        control, key = controls(sampling, self.first.vocabulary), request_key(seed)
        nucleus = self.nucleus(sampling)
        first, last = mx.array([prefix.length], mx.int32), mx.array([rows.shape[1] - 1], mx.int32)
        position, frame = mx.array([length], mx.int32), mx.array([0], mx.int32)
        cache, seen, code, hidden = self._resume[nucleus](
            self._grow(prefix.cache, size), padded, first, last, frame, key, control
        )
        own = cache, position, seen, frame, key, control, nucleus, length
        return TalkerState(*own, self._recent, position, length), code, hidden

    def _padded(self, rows: mx.array) -> mx.array:
        """[1, L, H] → [L', H]: the same rows, and zeros up to a size that has a trace."""
        length = rows.shape[1]
        size = length if on_cpu() else doubled(PROMPT_ROWS, length)
        return mx.pad(rows[0], [(0, size - length), (0, 0)])

    def step(
        self, state: TalkerState, embedding: mx.array, text: mx.array
    ) -> tuple[TalkerState, mx.array, mx.array]:
        """One frame: embedding and text [1, 1, H] → (state, code0 int32 [1, 1], hidden [1, 1, H])."""
        return self.steps([state], [embedding], [text])[0]

    def steps(
        self, states: list[TalkerState], embeddings: list[mx.array], texts: list[mx.array]
    ) -> list[tuple[TalkerState, mx.array, mx.array]]:
        """One frame of each of several requests, computed together; as `step` for each. Their `nucleus` is one."""
        sizes = [self._bucket(one.filled + 1) for one in states]
        if self._step.alike:
            sizes = [max(sizes)] * len(sizes)
        grown = [
            one._replace(cache=self._grow(one.cache, size)) for one, size in zip(states, sizes, strict=True)
        ]
        return self._step(grown, embeddings, texts)

    def warming(
        self, sampling: Sampling, width: int, rows: int, *, prefixes: bool
    ) -> list[Callable[[], list[mx.array]]]:
        """One call for each trace that requests with `sampling` need up to `WARM` positions.

        :param rows: requests computed together, at most.
        :param prefixes: whether their prompts begin with long prefixes.
        """
        row = mx.zeros((1, 1, width), self.embedding.dtype)

        def started(length: int) -> list[mx.array]:
            state, code, hidden = self.start(mx.repeat(row, length, axis=1), sampling, 0)
            return [code, hidden, *state.cache]

        def stepped(size: int, wide: int) -> list[mx.array]:
            state, _, _ = self.start(mx.repeat(row, PROMPT_ROWS, axis=1), sampling, 0)
            state = state._replace(cache=self._grow(state.cache, size))
            state, code, hidden = self.steps([state] * wide, [row] * wide, [row] * wide)[0]
            if isinstance(self._step, KernelStep):
                state = self._step.settled(state)
            return [code, hidden, *state.cache]

        def resumed(length: int, more: int) -> list[mx.array]:
            prefix = self.prefix(mx.repeat(row, length, axis=1))
            state, code, hidden = self.resume(prefix, mx.repeat(row, more, axis=1), sampling, 0)
            return [code, hidden, *state.cache]

        if on_cpu():
            steps, pairs = [partial(stepped, BUCKET, 1)], [(PREFIX_ROWS, PROMPT_ROWS)]
        else:
            prompts = [PROMPT_ROWS << i for i in range((WARM // PROMPT_ROWS).bit_length() - 1)]
            steps = [partial(started, length) for length in prompts]
            sizes = [BUCKET << i for i in range((WARM // BUCKET).bit_length())]
            steps += [
                partial(stepped, size, wide)
                for size in sizes
                for wide in launch.widths(min(rows, self.widest))
            ]
            pairs = [(length, more) for length in prompts for more in prompts if length + more <= WARM]
        return [*steps, *(partial(resumed, *pair) for pair in pairs if prefixes)]

    def _starter(self, nucleus: bool) -> Callable[..., tuple[list[mx.array], mx.array, mx.array, mx.array]]:
        def start(
            rows: mx.array, length: mx.array, frame: mx.array, key: mx.array, control: Controls
        ) -> tuple[list[mx.array], mx.array, mx.array, mx.array]:
            x, cache = self._through(rows)
            last = mx.take(x, length - 1, axis=0)
            return self._step.begin(cache), *self._frame_0(last, frame, key, control, nucleus)

        return start

    def _frame_0(
        self, x: mx.array, frame: mx.array, key: mx.array, control: Controls, nucleus: bool
    ) -> tuple[mx.array, mx.array, mx.array]:
        """The prompt's last row [1, H] → seen, code0, hidden [1, 1, H]."""
        hidden = self.first.hidden(x)
        seen = mx.zeros((1, self.first.vocabulary), mx.bool_)
        code, seen = self.first.choose(self.first.logits(hidden), seen, frame, key, control, nucleus)
        return seen, code, hidden[None]

    def _prefiller(self, rows: mx.array) -> list[mx.array]:
        return self._through(rows)[1]

    def _through(self, x: mx.array) -> tuple[mx.array, list[mx.array]]:
        """Rows [L, H] at positions 0… through all layers → (rows before the last norm, caches of L positions)."""
        cos, sin = rotary(mx.arange(x.shape[0]), self._dim, self._theta)
        cache: list[mx.array] = []
        for layer in self._layers:
            queries, keys_values = layer.project(x, layer.turn(cos, sin))
            cache.append(keys_values)
            x = layer.attend(x, queries, keys_values, CAUSAL)
        return x, cache

    def _resumer(self, nucleus: bool) -> Callable[..., tuple[list[mx.array], mx.array, mx.array, mx.array]]:
        def resume(
            cache: list[mx.array],
            rows: mx.array,
            first: mx.array,
            last: mx.array,
            frame: mx.array,
            key: mx.array,
            control: Controls,
        ) -> tuple[list[mx.array], mx.array, mx.array, mx.array]:
            positions = first + mx.arange(rows.shape[0])
            cos, sin = rotary(positions, self._dim, self._theta)
            unseen = bias(mx.arange(cache[0].shape[2])[None] <= positions[:, None], rows.dtype)
            x, written = rows, list[mx.array]()
            for past, layer in zip(cache, self._layers, strict=True):
                queries, keys_values = layer.project(x, layer.turn(cos, sin))
                now = mx.slice_update(past, keys_values, first, axes=(2,))
                written.append(now)
                x = layer.attend(x, queries, now, unseen)
            return self._step.begin(written), *self._frame_0(
                mx.take(x, last, axis=0), frame, key, control, nucleus
            )

        return resume

    def _bucket(self, positions: int) -> int:
        if positions > self._max_positions:
            raise ValueError(
                f"The talker has {self._max_positions} positions and all are used: end the request."
            )
        # Nothing is traced on the CPU, so caches need no few sizes there.
        return doubled(64 if on_cpu() else BUCKET, positions)

    def _grow(self, cache: list[mx.array], size: int) -> list[mx.array]:
        *shape, filled, dim = cache[0].shape
        if size <= filled:
            return cache
        room = mx.zeros((*shape, size - filled, dim), cache[0].dtype)
        return [mx.concatenate([part, room], axis=-2) for part in cache]


def doubled(size: int, needed: int) -> int:
    """`size` times a power of two, `needed` at least."""
    while size < needed:
        size *= 2
    return size
