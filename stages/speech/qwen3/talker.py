"""The talker: one transformer step per frame → code 0 and the hidden state that the predictor starts from.

Per frame: x = sum of the last frame's 16 code embeddings + the next text row  [1, 1, H]
           layers over preallocated caches [2, kv_heads, S, D], S a bucket of 256, 512, 1024 …
           code 0 sampled from [1, V] inside the same trace.
Nothing is evaluated here: every function returns lazy arrays.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from ...device import compiled, on_cpu
from .config import ModelConfig
from .layers import Layer
from .ops import CAUSAL, apart, attention, bias, joined, rms_norm, rotary
from .sampling import Controls, Sampling, choose, controls, noise, penalise, request_key, stacked
from .weights import Linear, Weights

BUCKET = 256
"""Positions of the smallest cache on a GPU; larger ones double."""
PROMPT_ROWS = 32
"""Rows of the smallest prompt on a GPU; longer ones are padded to the next double, so that few traces exist."""
WARM = 1024
"""Positions up to which every trace is run before the first request."""
PREFIX_ROWS = 32
"""A prefix shorter than this is not worth a pass of its own."""
MIN_FRAMES = 2
"""EOS cannot be chosen for the first two frames (`min_new_tokens` of the official code)."""


class TalkerState(NamedTuple):
    """One request's state, on the device. Rebind it at each step: the old cache is then reused in place."""

    cache: list[mx.array]
    """Keys and values of each layer, [2, kv_heads, S, D]."""
    position: mx.array
    """int32 [1]: positions filled."""
    seen: mx.array
    """bool [1, V]: code-0 ids chosen so far."""
    frame: mx.array
    """int32 [1]: index of the frame whose code 0 was chosen last."""
    key: mx.array
    """uint32 [1, 2]."""
    control: Controls
    nucleus: bool
    filled: int
    """`position` as the host knows it."""


class Prefix(NamedTuple):
    """What the first rows of a prompt leave in the cache; the same for every prompt that begins with them."""

    cache: list[mx.array]
    """Keys and values of each layer, [2, kv_heads, S, D]."""
    length: int


class Talker:
    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        talker = config.talker_config
        self.vocabulary = talker.vocab_size
        self.embedding = weights.table("talker.model.codec_embedding", talker.vocab_size, talker.hidden_size)
        self._layers = [
            Layer.build(weights, f"talker.model.layers.{i}", talker) for i in range(talker.num_hidden_layers)
        ]
        self._norm = weights.array("talker.model.norm.weight", talker.hidden_size)
        self._head: Linear = weights.linear("talker.codec_head", talker.hidden_size, talker.vocab_size)
        self._eps, self._theta = talker.rms_norm_eps, talker.rope_theta
        self._max_positions = talker.max_position_embeddings
        self._heads, self._dim = talker.num_key_value_heads, talker.head_dim
        self._ids = mx.arange(talker.vocab_size)
        allowed = self._ids < talker.vocab_size - 1024
        self._without_end = bias(allowed, mx.float32)
        self._with_end = bias(allowed | (self._ids == talker.codec_eos_token_id), mx.float32)
        mx.eval(self._ids, self._without_end, self._with_end)
        self._start = {flag: compiled(self._starter(flag)) for flag in (False, True)}
        self._prefix = compiled(self._prefiller)
        self._resume = {flag: compiled(self._resumer(flag)) for flag in (False, True)}
        self._step = {flag: compiled(self._stepper(flag)) for flag in (False, True)}

    def start(
        self, prefill: mx.array, sampling: Sampling, seed: int
    ) -> tuple[TalkerState, mx.array, mx.array]:
        """Prompt rows [1, L, H] → (state, code0 int32 [1, 1], hidden [1, 1, H]) of frame 0."""
        length, rows = prefill.shape[1], self._padded(prefill)
        control, key = controls(sampling, self.vocabulary), request_key(seed)
        position, frame = mx.array([length], mx.int32), mx.array([0], mx.int32)
        cache, seen, code, hidden = self._start[sampling.nucleus](rows, position, frame, key, control)
        cache = self._grow(cache, self._bucket(length + 1))
        state = TalkerState(cache, position, seen, frame, key, control, sampling.nucleus, length)
        return state, code, hidden

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
        control, key = controls(sampling, self.vocabulary), request_key(seed)
        first, last = mx.array([prefix.length], mx.int32), mx.array([rows.shape[1] - 1], mx.int32)
        position, frame = mx.array([length], mx.int32), mx.array([0], mx.int32)
        cache, seen, code, hidden = self._resume[sampling.nucleus](
            self._grow(prefix.cache, size), padded, first, last, frame, key, control
        )
        return TalkerState(cache, position, seen, frame, key, control, sampling.nucleus, length), code, hidden

    def _padded(self, rows: mx.array) -> mx.array:
        """[1, L, H] → [L', H]: the same rows, and zeros up to a size that has a trace."""
        length = rows.shape[1]
        size = length if on_cpu() else _doubled(PROMPT_ROWS, length)
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
        rows = [(self._grow(one.cache, self._bucket(one.filled + 1)), *one[1:6]) for one in states]
        made = self._step[states[0].nucleus](rows, embeddings, texts)
        return [
            (
                one._replace(cache=cache, position=position, seen=seen, frame=frame, filled=one.filled + 1),
                *out,
            )
            for one, (cache, position, seen, frame, *out) in zip(states, made, strict=True)
        ]

    def warming(
        self, sampling: Sampling, width: int, *, prefixes: bool
    ) -> list[Callable[[], list[mx.array]]]:
        """One call for each trace that requests with `sampling` need up to `WARM` positions.

        :param prefixes: whether their prompts begin with long prefixes.
        """
        row = mx.zeros((1, 1, width), self.embedding.dtype)

        def started(length: int) -> list[mx.array]:
            state, code, hidden = self.start(mx.repeat(row, length, axis=1), sampling, 0)
            return [code, hidden, *state.cache]

        def stepped(size: int) -> list[mx.array]:
            state, _, _ = self.start(mx.repeat(row, PROMPT_ROWS, axis=1), sampling, 0)
            state = state._replace(cache=self._grow(state.cache, size))
            state, code, hidden = self.step(state, row, row)
            return [code, hidden, *state.cache]

        def resumed(length: int, more: int) -> list[mx.array]:
            prefix = self.prefix(mx.repeat(row, length, axis=1))
            state, code, hidden = self.resume(prefix, mx.repeat(row, more, axis=1), sampling, 0)
            return [code, hidden, *state.cache]

        if on_cpu():
            steps, pairs = [partial(stepped, BUCKET)], [(PREFIX_ROWS, PROMPT_ROWS)]
        else:
            prompts = [PROMPT_ROWS << i for i in range((WARM // PROMPT_ROWS).bit_length() - 1)]
            steps = [partial(started, length) for length in prompts]
            steps += [partial(stepped, BUCKET << i) for i in range((WARM // BUCKET).bit_length())]
            pairs = [(length, more) for length in prompts for more in prompts if length + more <= WARM]
        return [*steps, *(partial(resumed, *pair) for pair in pairs if prefixes)]

    def logits(self, hidden: mx.array) -> mx.array:
        """hidden rows [N, H] → float32 [N, V], as the head gives them."""
        return self._head(hidden).astype(mx.float32)

    def admissible(self, logits: mx.array, seen: mx.array, frame: mx.array, control: Controls) -> mx.array:
        """Repetition penalty, minimum length, suppressed ids: float32 [B, V] → [B, V], -inf where barred."""
        allowed = mx.where(frame[:, None] < MIN_FRAMES, self._without_end, self._with_end)
        return penalise(logits, seen, control.penalty) + allowed

    def _starter(self, nucleus: bool) -> Callable[..., tuple[list[mx.array], mx.array, mx.array, mx.array]]:
        def start(
            rows: mx.array, length: mx.array, frame: mx.array, key: mx.array, control: Controls
        ) -> tuple[list[mx.array], mx.array, mx.array, mx.array]:
            x, cache = self._through(rows)
            hidden = rms_norm(mx.take(x, length - 1, axis=0), self._norm, self._eps)
            seen = mx.zeros((1, self.vocabulary), mx.bool_)
            code, seen = self._choose(hidden, seen, frame, key, control, nucleus)
            return cache, seen, code, hidden[None]

        return start

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
            hidden = rms_norm(mx.take(x, last, axis=0), self._norm, self._eps)
            seen = mx.zeros((1, self.vocabulary), mx.bool_)
            code, seen = self._choose(hidden, seen, frame, key, control, nucleus)
            return written, seen, code, hidden[None]

        return resume

    def _stepper(self, nucleus: bool) -> Callable[..., list[Any]]:
        """Products of all rows at once; attention one by one, over each request's own cache."""

        def step(rows: list[Any], embeddings: list[mx.array], texts: list[mx.array]) -> list[Any]:
            caches, positions, seen, frames, seeds, control = zip(*rows, strict=True)
            batch = len(rows)
            x = (joined(embeddings) + joined(texts))[:, 0]
            cos, sin = rotary(joined(positions), self._dim, self._theta)
            unseen = [
                bias(mx.arange(cache[0].shape[2]) <= position, x.dtype)[None]
                for cache, position in zip(caches, positions, strict=True)
            ]
            written: list[list[mx.array]] = [[] for _ in rows]
            for i, layer in enumerate(self._layers):
                queries, keys_values = layer.project(x, layer.turn(cos, sin), batch)
                heard: list[mx.array] = []
                for b, (query, new) in enumerate(layer.apart(queries, keys_values)):
                    now = mx.slice_update(caches[b][i], new, positions[b], axes=(2,))
                    written[b].append(now)
                    keys, values = mx.split(now, 2)
                    heard.append(attention(query, keys, values, unseen[b]))
                x = layer.finish(x, joined(heard))
            hidden = rms_norm(x, self._norm, self._eps)
            frame, controls = joined(frames) + 1, stacked(control)
            code, marked = self._choose(hidden, joined(seen), frame, joined(seeds), controls, nucleus)
            after = [position + 1 for position in positions]
            out = (apart(part, batch) for part in (marked, frame, code, hidden[:, None]))
            return list(zip(written, after, *out, strict=True))

        return step

    def _choose(
        self,
        hidden: mx.array,
        seen: mx.array,
        frame: mx.array,
        key: mx.array,
        control: Controls,
        nucleus: bool,
    ) -> tuple[mx.array, mx.array]:
        """hidden [B, H] → (code0 int32 [B, 1], seen with that code marked)."""
        control = Controls(*control)
        logits = self.admissible(self.logits(hidden), seen, frame, control)
        code = choose(logits, noise(key, frame, 0, 1, self.vocabulary, control)[0], control, nucleus)
        return code, seen | (self._ids == code)

    def _bucket(self, positions: int) -> int:
        if positions > self._max_positions:
            raise ValueError(
                f"The talker has {self._max_positions} positions and all are used: end the request."
            )
        # Nothing is traced on the CPU, so caches need no few sizes there.
        return _doubled(64 if on_cpu() else BUCKET, positions)

    def _grow(self, cache: list[mx.array], size: int) -> list[mx.array]:
        missing = size - cache[0].shape[2]
        if missing <= 0:
            return cache
        room = mx.zeros((2, self._heads, missing, self._dim), cache[0].dtype)
        return [mx.concatenate([part, room], axis=2) for part in cache]


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
