"""The codec decoder's step as CUDA kernels: 82 launches at released sizes.

What it computes is that of `codec_decoder.PlainStep`, the state too. Released sizes, of n frames: codes [1, n, 16]
→ [n, 512] → [n, 1024] → transformer [n, 512], 8 layers of 16 heads of 64 → [n, 1024] → [2 n, 1024] → [4 n, 1024]
→ [4 n, 1536] → [32 n, 768] → [160 n, 384] → [640 n, 192] → [1920 n, 96] → pcm [1, 1920 n].
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from . import kernels
from .codec_kernels import CHANNELS, Frames, Last, Layer, Made, Mix, attend
from .codec_layers import Conv, ConvNeXt, Residual, Snake, Upsample
from .codec_parts import CodecLayer, CodecParts
from .config import CodecConfig
from .weights import Linear

FEW = 8
"""Up to so many rows for each frame, a layer is bound by its weights' way through memory."""


def serves(config: CodecConfig, dtype: mx.Dtype) -> bool:
    """Whether the kernels serve this device and this codec: float32, and sizes that they are made for."""
    dim, heads, kv_heads = config.attention_width, config.num_attention_heads, config.num_key_value_heads
    few = (config.codebook_dim, config.latent_dim, config.hidden_size, config.intermediate_size, heads * dim)
    fits = all(size % 32 == 0 for size in few) and config.latent_dim <= CHANNELS
    fits = fits and dim % 4 == 0 and 256 % dim == 0 and heads % kv_heads == 0
    width, rows = config.decoder_dim, math.prod(config.upsampling_ratios)
    fits = fits and width % 32 == 0 and rows <= FEW
    for rate in config.upsample_rates:
        fits = fits and width % (32 if rows <= FEW else 8) == 0
        width, rows = width // 2, rows * rate
    return fits and kernels.serve() and dtype == mx.float32


class Attending(NamedTuple):
    """A layer of the transformer."""

    qkv: Layer
    out: Layer
    gate_up: Layer
    down: Layer

    @classmethod
    def of(cls, layer: CodecLayer, eps: float) -> "Attending":
        # Gate and up of a channel side by side.
        gate_up = layer.gate_up.matrix.reshape(layer.gate_up.matrix.shape[0], 2, -1)
        return cls(
            _normed(layer.qkv, layer.input_norm, eps),
            Layer.of(True, layer.out.matrix),
            _normed(Linear(gate_up.swapaxes(1, 2).flatten(1)), layer.output_norm, eps)._replace(gated=True),
            Layer.of(True, layer.down.matrix),
        )


class Widening(NamedTuple):
    """A ConvNeXt block."""

    mix: Mix
    widen: Layer
    narrow: Layer

    @classmethod
    def of(cls, block: ConvNeXt) -> "Widening":
        return cls(
            Mix.of(block),
            Layer.of(True, block.widen, block.widen_bias)._replace(gelu=True),
            Layer.of(True, block.narrow, block.narrow_bias),
        )


class Unit(NamedTuple):
    """A residual unit, of rows whose Snake the layer before has given."""

    wide: Layer
    point: Layer


class CodecStep(NamedTuple):
    heads: int
    frames: Frames
    pre_conv: Layer
    into: Layer
    layers: list[Attending]
    out_of: Layer
    chain: list[Layer | Widening | Unit | Last]

    @classmethod
    def of(cls, config: CodecConfig, parts: CodecParts) -> "CodecStep":
        eps, dim = config.rms_norm_eps, config.attention_width
        frequencies = mx.power(config.rope_theta, -mx.arange(0, dim, 2, dtype=mx.float32) / dim)
        return cls(
            config.num_attention_heads,
            Frames(mx.contiguous(parts.tables), frequencies),
            Layer.of_conv(True, parts.pre_conv),
            Layer.of(True, parts.into.matrix, parts.into.bias),
            [Attending.of(layer, eps) for layer in parts.layers],
            _normed(parts.out_of, parts.norm, eps),
            _chain(parts.convolutions),
        )

    def __call__(
        self, codes: mx.array, tails: list[mx.array], cache: list[mx.array], position: mx.array
    ) -> tuple[mx.array, list[mx.array], list[mx.array], mx.array]:
        """→ (pcm, tails, cache, position)"""
        old, new = iter(tails), list[mx.array]()

        def through(layer: Layer | Mix | Last, x: mx.array) -> Made:
            made = layer(x, next(old) if layer.past else None)
            if layer.past:
                new.append(made.tail)
            return made

        x, turn, after = self.frames(codes.astype(mx.int32), position)
        x, kept = self.into(through(self.pre_conv, x).rows).rows, list[mx.array]()
        for before, layer in zip(cache, self.layers, strict=True):
            heard, now = attend(layer.qkv(x).rows, turn, before, position, self.heads)
            x = layer.out(heard, other=x).rows
            x = layer.down(layer.gate_up(x).rows, other=x).rows
            kept.append(now)
        made = self.out_of(x)
        for part in self.chain:
            match part:
                case Widening(mix, widen, narrow):
                    made = narrow(widen(through(mix, made.rows).rows).rows, other=made.rows)
                case Unit(wide, point):
                    made = point(through(wide, made.next).next, other=made.rows)
                case _:
                    made = through(part, made.next)
        return made.rows, new, kept, after


def _normed(layer: Linear, norm: mx.array, eps: float) -> Layer:
    return Layer.of(True, layer.matrix * norm[:, None], layer.bias)._replace(eps=eps)


def _chain(
    convolutions: Sequence[Upsample | ConvNeXt | Conv | Snake | Residual],
) -> list[Layer | Widening | Unit | Last]:
    """What turns latents into samples. A Snake is part of the layer before it."""
    made, rows = list[Layer | Widening | Unit | Last](), 1
    for layer, following in zip(convolutions, [*convolutions[1:], None], strict=True):
        snake = following.first if isinstance(following, Residual) else following
        snake = snake if isinstance(snake, Snake) else None
        few = rows <= FEW
        match layer:
            case Upsample():
                made.append(Layer.of_upsample(few, layer).before(snake))
                rows *= layer.stride
            case ConvNeXt():
                made.append(Widening.of(layer))
            case Residual():
                wide, point = Layer.of_conv(few, layer.wide), Layer.of_conv(few, layer.point)
                made.append(Unit(wide.before(layer.second), point.before(snake)))
            case Conv():
                made.append(Layer.of_conv(few, layer).before(snake) if following else Last.of(layer))
            case Snake():
                pass
    return made
