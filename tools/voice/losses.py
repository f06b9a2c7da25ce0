"""What makes two sounds alike: distances between spectra, and critics that learn the difference (GAN)."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from .features import RATE

RESOLUTIONS = ((2048, 480, 96), (1024, 240, 80), (512, 120, 48), (256, 60, 24))
"""FFT, hop, mel bands"""


@cache
def _mel(fft: int, bands: int, device: torch.device) -> Tensor:
    top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700))
    hertz = 700 * (10 ** (torch.linspace(0, float(top), bands + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, fft // 2 + 1)
    rising = (bins[None] - hertz[:-2, None]) / hertz.diff()[:-1, None]
    falling = (hertz[2:, None] - bins[None]) / hertz.diff()[1:, None]
    filters = torch.minimum(rising, falling).clamp(min=0)
    return (filters / filters.sum(1, keepdim=True).clamp(min=1e-3)).to(device)


def spectrum(x: Tensor, fft: int, hop: int) -> Tensor:
    """[batch, samples] -> complex [batch, bins, time], scaled so that white noise keeps its level."""
    window = torch.hann_window(fft, device=x.device)
    return torch.stft(x, fft, hop, window=window, return_complex=True, pad_mode="constant") / fft**0.5


def spectral_distance(made: Tensor, real: Tensor) -> Tensor:
    """Log mel, log magnitude and convergence, averaged over RESOLUTIONS."""
    total = torch.zeros((), device=made.device)
    for fft, hop, bands in RESOLUTIONS:
        a = (spectrum(made, fft, hop).abs() ** 2 + 1e-9).sqrt()
        b = spectrum(real, fft, hop).abs()
        mel = _mel(fft, bands, made.device)
        total = total + functional.l1_loss((mel @ a + 1e-4).log(), (mel @ b + 1e-4).log())
        total = (
            total
            + 0.3 * functional.l1_loss((a + 1e-3).log(), (b + 1e-3).log())
            + 0.5 * (a - b).norm() / (b.norm() + 1e-3)
        )
    return total / len(RESOLUTIONS)


def _normed(layer: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(layer)


class _PeriodCritic(nn.Module):
    """Looks at every n-th sample (HiFi-GAN's multi-period discriminator)."""

    def __init__(self, period: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.period = period
        pairs = zip((1, *widths), widths, strict=False)
        self.layers = nn.ModuleList([_normed(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0))) for i, o in pairs])
        self.out = _normed(nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = x[:, : x.shape[1] // self.period * self.period].reshape(len(x), 1, -1, self.period)
        seen: list[Tensor] = []
        for layer in self.layers:
            x = functional.leaky_relu(layer(x), 0.1)
            seen.append(x)
        return [*seen, self.out(x)]


class _SpectrumCritic(nn.Module):
    """Looks at a compressed complex spectrum."""

    def __init__(self, fft: int, width: int) -> None:
        super().__init__()
        self.fft = fft
        shapes = [
            (2, (7, 5), (2, 1)),
            (width, (5, 3), (2, 2)),
            (width, (5, 3), (2, 1)),
            (width, (5, 3), (2, 1)),
        ]
        self.layers = nn.ModuleList(
            [_normed(nn.Conv2d(i, width, k, s, (k[0] // 2, k[1] // 2))) for i, k, s in shapes]
        )
        self.out = _normed(nn.Conv2d(width, 1, 3, 1, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            x = torch.view_as_real(spectrum(x.float(), self.fft, self.fft // 4)).permute(0, 3, 1, 2)
            x = x / (x.abs() + 1e-2).sqrt()
        seen: list[Tensor] = []
        for layer in self.layers:
            x = functional.leaky_relu(layer(x), 0.1)
            seen.append(x)
        return [*seen, self.out(x)]


class Critics(nn.Module):
    """All critics; each gives its layers' outputs, the verdict last."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 192), width: int = 32) -> None:
        super().__init__()
        periods = [_PeriodCritic(period, widths) for period in (2, 3, 5, 7, 11)]
        self.critics = nn.ModuleList([*periods, *(_SpectrumCritic(fft, width) for fft in (1024, 512, 256))])

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        return [critic(x) for critic in self.critics]


def critics_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Least squares: real towards 1, made towards 0."""
    pairs = zip(real, made, strict=True)
    return torch.stack(
        [((r[-1].float() - 1) ** 2).mean() + (m[-1].float() ** 2).mean() for r, m in pairs]
    ).mean()


def deception_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """How far the critics are from taking made for real, and how far their layers differ."""
    verdict = torch.stack([((m[-1].float() - 1) ** 2).mean() for m in made]).mean()
    layers = [
        functional.l1_loss(a.float(), b.float().detach()) / (b.float().detach().abs().mean() + 1e-3)
        for m, r in zip(made, real, strict=True)
        for a, b in zip(m[:-1], r[:-1], strict=True)
    ]
    return verdict, torch.stack(layers).mean()
