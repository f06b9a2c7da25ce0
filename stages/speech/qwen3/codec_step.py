"""The codec decoder's step as a program of one CUDA kernel: 81 phases at released sizes.

What it computes is that of `codec_decoder.PlainStep`, the state too. Released sizes, of n frames: codes [1, n, 16]
→ [n, 512] → [n, 1024] → transformer [n, 512], 8 layers of 16 heads of 64 → [n, 1024] → [2 n, 1024] → [4 n, 1024]
→ [4 n, 1536] → [32 n, 768] → [160 n, 384] → [640 n, 192] → [1920 n, 96] → pcm [1, 1920 n].
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from . import launch
from .codec_kernels import Sizes, Step
from .codec_layers import Conv, ConvNeXt, Residual, Snake, Upsample
from .codec_parts import CodecLayer, CodecParts
from .codec_program import CHANNELS, FEW, GATED, GELU, MANY, NORMED, Layer, Parameters, Program
from .config import CodecConfig

FEW_ROWS = 8
"""Up to so many rows for each frame, a layer is bound by its weights' way through memory."""


def serves(config: CodecConfig, dtype: mx.Dtype) -> bool:
    """Whether the kernels serve this device and this codec: float32, and sizes that they are made for."""
    dim, heads, kv_heads = config.attention_width, config.num_attention_heads, config.num_key_value_heads
    few = (config.codebook_dim, config.latent_dim, config.hidden_size, config.intermediate_size, heads * dim)
    fits = all(size % 32 == 0 for size in few) and config.latent_dim <= CHANNELS
    fits = fits and (heads + 2 * kv_heads) * dim % 16 == 0
    fits = fits and dim % 4 == 0 and 256 % dim == 0 and heads % kv_heads == 0
    width, rows = config.decoder_dim, math.prod(config.upsampling_ratios)
    fits = fits and width % 32 == 0 and rows <= FEW_ROWS
    for rate in config.upsample_rates:
        fits = fits and width % (32 if rows <= FEW_ROWS else 8) == 0
        width, rows = width // 2, rows * rate
    fits = fits and width % (32 if rows <= FEW_ROWS else 4) == 0
    return fits and launch.serve() and dtype == mx.float32


class Attending(NamedTuple):
    """A layer of the transformer."""

    qkv: Layer
    out: Layer
    gate_up: Layer
    down: Layer

    @classmethod
    def of(cls, layer: CodecLayer, parameters: Parameters) -> "Attending":
        # Gate and up of a channel side by side.
        gate_up = layer.gate_up.matrix.reshape(layer.gate_up.matrix.shape[0], 2, -1).swapaxes(1, 2).flatten(1)
        return cls(
            parameters.layer(FEW, layer.qkv.matrix * layer.input_norm[:, None], bent=NORMED),
            parameters.layer(FEW, layer.out.matrix),
            parameters.layer(FEW, gate_up * layer.output_norm[:, None], bent=GATED),
            parameters.layer(FEW, layer.down.matrix),
        )


class Widening(NamedTuple):
    """A ConvNeXt block."""

    taps: int
    mix: int
    widen: Layer
    narrow: Layer

    @classmethod
    def of(cls, block: ConvNeXt, parameters: Parameters) -> "Widening":
        rows = [block.depthwise_bias, block.norm, block.norm_bias]
        return cls(
            block.depthwise.shape[0],
            parameters.add(mx.concatenate([block.depthwise, mx.stack(rows)])),
            parameters.layer(FEW, block.widen, block.widen_bias, bent=GELU),
            parameters.layer(FEW, block.narrow, block.narrow_bias),
        )


class Unit(NamedTuple):
    """A residual unit, of rows whose Snake the layer before has given."""

    wide: Layer
    point: Layer


class Last(NamedTuple):
    """The convolution to one channel."""

    taps: int
    weight: int


class CodecStep(NamedTuple):
    step: Step
    tails: int
    codebook_dim: int
    samples: int
    """Of one frame."""
    pre_conv: Layer
    into: Layer
    layers: list[Attending]
    out_of: Layer
    chain: list[Layer | Widening | Unit | Last]

    @classmethod
    def of(cls, config: CodecConfig, parts: CodecParts) -> "CodecStep":
        dim, parameters = config.attention_width, Parameters()
        sizes = config.num_attention_heads, config.num_key_value_heads, dim, config.sliding_window - 1
        pre_conv = _convolution(FEW, parts.pre_conv, parameters)
        into = parameters.layer(FEW, parts.into.matrix, parts.into.bias)
        layers = [Attending.of(layer, parameters) for layer in parts.layers]
        out_of = parameters.layer(
            FEW, parts.out_of.matrix * parts.norm[:, None], parts.out_of.bias, bent=NORMED
        )
        chain = _chain(parts.convolutions, parameters)
        step = Step(
            Sizes(*sizes, config.rms_norm_eps),
            mx.contiguous(parts.tables),
            mx.power(config.rope_theta, -mx.arange(0, dim, 2, dtype=mx.float32) / dim),
            parameters.joined(),
        )
        return cls(
            *(step, len(parts.tails()), config.codebook_dim, config.samples),
            *(pre_conv, into, layers, out_of, chain),
        )

    def __call__(
        self,
        ticket: mx.array,
        codes: mx.array,
        tails: list[mx.array],
        cache: list[mx.array],
        position: mx.array,
    ) -> tuple[tuple[mx.array, list[mx.array], list[mx.array], mx.array], mx.array]:
        """→ ((pcm, tails, cache, position), ticket); see `launch.one_by_one`."""
        steps = codes.shape[1]
        program = self.program(steps, steps * self.program(1).most)
        pcm, after, nows, left, _ = self.step.run(
            program, steps * self.samples, codes.astype(mx.int32), position, [*tails, *cache], ticket
        )
        return (pcm, nows[: self.tails], nows[self.tails :], after), left

    def program(self, frames: int, most: int = 0) -> Program:
        """:param most: numbers of the largest rows."""
        made, sizes = Program(frames, self.codebook_dim, self.tails, most), self.step.sizes
        x = made.layer(self.into, made.layer(self.pre_conv, made.start))
        for layer in self.layers:
            heard = made.attend(made.layer(layer.qkv, x), sizes.heads, sizes.dim)
            x = made.layer(layer.out, heard, x)
            x = made.layer(layer.down, made.layer(layer.gate_up, x), x)
        x = made.layer(self.out_of, x)
        for part, following in zip(self.chain, [*self.chain[1:], None], strict=True):
            plain = isinstance(following, Unit)
            match part:
                case Widening(taps, mix, widen, narrow):
                    x = made.layer(narrow, made.layer(widen, made.mix(taps, mix, x)), x)
                case Unit(wide, point):
                    x = made.layer(point, made.layer(wide, x, plain=False), x, plain=plain)
                case Last(taps, weight):
                    made.to_pcm(taps, weight, x)
                case Layer():
                    x = made.layer(part, x, plain=plain)
        return made


def _chain(
    convolutions: Sequence[Upsample | ConvNeXt | Conv | Snake | Residual], parameters: Parameters
) -> list[Layer | Widening | Unit | Last]:
    """What turns latents into samples. A Snake is part of the layer before it."""
    made, rows = list[Layer | Widening | Unit | Last](), 1
    for layer, following in zip(convolutions, [*convolutions[1:], None], strict=True):
        snake = following.first if isinstance(following, Residual) else following
        snake = snake if isinstance(snake, Snake) else None
        kind = FEW if rows <= FEW_ROWS else MANY
        match layer:
            case Upsample(weight, bias, stride, taps):
                inputs = weight.shape[0] // taps
                made.append(
                    parameters.layer(
                        kind, weight, bias, inputs=inputs, past=taps - 1, stride=stride, snake=snake
                    )
                )
                rows *= stride
            case ConvNeXt():
                made.append(Widening.of(layer, parameters))
            case Residual(_, wide, second, point):
                first = _convolution(kind, wide, parameters, second)
                made.append(Unit(first, _convolution(kind, point, parameters, snake)))
            case Conv() if following:
                made.append(_convolution(kind, layer, parameters, snake))
            case Conv():
                weight = mx.concatenate([layer.matrix.flatten(), layer.bias])
                made.append(Last(layer.kernel, parameters.add(weight)))
            case Snake():
                pass
    return made


def _convolution(kind: int, conv: Conv, parameters: Parameters, snake: Snake | None = None) -> Layer:
    return parameters.layer(kind, conv.matrix, conv.bias, inputs=conv.inputs, past=conv.past, snake=snake)
