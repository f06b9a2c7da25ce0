"""The speaker encoder, sound to a voice's traits, with the structure and the parameter names of the released one.

Log-mel frames -> an ECAPA-TDNN -> numbers. It learns the traits of a voice (voices.py). The talker's row for a
voice is linear in them: the way from traits to the row is multiplied into the last layer when it is exported.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .features import RATE
from .voices import TRAITS

WINDOW, HOP, MELS = 1024, 256, 128
KERNELS, DILATIONS = (5, 3, 3, 3, 1), (1, 2, 3, 4, 1)


@dataclass(frozen=True)
class SpeakerSize:
    """Widths; the defaults are those that ship."""

    channels: int = 32
    """of each of the three blocks; what comes behind them is three times as wide"""
    attention: int = 32
    squeeze: int = 16
    scale: int = 4
    """parts of a Res2Net block"""


def mel_filters() -> NDArray[np.float32]:
    """[MELS, WINDOW / 2 + 1] triangles of area 1 on Slaney's scale, 0 to 12 kHz."""
    points = np.linspace(0, 15 + 27 * np.log(RATE / 2000) / np.log(6.4), MELS + 2)
    edges = np.where(points < 15, points * 200 / 3, 1000 * 6.4 ** ((points - 15) / 27))
    bins = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])[:, None]
    return triangles.astype(np.float32)


class LogMel(nn.Module):
    """[batch, n] samples within ±1 -> [batch, MELS, n / HOP]"""

    window: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.register_buffer("filters", torch.from_numpy(mel_filters()), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        padded = functional.pad(samples[:, None], ((WINDOW - HOP) // 2,) * 2, mode="reflect")[:, 0]
        bins = torch.stft(padded, WINDOW, HOP, window=self.window, center=False, return_complex=True)
        size = (torch.view_as_real(bins).square().sum(-1) + 1e-9).sqrt()
        return (self.filters @ size).clamp(min=1e-5).log()


class Tdnn(nn.Module):
    """Convolution over reflected rows, then ReLU. [batch, in, time] -> [batch, out, time]"""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect"
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv(x))


class _Res2Net(nn.Module):
    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        part = channels // scale
        self.blocks = nn.ModuleList([Tdnn(part, part, kernel, dilation) for _ in range(scale - 1)])

    def forward(self, x: Tensor) -> Tensor:
        first, *others = x.chunk(len(self.blocks) + 1, 1)
        made, last = [first], torch.zeros_like(first)
        for block, rows in zip(self.blocks, others, strict=True):
            last = block(rows + last)
            made.append(last)
        return torch.cat(made, 1)


class _Squeeze(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(channels, inner, 1), nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv2(functional.relu(self.conv1(x.mean(2, keepdim=True)))).sigmoid()


class _Block(nn.Module):
    def __init__(self, size: SpeakerSize, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1, self.tdnn2 = Tdnn(size.channels, size.channels), Tdnn(size.channels, size.channels)
        self.res2net_block = _Res2Net(size.channels, size.scale, kernel, dilation)
        self.se_block = _Squeeze(size.channels, size.squeeze)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class _Pooling(nn.Module):
    """Mean and deviation over time, weighted by what is said at each moment."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn, self.conv = Tdnn(3 * channels, inner), nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        everywhere = torch.cat(_statistics(x, even), 1).expand(-1, -1, x.shape[2])
        weight = self.conv(self.tdnn(torch.cat([x, everywhere], 1)).tanh()).softmax(2)
        return torch.cat(_statistics(x, weight), 1)


def _statistics(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weight * x).sum(2, keepdim=True)
    return mean, (weight * (x - mean).square()).sum(2, keepdim=True).clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """[batch, n] samples -> [batch, TRAITS]"""

    def __init__(self, size: SpeakerSize = SpeakerSize()) -> None:
        super().__init__()
        self.size, wide = size, 3 * size.channels
        self.mel = LogMel()
        first = Tdnn(MELS, size.channels, KERNELS[0], DILATIONS[0])
        blocks = [_Block(size, KERNELS[i], DILATIONS[i]) for i in (1, 2, 3)]
        self.blocks = nn.ModuleList([first, *blocks])
        self.mfa, self.asp = Tdnn(wide, wide, KERNELS[4], DILATIONS[4]), _Pooling(wide, size.attention)
        self.fc = nn.Conv1d(2 * wide, TRAITS, 1)

    def forward(self, samples: Tensor) -> Tensor:
        x, seen = self.mel(samples), list[Tensor]()
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(seen[1:], 1))))[..., 0]
