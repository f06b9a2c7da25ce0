"""The codec encoder: PCM → frames of 16 codes. Mimi's encoder with 16 of its 32 quantizers, in fp32.

samples [N] → causal convolutions, strides 4, 5, 6, 8 → rows at 25 Hz → transformer → stride 2 → rows at 12.5 Hz
→ residual quantisation: one semantic codebook, 15 acoustic ones beside it.

The config names an attention window of 250 rows. The official code does not apply it (transformers' SDPA attention
ignores it there), so each row sees all before it here too.
"""

from collections.abc import Generator
from typing import NamedTuple

import mlx.core as mx

from .codec_layers import Conv, History
from .config import EncoderConfig
from .ops import attention, bias, gelu, layer_norm, rotary
from .weights import Linear, Weights, merge

PIECE = 12 * 1920
"""Samples that go through the convolutions at once: their rows at 24 kHz are what needs memory."""


class Stride(NamedTuple):
    """ELU and a causal convolution of stride r and kernel 2 r: the product of two neighbouring blocks of r rows."""

    weight: mx.array
    """[2 * r * in, out]"""
    bias: mx.array
    rate: int

    @classmethod
    def build(cls, weights: Weights, name: str, inputs: int, outputs: int, rate: int) -> "Stride":
        weight = weights.array(f"{name}.weight", outputs, inputs, 2 * rate)
        return cls(
            mx.contiguous(weight.transpose(2, 1, 0).reshape(2 * rate * inputs, outputs)),
            weights.array(f"{name}.bias", outputs),
            rate,
        )

    def __call__(self, x: mx.array, history: History) -> mx.array:
        x = _elu(x)
        if short := -x.shape[0] % self.rate:  # only at the very end
            x = mx.pad(x, [(0, short), (0, 0)])
        steps = x.shape[0] // self.rate
        blocks = history.extend(x, self.rate).reshape(steps + 1, -1)
        return mx.addmm(self.bias, mx.concatenate([blocks[:-1], blocks[1:]], axis=1), self.weight)


class Residual(NamedTuple):
    """ELU, conv of 3, ELU, conv of 1, added to the input."""

    wide: Conv
    point: Conv

    @classmethod
    def build(cls, weights: Weights, name: str, channels: int, config: EncoderConfig) -> "Residual":
        inner = channels // config.compress
        return cls(
            Conv.build(weights, f"{name}.block.1.conv", channels, inner, config.residual_kernel_size),
            Conv.build(weights, f"{name}.block.3.conv", inner, channels, 1),
        )

    def __call__(self, x: mx.array, history: History) -> mx.array:
        return x + self.point(_elu(self.wide(_elu(x), history)), history)


class Layer(NamedTuple):
    qkv: Linear
    out: Linear
    """Times the attention's layer scale."""
    widen: Linear
    narrow: Linear
    """Times the MLP's layer scale."""
    norms: tuple[mx.array, mx.array, mx.array, mx.array]

    @classmethod
    def build(cls, weights: Weights, name: str, config: EncoderConfig) -> "Layer":
        width, inner = config.hidden_size, config.intermediate_size
        heads = config.num_attention_heads * config.attention_width
        qkv = merge(*(weights.linear(f"{name}.self_attn.{part}_proj", width, heads) for part in "qkv"))
        assert isinstance(qkv, Linear)
        out = weights.linear(f"{name}.self_attn.o_proj", heads, width)
        narrow = weights.linear(f"{name}.mlp.fc2", inner, width)
        return cls(
            qkv,
            Linear(out.matrix * weights.array(f"{name}.self_attn_layer_scale.scale", width)),
            weights.linear(f"{name}.mlp.fc1", width, inner),
            Linear(narrow.matrix * weights.array(f"{name}.mlp_layer_scale.scale", width)),
            (
                weights.array(f"{name}.input_layernorm.weight", width),
                weights.array(f"{name}.input_layernorm.bias", width),
                weights.array(f"{name}.post_attention_layernorm.weight", width),
                weights.array(f"{name}.post_attention_layernorm.bias", width),
            ),
        )


class CodecEncoder:
    def __init__(self, config: EncoderConfig, groups: int, samples: int, weights: Weights) -> None:
        """
        :param groups: codes of a frame.
        :param samples: PCM samples of a frame.
        :param weights: of the speech tokenizer, of dtype float32.
        """
        self._config, self._samples = config, samples
        name, width = "encoder.encoder.layers", config.num_filters
        self._first = Conv.build(weights, f"{name}.0.conv", 1, width, config.kernel_size)
        self._blocks: list[tuple[Residual, Stride]] = []
        for i, rate in enumerate(reversed(config.upsampling_ratios)):
            self._blocks.append(
                (
                    Residual.build(weights, f"{name}.{3 * i + 1}", width, config),
                    Stride.build(weights, f"{name}.{3 * i + 3}.conv", width, 2 * width, rate),
                )
            )
            width *= 2
        last = f"{name}.{3 * len(self._blocks) + 2}.conv"
        self._last = Conv.build(weights, last, width, config.hidden_size, config.last_kernel_size)
        self._layers = [
            Layer.build(weights, f"encoder.encoder_transformer.layers.{i}", config)
            for i in range(config.num_hidden_layers)
        ]
        hidden = config.hidden_size
        halve = weights.array("encoder.downsample.conv.weight", hidden, hidden, 4)
        self._halve = mx.contiguous(halve.transpose(2, 1, 0).reshape(4 * hidden, hidden))
        self._books = [
            _Books(weights, config, "semantic", 1),
            _Books(weights, config, "acoustic", groups - 1),
        ]

    def __call__(self, samples: mx.array) -> mx.array:
        """float32 [N] within ±1 at 24 kHz → codes int32 [ceil(N / samples of a frame), groups]. Evaluated."""
        return _result(self.encode(samples))

    def encode(self, samples: mx.array) -> Generator[None, None, mx.array]:
        """The same in steps of `PIECE` samples, between which others may compute."""
        rows = yield from self._steps(samples)
        codes = mx.concatenate([book(rows) for book in self._books], axis=1)
        mx.eval(codes)
        return codes

    def rows(self, samples: mx.array) -> mx.array:
        """What is quantised, [frames, hidden]."""
        return _result(self._steps(samples))

    def _steps(self, samples: mx.array) -> Generator[None, None, mx.array]:
        history = self._start()
        parts: list[mx.array] = []
        for at in range(0, samples.shape[0], PIECE):
            history = History(history.tails)
            parts.append(self._convolve(samples[at : at + PIECE, None], history))
            mx.eval(parts[-1], history.tails)
            yield
        x = self._transform(mx.concatenate(parts, axis=0))
        # Stride 2, kernel 4: the first row twice before, the last once more behind an odd number.
        x = mx.concatenate([x[:1], x[:1], x, x[-1:]], axis=0)[: 2 + x.shape[0] + x.shape[0] % 2]
        pairs = x.reshape(x.shape[0] // 2, -1)
        return mx.concatenate([pairs[:-1], pairs[1:]], axis=1) @ self._halve

    def _start(self) -> History:
        """Zeros before the first sample."""
        rows = [(self._first.past, 1)]
        for residual, stride in self._blocks:
            width = residual.wide.inputs
            rows += [(residual.wide.past, width), (stride.rate, width)]
        rows.append((self._last.past, self._last.inputs))
        history = History([])
        history.tails = [mx.zeros(shape) for shape in rows]
        return history

    def _convolve(self, x: mx.array, history: History) -> mx.array:
        x = self._first(x, history)
        for residual, stride in self._blocks:
            x = stride(residual(x, history), history)
        return self._last(_elu(x), history)

    def _transform(self, x: mx.array) -> mx.array:
        config, steps = self._config, x.shape[0]
        heads, dim = config.num_attention_heads, config.attention_width
        at = mx.arange(steps)
        cos, sin = rotary(at, dim, config.rope_theta)
        unseen = bias(at[None] <= at[:, None], x.dtype)
        for layer in self._layers:
            weight, offset, later_weight, later_offset = layer.norms
            rows = layer.qkv(layer_norm(x, weight, offset, config.norm_eps)).reshape(steps, 3 * heads, 2, -1)
            turned = rows * cos + rows[:, :, ::-1] * sin
            queries, keys, values = (
                part.reshape(steps, heads, dim).swapaxes(0, 1)[None]
                for part in (
                    turned[:, :heads] * dim**-0.5,
                    turned[:, heads : 2 * heads],
                    rows[:, 2 * heads :],
                )
            )
            x = layer.out.add(x, attention(queries, keys, values, unseen))
            x = layer.narrow.add(
                x, gelu(layer.widen(layer_norm(x, later_weight, later_offset, config.norm_eps)))
            )
        return x


class _Books:
    """One residual quantiser: each codebook takes the nearest entry to what the ones before left over."""

    def __init__(self, weights: Weights, config: EncoderConfig, kind: str, count: int) -> None:
        name = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        size = config.vector_quantization_hidden_dimension
        self._project: mx.array | None = None
        if size != config.hidden_size:
            self._project = weights.array(f"{name}.input_proj.weight", size, config.hidden_size, 1)[:, :, 0].T
        self._tables: list[mx.array] = []
        for i in range(count):
            book = f"{name}.layers.{i}.codebook"
            total = weights.array(f"{book}.embed_sum", config.codebook_size, size)
            usage = weights.array(f"{book}.cluster_usage", config.codebook_size)
            self._tables.append(total / mx.maximum(usage, 1e-5)[:, None])

    def __call__(self, rows: mx.array) -> mx.array:
        """[T, hidden] → int32 [T, count]"""
        left = rows if self._project is None else rows @ self._project
        codes: list[mx.array] = []
        for table in self._tables:
            # |x - e|² without |x|², which is the same for every entry.
            code = mx.argmin(mx.square(table).sum(axis=1) - 2 * (left @ table.T), axis=1)
            left = left - mx.take(table, code, axis=0)
            codes.append(code.astype(mx.int32))
        return mx.stack(codes, axis=1)


def _result(steps: Generator[None, None, mx.array]) -> mx.array:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def _elu(x: mx.array) -> mx.array:
    return mx.where(x > 0, x, mx.expm1(x))
