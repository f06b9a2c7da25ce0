"""The codec's encoder, 24 kHz sound to codes, with the structure and the parameter names of the released one.

Causal convolutions with strides -> transformer at 25 Hz -> stride 2 -> two residual quantizers side by side, for
group 0 and for all the later groups. Only the widths are small. The tables are the quantizer's, whose codes are to
be the nearest neighbours of what the encoder gives.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .decoder import rotary, rotate
from .features import FRAME
from .quantizer import FIRST, GROUPS, Quantizer

STRIDES = (8, 6, 5, 4)
"""The released order is 4, 5, 6, 8. A fast start leaves the widths to rows of 10 ms, the step of the features."""
PITCH = 3
"""numbers of a later group's entry that say the pitch: mean, slope, voiced or not"""
PITCH_CENTRE, PITCH_SCALE, VOICED = 7.2, 3.0, 2.0
LEVELS = (0.5, 2.5)
"""powers of ten that the sound is multiplied by when training begins"""
FAR = 100.0
"""every number of an entry that does not exist, so that it is never the nearest"""


@dataclass(frozen=True)
class EncoderSize:
    """Widths; the defaults are those that ship."""

    filters: int = 16
    """at 24 kHz; doubled by each stride"""
    hidden: int = 128
    heads: int = 2
    head: int = 48
    layers: int = 2
    inner: int = 432
    table: int = 36
    """numbers in a codebook entry"""


class Conv(nn.Module):
    """Causal convolution. [batch, in, time] -> [batch, out, time / stride]"""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride)
        self.past = kernel - stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (self.past, 0)))


class Residual(nn.Module):
    """ELU, conv of 3, ELU, conv of 1, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.Sequential(nn.ELU(), Conv(channels, half, 3), nn.ELU(), Conv(half, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class _Attention(nn.Module):
    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        width = size.heads * size.head
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size.hidden, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, size.hidden, bias=False)
        self.head = size.head

    def forward(self, x: Tensor, position: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *position), rotate(k, *position)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.3))


class _Layer(nn.Module):
    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        hidden = size.hidden
        self.self_attn = _Attention(size)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(hidden, size.inner, bias=False),
                "fc2": nn.Linear(size.inner, hidden, bias=False),
            }
        )
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.self_attn_layer_scale, self.mlp_layer_scale = _Scale(hidden), _Scale(hidden)

    def forward(self, x: Tensor, position: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn_layer_scale.scale * self.self_attn(self.input_layernorm(x), position)
        y = self.mlp["fc1"](self.post_attention_layernorm(x))
        return x + self.mlp_layer_scale.scale * self.mlp["fc2"](functional.gelu(y))


class _Transformer(nn.Module):
    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(size) for _ in range(size.layers)])
        self.head = size.head

    def forward(self, x: Tensor) -> Tensor:
        position = rotary(x.shape[1], self.head, 10000.0, device=x.device)
        for layer in self.layers:
            x = layer(x, position)
        return x


class Books(nn.Module):
    """One residual quantizer: the way in, and fixed tables [groups, FIRST, table]."""

    def __init__(self, groups: int, size: EncoderSize) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(size.hidden, size.table, 1, bias=False)
        self.register_buffer("tables", torch.zeros(groups, FIRST, size.table))

    def forward(self, rows: Tensor) -> Tensor:
        """[batch, hidden, time] -> [batch, time, table]"""
        return self.input_proj(rows).transpose(1, 2)

    def codes(self, points: Tensor) -> Tensor:
        """[..., table] -> [..., groups]"""
        left, found = points, list[Tensor]()
        for table in self.tables:  # pyright: ignore[reportGeneralTypeIssues]
            found.append(closeness(left, table).argmax(-1))
            left = left - table[found[-1]]
        return torch.stack(found, -1)


def closeness(points: Tensor, entries: Tensor) -> Tensor:
    """[..., n] half the square of a point's length minus half the square of its distance to each entry."""
    return points @ entries.T - (entries**2).sum(1) / 2


class Encoder(nn.Module):
    """[batch, frames * FRAME] samples -> what is quantised, and codes [batch, frames, GROUPS]."""

    def __init__(self, size: EncoderSize = EncoderSize()) -> None:
        super().__init__()
        assert 2 * prod(STRIDES) == FRAME
        self.size, width = size, size.filters
        layers: list[nn.Module] = [Conv(1, width, 7)]
        for stride in STRIDES:
            layers += [Residual(width), nn.ELU(), Conv(width, 2 * width, 2 * stride, stride)]
            width *= 2
        self.layers = nn.Sequential(*layers, nn.ELU(), Conv(width, size.hidden, 1))
        self.encoder_transformer = _Transformer(size)
        halve = nn.Conv1d(size.hidden, size.hidden, 4, 2, bias=False)
        self.downsample = nn.ModuleDict({"conv": halve})
        self.first, self.rest = Books(1, size), Books(GROUPS - 1, size)
        # Loudness counts by its logarithm: the first filters see the sound at levels from loud to faint.
        for module in self.layers.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.normal_(module.weight, std=(module.in_channels * module.kernel_size[0]) ** -0.5)
        layers[0].conv.weight.data *= torch.logspace(*LEVELS, size.filters)[:, None, None]  # pyright: ignore

    def rows(self, samples: Tensor) -> Tensor:
        """[batch, hidden, frames]"""
        rows = self.layers(samples[:, None])
        rows = self.encoder_transformer(rows.transpose(1, 2)).transpose(1, 2)
        return self.downsample["conv"](functional.pad(rows, (2, 0), mode="replicate"))

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """What group 0, and what the later groups are nearest neighbours of: [batch, frames, table] each."""
        rows = self.rows(samples)
        return self.first(rows), self.rest(rows)

    def codes(self, samples: Tensor) -> Tensor:
        """[batch, frames * FRAME] -> [batch, frames, GROUPS]"""
        first, rest = self(samples)
        return torch.cat([self.first.codes(first), self.rest.codes(rest)], -1)

    @torch.no_grad()
    def take_tables(self, quantizer: Quantizer) -> None:
        """Make the codebooks of the quantizer's tables: as many of their numbers as have room, rescaled."""
        scale, spectrum = scale_of(quantizer), self.size.table - PITCH
        tables = np.full((GROUPS, FIRST, self.size.table), FAR, np.float32)
        tables[0, 1:] = quantizer.first[1:, : self.size.table] / scale
        points = pitch_points(quantizer.pitch, np.arange(len(quantizer.pitch)) > 0)
        tables[1, : len(points)] = np.pad(points, ((0, 0), (0, spectrum)))
        for group, table in enumerate(quantizer.rest, 2):
            tables[group, : len(table)] = np.pad(table[:, :spectrum] / scale, ((0, 0), (PITCH, 0)))
        tables[quantizer.used :, 0] = 0
        # As they are stored.
        whole = torch.from_numpy(tables).half().float()
        self.first.tables.copy_(whole[:1])  # pyright: ignore
        self.rest.tables.copy_(whole[1:])  # pyright: ignore


def scale_of(quantizer: Quantizer) -> float:
    """What the quantizer's vectors are divided by: then what group 0 leaves is about 1 long."""
    return float(np.sqrt((quantizer.rest[0] ** 2).sum(1).mean()))


def pitch_points(pitch: NDArray[np.float32], voiced: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[n, PITCH] of quantizer.pitch_vectors; all unvoiced frames are one point."""
    flag = np.where(voiced, VOICED, -VOICED)[:, None]
    scaled = np.where(voiced[:, None], (pitch - [PITCH_CENTRE, 0]) * PITCH_SCALE, 0)
    return np.concatenate([scaled, flag], 1).astype(np.float32)
