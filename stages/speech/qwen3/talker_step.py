"""The talker's step: one frame of several requests, computed together.

Per frame: x = sum of the last frame's 16 code embeddings + the next text row  [B, H]
           layers over each request's own cache
           code 0 sampled from [B, V] inside the same trace.
`PlainStep` consists of MLX's operations and writes into the caches; `KernelStep` of a CUDA kernel, which puts new
positions into a short buffer beside the cache. Nothing is waited for here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from ...device import compiled
from . import kernels
from .config import ModelConfig
from .kernels import Stack
from .launch import filled_up, one_by_one, together
from .layers import Layer
from .ops import apart, attention, bias, joined, rms_norm, rotary
from .sampling import Controls, noise, penalise, stacked
from .weights import Linear, Weights

MIN_FRAMES = 2
"""EOS cannot be chosen for the first two frames (`min_new_tokens` of the official code)."""


class TalkerState(NamedTuple):
    """One request's state, on the device. Rebind it at each step: the old cache is then reused in place."""

    cache: list[mx.array]
    """Keys and values of each layer, [2, kv_heads, S, D]; with kernels of all layers, [L, 2, kv_heads, S, D]."""
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
    recent: mx.array
    """With kernels: keys and values from `base` on, [L, 2, kv_heads, RECENT, D]."""
    base: mx.array
    """int32 [1]: positions that the cache holds."""
    cached: int
    """`base` as the host knows it."""

    def after(self, position: mx.array, seen: mx.array, frame: mx.array) -> "TalkerState":
        """With one more position filled."""
        return self._replace(position=position, seen=seen, frame=frame, filled=self.filled + 1)


class CodeZero:
    """From the talker's last rows to code group 0."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        talker = config.talker_config
        self.vocabulary = talker.vocab_size
        self.norm = weights.array("talker.model.norm.weight", talker.hidden_size)
        self.head: Linear = weights.linear("talker.codec_head", talker.hidden_size, talker.vocab_size)
        self.eps = talker.rms_norm_eps
        self._ids = mx.arange(talker.vocab_size)
        allowed = self._ids < talker.vocab_size - 1024
        ends = allowed | (self._ids == talker.codec_eos_token_id)
        self.barred = mx.stack([bias(allowed, mx.float32), bias(ends, mx.float32)])
        """float32 [2, V], -inf where barred: in the first `MIN_FRAMES` frames, in the others."""
        mx.eval(vars(self))

    def hidden(self, x: mx.array, batch: int = 1) -> mx.array:
        return rms_norm(x, self.norm, self.eps, batch)

    def logits(self, hidden: mx.array, batch: int = 1) -> mx.array:
        """hidden rows [N, H] → float32 [N, V], as the head gives them."""
        return self.head(hidden, batch).astype(mx.float32)

    def admissible(self, logits: mx.array, seen: mx.array, frame: mx.array, control: Controls) -> mx.array:
        """Repetition penalty, minimum length, suppressed ids: float32 [B, V] → [B, V], -inf where barred."""
        barred = mx.where(frame[:, None] < MIN_FRAMES, *self.barred)
        return penalise(logits, seen, control.penalty) + barred

    def choose(
        self,
        logits: mx.array,
        seen: mx.array,
        frame: mx.array,
        key: mx.array,
        control: Controls,
        nucleus: bool,
    ) -> tuple[mx.array, mx.array]:
        """float32 [B, V] → (code0 int32 [B, 1], seen with that code marked)."""
        control = Controls(*control)
        drawn = noise(key, frame, 0, 1, self.vocabulary, control)[0]
        code = kernels.choose(self.admissible(logits, seen, frame, control), drawn, control, nucleus)
        return code, seen | (self._ids == code)


class Step(ABC):
    """One frame of each of several requests, whose `nucleus` is one."""

    alike = False
    """Whether the caches of all requests must have one size."""

    def begin(self, cache: list[mx.array]) -> list[mx.array]:
        """What a prompt leaves, [2, kv_heads, S, D] of each layer, as the states have it."""
        return cache

    @abstractmethod
    def __call__(
        self, states: list[TalkerState], embeddings: list[mx.array], texts: list[mx.array]
    ) -> list[tuple[TalkerState, mx.array, mx.array]]:
        """embeddings and texts [1, 1, H] each → (state, code0 int32 [1, 1], hidden [1, 1, H]) each.

        The caches have room for one more position.
        """


class PlainStep(Step):
    """Products of all rows at once; attention one by one, over each request's own cache."""

    def __init__(self, layers: list[Layer], first: CodeZero, dim: int, theta: float) -> None:
        self._layers = layers
        self._first = first
        self._dim, self._theta = dim, theta
        self._traced = {flag: compiled(self._trace(flag)) for flag in (False, True)}

    def __call__(
        self, states: list[TalkerState], embeddings: list[mx.array], texts: list[mx.array]
    ) -> list[tuple[TalkerState, mx.array, mx.array]]:
        rows = [one[:6] for one in states]
        made = self._traced[states[0].nucleus](rows, embeddings, texts)
        return [
            (one.after(*now)._replace(cache=cache), code, hidden)
            for one, (cache, *now, code, hidden) in zip(states, made, strict=True)
        ]

    def _trace(self, nucleus: bool) -> Callable[..., list[Any]]:
        def step(rows: list[Any], embeddings: list[mx.array], texts: list[mx.array]) -> list[Any]:
            caches, positions, *others, controls = zip(*rows, strict=True)
            x = (joined(embeddings) + joined(texts))[:, 0]
            position = joined(positions)
            cos, sin = rotary(position, self._dim, self._theta)
            unseen = [
                bias(mx.arange(cache[0].shape[2]) <= position, x.dtype)[None]
                for cache, position in zip(caches, positions, strict=True)
            ]
            written: list[list[mx.array]] = [[] for _ in rows]
            for i, layer in enumerate(self._layers):
                queries, keys_values = layer.project(x, layer.turn(cos, sin), len(rows))
                heard: list[mx.array] = []
                for b, (query, new) in enumerate(layer.apart(queries, keys_values)):
                    now = mx.slice_update(caches[b][i], new, positions[b], axes=(2,))
                    written[b].append(now)
                    keys, values = mx.split(now, 2)
                    heard.append(attention(query, keys, values, unseen[b]))
                x = layer.finish(x, joined(heard), len(rows))
            seen, frame, key = map(joined, others)
            first, batch, frame = self._first, len(rows), frame + 1
            hidden = first.hidden(x, batch)
            code, seen = first.choose(
                first.logits(hidden, batch), seen, frame, key, stacked(controls), nucleus
            )
            made = position + 1, seen, frame, code, hidden[:, None]
            return list(zip(written, *(apart(part, batch) for part in made), strict=True))

        return step


class KernelStep(Step):
    """One kernel for all layers and requests. A batch is filled up to a width that has a trace."""

    alike = True

    def __init__(self, stack: Stack, first: CodeZero, turns: tuple[mx.array, mx.array]) -> None:
        """:param turns: cos and sin of all positions, as of `ops.rotary`."""
        self._stack, self._first, self._turns = stack, first, turns
        mx.eval(turns)
        self._traced = one_by_one(compiled(self._trace))
        self._move = compiled(_moved)

    def begin(self, cache: list[mx.array]) -> list[mx.array]:
        return [mx.stack(cache)]

    def __call__(
        self, states: list[TalkerState], embeddings: list[mx.array], texts: list[mx.array]
    ) -> list[tuple[TalkerState, mx.array, mx.array]]:
        states = [self.settled(one) if one.filled - one.cached == kernels.RECENT else one for one in states]
        rows = [(one.cache, one.recent, one.base, *one[1:6]) for one in states]
        made = self._traced(filled_up(rows), filled_up(embeddings), filled_up(texts))
        return [
            (one.after(*now)._replace(recent=recent), code, hidden)
            for one, (recent, *now, code, hidden) in zip(states, made, strict=False)
        ]

    def settled(self, state: TalkerState) -> TalkerState:
        """With `recent` moved into the cache, which has room for it."""
        cache = self._move(state.cache, state.recent, state.base)
        return state._replace(cache=cache, base=state.position, cached=state.filled)

    def _trace(
        self, ticket: mx.array, rows: list[Any], embeddings: list[mx.array], texts: list[mx.array]
    ) -> tuple[list[Any], mx.array]:
        caches, recents, *others, controls = zip(*rows, strict=True)
        small = zip(embeddings, texts, *others, *zip(*controls, strict=True), strict=True)
        embedding, text, base, position, seen, frame, key, *control = together(list(small))
        made, ticket = self._stack.step(
            (embedding + text)[:, 0],
            self._turns,
            base,
            position,
            seen,
            frame,
            key,
            Controls(*control),
            self._first.barred,
            MIN_FRAMES,
            [cache for (cache,) in caches],
            list(recents),
            ticket,
        )
        parts = made.position, made.seen, made.frame, made.code, made.hidden[:, None]
        return list(zip(made.recent, *(apart(part, len(rows)) for part in parts), strict=True)), ticket


def _moved(cache: list[mx.array], recent: mx.array, base: mx.array) -> list[mx.array]:
    return [mx.slice_update(cache[0], recent, base, axes=(3,))]
