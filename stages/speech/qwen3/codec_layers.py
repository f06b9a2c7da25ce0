"""The codec decoder's building blocks: causal convolutions with explicit history, in forms each device does well.

Rows are [T, C] (time, then channels). A causal convolution needs the last (kernel - 1) * dilation rows of
its own input; `History` hands them out and collects the next ones, in the order in which the layers run.
A transposed convolution of stride r is a product of the last kernel / r input rows with a [.., r * out] matrix, so
its overlap is input history too and nothing has to be added up between calls.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import mlx.core as mx

from ...device import on_cpu
from .ops import gelu, layer_norm
from .weights import Weights


class History:
    """Input rows that the layers of one run take from the previous run and leave for the next."""

    def __init__(self, tails: list[mx.array]) -> None:
        self._old: Iterator[mx.array] = iter(tails)
        self.tails: list[mx.array] = []

    def extend(self, x: mx.array, rows: int) -> mx.array:
        """x [T, C] behind its `rows` predecessors: [rows + T, C]."""
        if rows == 0:
            return x
        joined = mx.concatenate([next(self._old), x], axis=0)
        self.tails.append(joined[-rows:])
        return joined


class Conv(NamedTuple):
    """Causal convolution of stride 1, as a product: MLX's own convolutions are slower for one frame, ten times
    slower on the CPU and 1.5 times on CUDA.
    """

    weight: mx.array
    """[kernel * in, out]: each output's input rows side by side; or, where `scattered`, [in, kernel * out]: the
    shifted outputs of each input row, which are then summed. That moves fewer numbers when `out` is small."""
    bias: mx.array
    inputs: int
    kernel: int
    dilation: int
    scattered: bool

    @classmethod
    def build(
        cls, weights: Weights, name: str, inputs: int, outputs: int, kernel: int, *, dilation: int = 1
    ) -> "Conv":
        weight = weights.array(f"{name}.weight", outputs, inputs, kernel)
        scattered = outputs < inputs
        if scattered:
            weight = weight.transpose(1, 2, 0).reshape(inputs, kernel * outputs)
        else:
            weight = weight.transpose(2, 1, 0).reshape(kernel * inputs, outputs)
        bias = weights.array(f"{name}.bias", outputs)
        return cls(mx.contiguous(weight), bias, inputs, kernel, dilation, scattered)

    def __call__(self, x: mx.array, history: History) -> mx.array:
        steps = x.shape[0]
        joined = history.extend(x, self.past)
        if not self.scattered:
            return mx.addmm(self.bias, taps(joined, steps, self.kernel, self.dilation), self.weight)
        spread, y, width = joined @ self.weight, self.bias, self.bias.shape[0]
        for tap in range(self.kernel):
            first = tap * self.dilation
            y = y + spread[first : first + steps, tap * width : (tap + 1) * width]
        return y

    @property
    def past(self) -> int:
        """Input rows that the next outputs need again."""
        return (self.kernel - 1) * self.dilation

    @property
    def matrix(self) -> mx.array:
        """[kernel * in, out], scattered or not."""
        if not self.scattered:
            return self.weight
        return (
            self.weight.reshape(self.inputs, self.kernel, -1).swapaxes(0, 1).reshape(-1, self.bias.shape[0])
        )


class Upsample(NamedTuple):
    """Causal transposed convolution, kernel a multiple of the stride; weight [taps * in, stride * out]."""

    weight: mx.array
    bias: mx.array
    stride: int
    taps: int

    @classmethod
    def build(
        cls, weights: Weights, name: str, inputs: int, outputs: int, kernel: int, stride: int
    ) -> "Upsample":
        count = kernel // stride
        weight = weights.array(f"{name}.weight", inputs, outputs, kernel)
        # Tap 0 meets the oldest row, which reaches the last `stride` outputs of its kernel.
        weight = weight.reshape(inputs, outputs, count, stride)[:, :, ::-1]
        weight = weight.transpose(2, 0, 3, 1).reshape(count * inputs, stride * outputs)
        bias = mx.tile(weights.array(f"{name}.bias", outputs), stride)
        return cls(mx.contiguous(weight), bias, stride, count)

    def __call__(self, x: mx.array, history: History) -> mx.array:
        joined = history.extend(x, self.taps - 1)
        rows = mx.addmm(self.bias, taps(joined, x.shape[0], self.taps, 1), self.weight)
        return rows.reshape(x.shape[0] * self.stride, -1)


class Snake(NamedTuple):
    """x + sin(alpha x)^2 / beta in fp32; the checkpoint stores the logarithms of alpha and beta."""

    alpha: mx.array
    """On the CPU in half turns, alpha / π."""
    inverse_beta: mx.array

    @classmethod
    def build(cls, weights: Weights, name: str, channels: int) -> "Snake":
        alpha = weights.array(f"{name}.alpha", channels, dtype=mx.float32)
        beta = weights.array(f"{name}.beta", channels, dtype=mx.float32)
        unit = math.pi if on_cpu() else 1.0
        return cls(mx.exp(alpha) / unit, 1.0 / (mx.exp(beta) + 1e-9))

    def __call__(self, x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        angle = wide * self.alpha
        squared = _half_turns(angle) if on_cpu() else mx.square(mx.sin(angle))
        return (wide + self.inverse_beta * squared).astype(x.dtype)


class Residual(NamedTuple):
    """Snake, dilated conv, snake, 1x1 conv, added to the input."""

    first: Snake
    wide: Conv
    second: Snake
    point: Conv

    @classmethod
    def build(cls, weights: Weights, name: str, channels: int, dilation: int) -> "Residual":
        return cls(
            Snake.build(weights, f"{name}.act1", channels),
            Conv.build(weights, f"{name}.conv1.conv", channels, channels, 7, dilation=dilation),
            Snake.build(weights, f"{name}.act2", channels),
            Conv.build(weights, f"{name}.conv2.conv", channels, channels, 1),
        )

    def __call__(self, x: mx.array, history: History) -> mx.array:
        return x + self.point(self.second(self.wide(self.first(x), history)), history)


class ConvNeXt(NamedTuple):
    """Depthwise conv, layer norm, two products around an exact GELU, scaled and added to the input."""

    depthwise: mx.array
    """[7, C]"""
    depthwise_bias: mx.array
    norm: mx.array
    norm_bias: mx.array
    widen: mx.array
    widen_bias: mx.array
    narrow: mx.array
    """[4 C, C], times the block's scale"""
    narrow_bias: mx.array

    @classmethod
    def build(cls, weights: Weights, name: str, channels: int) -> "ConvNeXt":
        scale = weights.array(f"{name}.gamma", channels)
        return cls(
            mx.contiguous(weights.array(f"{name}.dwconv.conv.weight", channels, 1, 7)[:, 0].T),
            weights.array(f"{name}.dwconv.conv.bias", channels),
            weights.array(f"{name}.norm.weight", channels),
            weights.array(f"{name}.norm.bias", channels),
            mx.contiguous(weights.array(f"{name}.pwconv1.weight", 4 * channels, channels).T),
            weights.array(f"{name}.pwconv1.bias", 4 * channels),
            mx.contiguous(weights.array(f"{name}.pwconv2.weight", channels, 4 * channels).T * scale),
            weights.array(f"{name}.pwconv2.bias", channels) * scale,
        )

    def __call__(self, x: mx.array, history: History) -> mx.array:
        steps, kernel = x.shape[0], self.depthwise.shape[0]
        joined = history.extend(x, kernel - 1)
        mixed = self.depthwise_bias
        for tap in range(kernel):
            mixed = mixed + joined[tap : tap + steps] * self.depthwise[tap]
        mixed = layer_norm(mixed, self.norm, self.norm_bias, 1e-6)
        wide = mx.addmm(self.widen_bias, mixed, self.widen)
        return x + mx.addmm(self.narrow_bias, gelu(wide), self.narrow)


def _half_turns(x: mx.array) -> mx.array:
    """sin(π x)², within 2e-7: MLX's sine on the CPU takes 7 times as long as these operations.

    It has period 1 and is even: a polynomial in the square of the distance from the nearest whole number, whose
    coefficients were fitted to the least largest error.
    """
    square = mx.square(x - mx.round(x))
    made = square * _SINE[0]
    for coefficient in _SINE[1:]:
        made = (made + coefficient) * square
    return made


_SINE = (-3.27294645, 12.9907307, -30.0859533, 42.7253848, -32.4695811, 9.86960292)


def taps(joined: mx.array, steps: int, kernel: int, dilation: int) -> mx.array:
    """The `kernel` rows that each of `steps` outputs sees, side by side: [steps, kernel * C]."""
    if kernel == 1:
        return joined
    return mx.concatenate([joined[i * dilation : i * dilation + steps] for i in range(kernel)], axis=-1)
