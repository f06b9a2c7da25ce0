"""The codec decoder: frames of 16 codes → PCM, as a pure function of (codes, state).

codes [1, n, 16] → latent [n, codebook_dim]: 16 rows of tables into which the quantiser's projection is folded
→ conv → transformer with a window of 72 frames → upsampling convolutions → [1, n * 1920], clipped to ±1.
The state is what the next frames need of the past: input rows of every causal convolution and the last 71 keys
and values of every layer. Any split of a sequence into steps gives the same audio up to rounding.
"""

from typing import NamedTuple

import mlx.core as mx

from ...device import compiled
from . import codec_step
from .codec_layers import History, Snake
from .codec_parts import CodecParts
from .config import CodecConfig
from .launch import one_by_one
from .ops import attention, bias, rms_norm, rotary, silu
from .weights import Weights

STEPS = (8, 4, 2, 1)
"""Frames per call that have a compiled trace; other counts run uncompiled."""


class CodecState(NamedTuple):
    """One stream's past. Rebind it at each step."""

    tails: list[mx.array]
    """Last input rows of each convolution, [rows, C]."""
    cache: list[mx.array]
    """Keys, rotated, and values of each layer: [2, kv_heads, window - 1, D]."""
    position: mx.array
    """int32 [1]: frames decoded."""


class CodecDecoder:
    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        self._config = config
        self.samples = config.samples
        self._dtype = weights.dtype
        parts = CodecParts.build(config, weights)
        self._tails = parts.tails()
        # `_fast` is an attribute for its weights to be found when a model is loaded: functions are not looked into.
        if codec_step.serves(config, weights.dtype):
            self._fast = codec_step.CodecStep.of(config, parts)
            self._step = one_by_one(self._fast)
            self._compiled = one_by_one(compiled(self._fast))
        else:
            self._step = PlainStep.of(config, parts)
            self._compiled = compiled(self._step)

    def start(self) -> CodecState:
        """The state before the first frame."""
        config = self._config
        shape = (2, config.num_key_value_heads, config.sliding_window - 1, config.attention_width)
        return CodecState(
            [mx.zeros(rows, self._dtype) for rows in self._tails],
            [mx.zeros(shape, self._dtype) for _ in range(config.num_hidden_layers)],
            mx.zeros((1,), mx.int32),
        )

    def step(self, codes: mx.array, state: CodecState) -> tuple[mx.array, CodecState]:
        """codes int [1, n, 16], n >= 1 → (pcm float32 [1, n * samples] within ±1, next state). Lazy."""
        run = self._compiled if codes.shape[1] in STEPS else self._step
        pcm, tails, cache, position = run(codes, state.tails, state.cache, state.position)
        return pcm, CodecState(tails, cache, position)

    def decode(self, codes: mx.array) -> mx.array:
        """codes int [1, n, 16] → pcm float32 [1, n * samples]: steps of 8, 4, 2, 1 frames from the start."""
        state, parts, at = self.start(), list[mx.array](), 0
        while at < codes.shape[1]:
            count = next(step for step in STEPS if step <= codes.shape[1] - at)
            pcm, state = self.step(codes[:, at : at + count], state)
            mx.eval(pcm, state)
            parts.append(pcm)
            at += count
        return mx.concatenate(parts, axis=1) if parts else mx.zeros((1, 0))

    def after(self, codes: mx.array) -> CodecState:
        """The state that codes int [T, 16] leave, by their last window: a clone's audio goes on from there."""
        state, last = self.start(), codes[-self._config.sliding_window :][None]
        at = 0
        while at < last.shape[1]:
            count = next(step for step in STEPS if step <= last.shape[1] - at)
            _, state = self.step(last[:, at : at + count], state)
            mx.async_eval(state)
            at += count
        return state


class PlainStep(NamedTuple):
    """A step in MLX's operations."""

    config: CodecConfig
    parts: CodecParts
    rows: mx.array
    """int32 [groups]: the first row of each group's table."""
    is_value: mx.array
    """bool [heads + 2 kv_heads, 1, 1]"""
    scale: mx.array
    """The same shape: what queries and keys are multiplied with as they are rotated."""

    @classmethod
    def of(cls, config: CodecConfig, parts: CodecParts) -> "PlainStep":
        heads, both = config.num_attention_heads, config.num_attention_heads + 2 * config.num_key_value_heads
        index = mx.arange(both)[:, None, None]
        return cls(
            config,
            parts,
            mx.arange(config.num_quantizers, dtype=mx.int32) * config.codebook_size,
            index >= heads + config.num_key_value_heads,
            mx.where(index < heads, config.attention_width**-0.5, 1.0),
        )

    def __call__(
        self, codes: mx.array, tails: list[mx.array], cache: list[mx.array], position: mx.array
    ) -> tuple[mx.array, list[mx.array], list[mx.array], mx.array]:
        """→ (pcm, tails, cache, position)"""
        history = History(tails)
        x = mx.take(self.parts.tables, codes[0] + self.rows, axis=0).sum(axis=1)
        x, cache = self._transform(self.parts.pre_conv(x, history), cache, position)
        for layer in self.parts.convolutions:
            x = layer(x) if isinstance(layer, Snake) else layer(x, history)
        pcm = mx.clip(x.reshape(1, -1).astype(mx.float32), -1, 1)
        return pcm, history.tails, cache, position + codes.shape[1]

    def _transform(
        self, x: mx.array, cache: list[mx.array], position: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        """Latent [n, C] through the windowed transformer → latent [n, C]."""
        config, steps, past = self.config, x.shape[0], self.config.sliding_window - 1
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.attention_width
        inner, parts = config.intermediate_size, self.parts
        query, key = mx.arange(steps)[:, None], mx.arange(past + steps)[None]
        unseen = bias((key >= query) & (key <= query + past) & (key >= past - position), x.dtype)
        cos, sin = rotary(position + mx.arange(steps), dim, config.rope_theta)
        along, across = (
            self.scale * mx.where(self.is_value, 1, cos),
            self.scale * mx.where(self.is_value, 0, sin),
        )
        x = parts.into(x)
        kept: list[mx.array] = []
        for before, layer in zip(cache, parts.layers, strict=True):
            rows = layer.qkv(rms_norm(x, layer.input_norm, config.rms_norm_eps)).reshape(
                steps, -1, 2, dim // 2
            )
            rows = (rows * along + rows[:, :, ::-1] * across).astype(x.dtype).reshape(steps, -1, dim)
            queries = rows[:, :heads].swapaxes(0, 1)[None]
            keys_values = rows[:, heads:].reshape(steps, 2, kv_heads, dim).transpose(1, 2, 0, 3)
            window = mx.concatenate([before, keys_values], axis=2)
            kept.append(window[:, :, -past:])
            attended = attention(queries, window[:1], window[1:], unseen)
            x = layer.out.add(x, attended)
            rows = layer.gate_up(rms_norm(x, layer.output_norm, config.rms_norm_eps))
            x = layer.down.add(x, silu(rows[:, :inner]) * rows[:, inner:])
        return parts.out_of(rms_norm(x, parts.norm, config.rms_norm_eps)), kept


def to_int16(pcm: mx.array) -> mx.array:
    """float PCM within ±1 → int16 of the same shape, on the device: x * 32767 rounded to nearest, ties to even."""
    return mx.round(pcm * 32767).astype(mx.int16)
