"""The codec decoder: frames of 16 codes → PCM, as a pure function of (codes, state).

codes [1, n, 16] → latent [n, codebook_dim]: 16 rows of tables into which the quantiser's projection is folded
→ conv → transformer with a window of 72 frames → upsampling convolutions → [1, n * 1920], clipped to ±1.
The state is what the next frames need of the past: input rows of every causal convolution and the last 71 keys
and values of every layer. Any split of a sequence into steps gives the same audio up to rounding.
"""

from typing import NamedTuple

import mlx.core as mx

from ...device import compiled
from .codec_layers import Conv, ConvNeXt, History, Residual, Snake, Upsample
from .config import CodecConfig
from .ops import attention, bias, rms_norm, rotary, silu
from .weights import Linear, Weights, merge

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


class CodecLayer(NamedTuple):
    qkv: Linear
    out: Linear
    """Times the attention's layer scale."""
    gate_up: Linear
    down: Linear
    """Times the MLP's layer scale."""
    input_norm: mx.array
    output_norm: mx.array

    @classmethod
    def build(cls, weights: Weights, name: str, config: CodecConfig) -> "CodecLayer":
        width, inner = config.hidden_size, config.intermediate_size
        queries = config.num_attention_heads * config.attention_width
        keys = config.num_key_value_heads * config.attention_width
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        qkv = merge(
            weights.linear(f"{attention}.q_proj", width, queries),
            weights.linear(f"{attention}.k_proj", width, keys),
            weights.linear(f"{attention}.v_proj", width, keys),
        )
        gate_up = merge(
            weights.linear(f"{mlp}.gate_proj", width, inner), weights.linear(f"{mlp}.up_proj", width, inner)
        )
        out, down = (
            weights.linear(f"{attention}.o_proj", queries, width),
            weights.linear(f"{mlp}.down_proj", inner, width),
        )
        out_scale = weights.array(f"{name}.self_attn_layer_scale.scale", width)
        down_scale = weights.array(f"{name}.mlp_layer_scale.scale", width)
        assert isinstance(qkv, Linear)
        assert isinstance(gate_up, Linear)
        return cls(
            qkv,
            Linear(out.matrix * out_scale),
            gate_up,
            Linear(down.matrix * down_scale),
            weights.array(f"{name}.input_layernorm.weight", width),
            weights.array(f"{name}.post_attention_layernorm.weight", width),
        )


class CodecDecoder:
    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        self._config = config
        self.samples = config.samples
        self._dtype = weights.dtype
        self._inner = config.intermediate_size
        latent, hidden = config.latent_dim, config.hidden_size
        self._tables, self._rows = _fold_quantiser(config, weights)
        self._pre_conv = Conv.build(weights, "decoder.pre_conv.conv", config.codebook_dim, latent, 3)
        name = "decoder.pre_transformer"
        self._into = weights.linear(f"{name}.input_proj", latent, hidden, bias=True)
        self._out_of = weights.linear(f"{name}.output_proj", hidden, latent, bias=True)
        self._norm = weights.array(f"{name}.norm.weight", hidden)
        self._layers = [
            CodecLayer.build(weights, f"{name}.layers.{i}", config) for i in range(config.num_hidden_layers)
        ]
        heads, both = config.num_attention_heads, config.num_attention_heads + 2 * config.num_key_value_heads
        index = mx.arange(both)[:, None, None]
        self._is_value = index >= heads + config.num_key_value_heads
        self._scale = mx.where(index < heads, config.attention_width**-0.5, 1.0)
        mx.eval(self._is_value, self._scale)
        self._convolutions: list[Upsample | ConvNeXt | Conv | Snake | Residual] = []
        for i, rate in enumerate(config.upsampling_ratios):
            self._convolutions += [
                Upsample.build(weights, f"decoder.upsample.{i}.0.conv", latent, latent, rate, rate),
                ConvNeXt.build(weights, f"decoder.upsample.{i}.1", latent),
            ]
        width = config.decoder_dim
        self._convolutions.append(Conv.build(weights, "decoder.decoder.0.conv", latent, width, 7))
        for i, rate in enumerate(config.upsample_rates):
            block = f"decoder.decoder.{i + 1}.block"
            self._convolutions += [
                Snake.build(weights, f"{block}.0", width),
                Upsample.build(weights, f"{block}.1.conv", width, width // 2, 2 * rate, rate),
            ]
            width //= 2
            self._convolutions += [
                Residual.build(weights, f"{block}.{2 + j}", width, dilation)
                for j, dilation in enumerate((1, 3, 9))
            ]
        last = len(config.upsample_rates) + 1
        self._convolutions += [
            Snake.build(weights, f"decoder.decoder.{last}", width),
            Conv.build(weights, f"decoder.decoder.{last + 1}.conv", width, 1, 7),
        ]
        self._compiled = compiled(self._step)

    def start(self) -> CodecState:
        """The state before the first frame."""
        config = self._config
        rows: list[tuple[int, int]] = [(2, config.codebook_dim)]
        for layer in self._convolutions:
            match layer:
                case Upsample(taps=taps) if taps > 1:
                    rows.append((taps - 1, layer.weight.shape[0] // taps))
                case ConvNeXt():
                    rows.append((6, layer.norm.shape[0]))
                case Conv() if layer.past:
                    rows.append((layer.past, layer.inputs))
                case Residual(wide=wide):
                    rows.append((wide.past, wide.inputs))
                case _:
                    pass
        shape = (2, config.num_key_value_heads, config.sliding_window - 1, config.attention_width)
        return CodecState(
            [mx.zeros((count, width), self._dtype) for count, width in rows],
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

    def _step(
        self, codes: mx.array, tails: list[mx.array], cache: list[mx.array], position: mx.array
    ) -> tuple[mx.array, list[mx.array], list[mx.array], mx.array]:
        history = History(tails)
        x = mx.take(self._tables, codes[0] + self._rows, axis=0).sum(axis=1)
        x, cache = self._transform(self._pre_conv(x, history), cache, position)
        for layer in self._convolutions:
            x = layer(x) if isinstance(layer, Snake) else layer(x, history)
        pcm = mx.clip(x.reshape(1, -1).astype(mx.float32), -1, 1)
        return pcm, history.tails, cache, position + codes.shape[1]

    def _transform(
        self, x: mx.array, cache: list[mx.array], position: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        """Latent [n, C] through the windowed transformer → latent [n, C]."""
        config, steps, past = self._config, x.shape[0], self._config.sliding_window - 1
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.attention_width
        query, key = mx.arange(steps)[:, None], mx.arange(past + steps)[None]
        unseen = bias((key >= query) & (key <= query + past) & (key >= past - position), x.dtype)
        cos, sin = rotary(position + mx.arange(steps), dim, config.rope_theta)
        along, across = (
            self._scale * mx.where(self._is_value, 1, cos),
            self._scale * mx.where(self._is_value, 0, sin),
        )
        x = self._into(x)
        kept: list[mx.array] = []
        for before, layer in zip(cache, self._layers, strict=True):
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
            x = layer.down.add(x, silu(rows[:, : self._inner]) * rows[:, self._inner :])
        return self._out_of(rms_norm(x, self._norm, config.rms_norm_eps)), kept


def to_int16(pcm: mx.array) -> mx.array:
    """float PCM within ±1 → int16 of the same shape, on the device: x * 32767 rounded to nearest, ties to even."""
    return mx.round(pcm * 32767).astype(mx.int16)


def _fold_quantiser(config: CodecConfig, weights: Weights) -> tuple[mx.array, mx.array]:
    """One table [groups * codebook_size, codebook_dim] of projected code vectors, and the groups' first rows."""
    tables: list[mx.array] = []
    half = config.codebook_dim // 2
    for group in range(config.num_quantizers):
        name = "decoder.quantizer.rvq_first" if group == 0 else "decoder.quantizer.rvq_rest"
        book = f"{name}.vq.layers.{max(group - 1, 0)}._codebook"
        total = weights.array(f"{book}.embedding_sum", config.codebook_size, half, dtype=mx.float32)
        usage = weights.array(f"{book}.cluster_usage", config.codebook_size, dtype=mx.float32)
        project = weights.array(f"{name}.output_proj.weight", config.codebook_dim, half, 1, dtype=mx.float32)
        tables.append((total / mx.maximum(usage, 1e-5)[:, None]) @ project[:, :, 0].T)
    rows = mx.arange(config.num_quantizers, dtype=mx.int32) * config.codebook_size
    return mx.concatenate(tables, axis=0).astype(weights.dtype), rows
