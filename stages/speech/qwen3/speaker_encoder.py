"""The speaker encoder: reference audio → x-vector, an ECAPA-TDNN over log-mel frames, in fp32.

All of it is rows [T, C]. Its convolutions keep the length by reflecting the rows at both ends. A reference is
encoded once, so plain products do: [T, kernel * in] @ [kernel * in, out].
"""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .codec_layers import taps
from .config import SpeakerConfig
from .weights import Weights

RATE = 24_000
WINDOW, HOP = 1024, 256

Samples = npt.NDArray[np.float32]


class Tdnn(NamedTuple):
    """Convolution of stride 1 over reflected rows."""

    weight: mx.array
    """[kernel * in, out]"""
    bias: mx.array
    kernel: int
    dilation: int

    @classmethod
    def build(
        cls, weights: Weights, name: str, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1
    ) -> "Tdnn":
        weight = weights.array(f"{name}.weight", outputs, inputs, kernel)
        return cls(
            mx.contiguous(weight.transpose(2, 1, 0).reshape(kernel * inputs, outputs)),
            weights.array(f"{name}.bias", outputs),
            kernel,
            dilation,
        )

    def __call__(self, x: mx.array) -> mx.array:
        steps, past = x.shape[0], (self.kernel - 1) * self.dilation // 2
        if past:
            x = mx.concatenate([x[past:0:-1], x, x[-2 : -2 - past : -1]], axis=0)
        return mx.addmm(self.bias, taps(x, steps, self.kernel, self.dilation), self.weight)


class Block(NamedTuple):
    """Squeeze-excitation Res2Net block."""

    enter: Tdnn
    parts: list[Tdnn]
    leave: Tdnn
    squeeze: Tdnn
    excite: Tdnn

    @classmethod
    def build(cls, weights: Weights, name: str, config: SpeakerConfig, inputs: int, index: int) -> "Block":
        outputs, scale = config.enc_channels[index], config.enc_res2net_scale
        kernel, dilation = config.enc_kernel_sizes[index], config.enc_dilations[index]
        part = outputs // scale
        return cls(
            Tdnn.build(weights, f"{name}.tdnn1.conv", inputs, outputs),
            [
                Tdnn.build(weights, f"{name}.res2net_block.blocks.{i}.conv", part, part, kernel, dilation)
                for i in range(scale - 1)
            ],
            Tdnn.build(weights, f"{name}.tdnn2.conv", outputs, outputs),
            Tdnn.build(weights, f"{name}.se_block.conv1", outputs, config.enc_se_channels),
            Tdnn.build(weights, f"{name}.se_block.conv2", config.enc_se_channels, outputs),
        )

    def __call__(self, x: mx.array) -> mx.array:
        first, *others = mx.split(_relu(self.enter(x)), len(self.parts) + 1, axis=1)
        made, last = [first], None
        for part, rows in zip(self.parts, others, strict=True):
            last = _relu(part(rows if last is None else rows + last))
            made.append(last)
        y = _relu(self.leave(mx.concatenate(made, axis=1)))
        gate = mx.sigmoid(self.excite(_relu(self.squeeze(y.mean(axis=0, keepdims=True)))))
        return x + y * gate


class SpeakerEncoder:
    def __init__(self, config: SpeakerConfig, weights: Weights) -> None:
        """:param weights: of dtype float32."""
        channels, name = config.enc_channels, "speaker_encoder"
        self.size = config.enc_dim
        self._filters = mel_filters(config.mel_dim)
        self._first = Tdnn.build(
            weights,
            f"{name}.blocks.0.conv",
            config.mel_dim,
            channels[0],
            config.enc_kernel_sizes[0],
            config.enc_dilations[0],
        )
        self._blocks = [
            Block.build(weights, f"{name}.blocks.{i}", config, channels[i - 1], i)
            for i in range(1, len(channels) - 1)
        ]
        wide = channels[-1]
        self._join = Tdnn.build(
            weights, f"{name}.mfa.conv", wide, wide, config.enc_kernel_sizes[-1], config.enc_dilations[-1]
        )
        self._attend = Tdnn.build(weights, f"{name}.asp.tdnn.conv", 3 * wide, config.enc_attention_channels)
        self._score = Tdnn.build(weights, f"{name}.asp.conv", config.enc_attention_channels, wide)
        self._out = Tdnn.build(weights, f"{name}.fc", 2 * wide, config.enc_dim)

    def __call__(self, samples: Samples) -> mx.array:
        """float32 samples [N] within ±1 at 24 kHz, N > 1024 → x-vector float32 [enc_dim]. Lazy."""
        return self.embed(mx.array(self.mel(samples)))

    def mel(self, samples: Samples) -> Samples:
        """Log-mel frames [M, mel_dim]: periodic Hann of 1024, hop 256, 384 samples reflected at both ends.

        On the host in float64: there are few, and a device may multiply float32 with fewer bits.
        """
        edge = (WINDOW - HOP) // 2
        padded = np.pad(samples.astype(np.float64), edge, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
        spectrum = np.fft.rfft(frames * window, axis=1)
        size = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
        return np.log(np.maximum(size @ self._filters.T, 1e-5)).astype(np.float32)

    def embed(self, mel: mx.array) -> mx.array:
        """Log-mel frames [M, mel_dim] → x-vector [enc_dim]."""
        x = _relu(self._first(mel))
        seen: list[mx.array] = []
        for block in self._blocks:
            x = block(x)
            seen.append(x)
        x = _relu(self._join(mx.concatenate(seen, axis=1)))
        mean, deviation = _statistics(x, mx.full((x.shape[0], 1), 1 / x.shape[0]))
        everywhere = mx.broadcast_to(mx.concatenate([mean, deviation])[None], (x.shape[0], 2 * x.shape[1]))
        scores = self._score(mx.tanh(_relu(self._attend(mx.concatenate([x, everywhere], axis=1)))))
        pooled = mx.concatenate(list(_statistics(x, mx.softmax(scores, axis=0))))
        return self._out(pooled[None])[0]


def _relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


def _statistics(x: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    """Weighted mean and deviation over the rows of x [T, C]: [C] each."""
    mean = (weight * x).sum(axis=0)
    return mean, mx.sqrt(mx.maximum((weight * mx.square(x - mean)).sum(axis=0), 1e-12))


def mel_filters(bands: int) -> npt.NDArray[Any]:
    """Triangles over the 513 bins of a 1024-point spectrum at 24 kHz, 0 to 12 kHz, each of area 1: [bands, 513].

    Slaney's scale (Auditory Toolbox): linear below 1 kHz, 200/3 Hz a mel, then logarithmic, 27 mels for a factor
    of 6.4.
    """
    linear, knee, step = 200 / 3, 15.0, np.log(6.4) / 27
    top = knee + np.log(RATE / 2 / 1000) / step
    mels = np.linspace(0, top, bands + 2)
    edges = np.where(mels < knee, mels * linear, 1000 * np.exp(step * (mels - knee)))
    bins = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
