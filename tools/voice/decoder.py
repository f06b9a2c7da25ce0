"""The codec's decoder, codes to 24 kHz sound, with the structure and the parameter names of the released one.

Tables and projections -> causal convolution -> transformer with a 72-frame window -> two doublings with ConvNeXt ->
four blocks (rates 8, 5, 4, 3: SnakeBeta, transposed convolution, three dilated residual units) -> samples. Only the
widths are small.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .quantizer import DIMS, FIRST, GROUPS, Quantizer

RATES = (8, 5, 4, 3)
UPSAMPLE = (2, 2)


@dataclass(frozen=True)
class DecoderSize:
    """Widths; the defaults are those that ship."""

    table: int = 64
    """numbers in a codebook entry"""
    latent: int = 192
    hidden: int = 192
    heads: int = 3
    head: int = 64
    layers: int = 2
    inner: int = 512
    channels: int = 256
    """at 50 Hz; halved in each block"""
    window: int = 72


class CausalConv(nn.Module):
    """Convolution that sees only the past. [batch, in, time] -> [batch, out, time]"""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (self.past, 0)))


class CausalUpsample(nn.Module):
    """Transposed convolution without its tail. [batch, in, time] -> [batch, out, time * rate]"""

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, rate)
        self.tail = kernel - rate

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x[..., : x.shape[-1] - self.tail]


def _snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return x + torch.sin(x * alpha.exp()[:, None]) ** 2 / (beta.exp()[:, None] + 1e-9)


class SnakeBeta(nn.Module):
    """x + sin²(αx)/β with α and β a channel, kept as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return _snake(x, self.alpha, self.beta)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.conv1 = SnakeBeta(channels), CausalConv(channels, channels, 7, dilation)
        self.act2, self.conv2 = SnakeBeta(channels), CausalConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class Block(nn.Module):
    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = [ResidualUnit(half, dilation) for dilation in (1, 3, 9)]
        self.block = nn.ModuleList(
            [SnakeBeta(channels), CausalUpsample(channels, half, 2 * rate, rate), *units]
        )

    def forward(self, x: Tensor) -> Tensor:
        for part in self.block:
            x = part(x)
        return x


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        return x + (self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))).transpose(1, 2)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


def rotary(
    length: int, head: int, theta: float, start: int = 0, device: str | torch.device = "cpu"
) -> tuple[Tensor, Tensor]:
    """cos and sin, [length, head] each, the two halves alike (rotate-half form)."""
    rates = theta ** (-torch.arange(0, head, 2, device=device).float() / head)
    angles = torch.arange(start, start + length, device=device).float()[:, None] * rates
    return torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [..., time, head]."""
    left, right = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-right, left], -1) * sin.to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, size: DecoderSize) -> None:
        super().__init__()
        width = size.heads * size.head
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size.hidden, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, size.hidden, bias=False)
        self.head = size.head

    def forward(self, x: Tensor, position: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(
            rotate(q, *position), rotate(k, *position), v, attn_mask=mask
        )
        return self.o_proj(y.transpose(1, 2).flatten(2))


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.1))


class _Layer(nn.Module):
    def __init__(self, size: DecoderSize) -> None:
        super().__init__()
        hidden, inner = size.hidden, size.inner
        self.self_attn = _Attention(size)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, inner, bias=False),
                "up_proj": nn.Linear(hidden, inner, bias=False),
                "down_proj": nn.Linear(inner, hidden, bias=False),
            }
        )
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(hidden, 1e-5), RmsNorm(hidden, 1e-5)
        self.self_attn_layer_scale, self.mlp_layer_scale = _Scale(hidden), _Scale(hidden)

    def forward(self, x: Tensor, position: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale.scale * self.self_attn(self.input_layernorm(x), position, mask)
        y = self.post_attention_layernorm(x)
        y = self.mlp["down_proj"](functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))
        return x + self.mlp_layer_scale.scale * y


class _Transformer(nn.Module):
    def __init__(self, size: DecoderSize) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.ModuleList([_Layer(size) for _ in range(size.layers)])
        self.norm = RmsNorm(size.hidden, 1e-5)
        self.input_proj, self.output_proj = (
            nn.Linear(size.latent, size.hidden),
            nn.Linear(size.hidden, size.latent),
        )

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        at = torch.arange(length, device=x.device)
        age = at[:, None] - at[None]
        position = rotary(length, self.size.head, 10000.0, device=x.device)
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, position, (age >= 0) & (age < self.size.window))
        return self.output_proj(self.norm(x))


class Tables(nn.Module):
    """Codebooks of the first group or of all the later ones, and the projection out of them."""

    def __init__(self, groups: int, size: DecoderSize) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.zeros(groups, FIRST, size.table))
        self.output_proj = nn.Conv1d(size.table, 2 * size.table, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """[batch, groups, time] -> [batch, 2 * table, time]"""
        at = torch.arange(len(self.tables), device=codes.device)[:, None] * FIRST
        entries = functional.embedding(codes + at, self.tables.flatten(0, 1))
        return self.output_proj(entries.sum(1).transpose(1, 2))


class Decoder(nn.Module):
    """[batch, GROUPS, frames] codes -> [batch, frames * 1920] samples."""

    def __init__(self, size: DecoderSize = DecoderSize()) -> None:
        super().__init__()
        self.size = size
        self.first, self.rest = Tables(1, size), Tables(GROUPS - 1, size)
        self.pre_conv = CausalConv(2 * size.table, size.latent, 3)
        self.pre_transformer = _Transformer(size)
        doubling = [[CausalUpsample(size.latent, size.latent, r, r), ConvNeXt(size.latent)] for r in UPSAMPLE]
        self.upsample = nn.ModuleList([nn.ModuleList(pair) for pair in doubling])
        widths = [size.channels >> i for i in range(len(RATES) + 1)]
        blocks = [Block(width, rate) for width, rate in zip(widths, RATES, strict=False)]
        self.decoder = nn.ModuleList(
            [
                CausalConv(size.latent, widths[0], 7),
                *blocks,
                SnakeBeta(widths[-1]),
                CausalConv(widths[-1], 1, 7),
            ]
        )

    def latents(self, codes: Tensor) -> Tensor:
        """[batch, GROUPS, frames] -> [batch, latent, frames * 4]"""
        x = self.pre_conv(self.first(codes[:, :1]) + self.rest(codes[:, 1:]))
        x = self.pre_transformer(x.transpose(1, 2)).transpose(1, 2)
        for double, refine in self.upsample:  # pyright: ignore[reportGeneralTypeIssues]
            x = refine(double(x))
        return x

    def sound(self, latents: Tensor) -> Tensor:
        """[batch, latent, time at 50 Hz] -> [batch, time * 480]"""
        for part in self.decoder:
            latents = part(latents)
        return latents[:, 0]

    def forward(self, codes: Tensor) -> Tensor:
        return self.sound(self.latents(codes)).clamp(-1, 1)

    @torch.no_grad()
    def start_from(self, quantizer: Quantizer) -> None:
        """Begin with tables that say what the codes stand for, instead of with noise."""
        if self.size.table < DIMS + 8:
            return
        scale = float((quantizer.speakers.std() + quantizer.first.std()) or 1.0)
        self.first.tables[0, : len(quantizer.first), :DIMS] = torch.from_numpy(quantizer.first) / scale
        for group, table in enumerate(quantizer.rest, 1):
            self.rest.tables[group, : len(table), :DIMS] = torch.from_numpy(table) / scale
        octaves, slope = torch.from_numpy(quantizer.pitch).T
        turns = 2 * torch.pi * octaves
        shape = [torch.ones_like(octaves), octaves - 7.2, 4 * slope]
        for harmonic in (1, 2):
            shape += [(turns * harmonic).sin(), (turns * harmonic).cos()]
        self.rest.tables[0, : len(octaves), DIMS : DIMS + len(shape)] = torch.stack(shape, 1)
        self.rest.tables[0, 0] = 0
