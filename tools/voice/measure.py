"""What can be measured in 24 kHz sound without knowing how it was made: pitch, timbre, length of the speech."""

import numpy as np
from numpy.typing import NDArray

from .features import CEPSTRA, FRAME, RATE, STEP, envelope

Floats = NDArray[np.float32]
LOW_HZ, HIGH_HZ, WINDOW = 65, 330, 960
PERIODIC, QUIET_DB = 0.55, 30
"""least autocorrelation of a voiced step; silence is so far below the loudest steps"""


def _loud(samples: Floats) -> NDArray[np.bool_]:
    """[steps of 10 ms], where there is sound."""
    steps = samples[: len(samples) // STEP * STEP].reshape(-1, STEP)
    level = 10 * np.log10((steps**2).mean(1) + 1e-9)
    return level > np.percentile(level, 95) - QUIET_DB


def pitches(samples: Floats) -> Floats:
    """Hz of each step of 10 ms, 0 where unvoiced: the first high peak of the normalised autocorrelation."""
    steps = len(samples) // STEP
    padded = np.pad(samples, (WINDOW // 2, WINDOW))
    frames = padded[np.arange(steps)[:, None] * STEP + np.arange(WINDOW)[None]]
    frames = frames - frames.mean(1, keepdims=True)
    shortest, longest = RATE // HIGH_HZ, RATE // LOW_HZ
    power = np.abs(np.fft.rfft(frames, 2 * WINDOW)) ** 2
    products = np.fft.irfft(power)[:, : longest + 1]
    # The two stretches of the window that a lag compares have this much energy.
    sums = np.cumsum(frames**2, 1)
    lags = np.arange(longest + 1)
    before, after = sums[:, WINDOW - 1 - lags], sums[:, -1:] - np.where(lags > 0, sums[:, lags - 1], 0)
    likeness = products / np.sqrt(before * after + 1e-9)
    inside = likeness[:, shortest : longest + 1]
    best = inside.max(1)
    peak = (inside[:, 1:-1] >= inside[:, :-2]) & (inside[:, 1:-1] >= inside[:, 2:])
    first = (peak & (inside[:, 1:-1] > 0.9 * best[:, None])).argmax(1) + 1 + shortest
    voiced = _loud(samples) & (best > PERIODIC) & peak.any(1)
    return np.where(voiced, RATE / first, 0).astype(np.float32)


def pitch(samples: Floats) -> float:
    """Median Hz of the voiced steps; 0 if there is none."""
    found = pitches(samples)
    return float(np.median(found[found > 0])) if (found > 0).any() else 0.0


def timbre(samples: Floats) -> Floats:
    """[CEPSTRA - 1] mean cepstrum of the voiced steps, without the loudness."""
    whole = np.pad(samples, (0, -len(samples) % FRAME))
    cepstra = envelope(whole).reshape(-1, CEPSTRA)
    voiced = pitches(samples) > 0
    return cepstra[: len(voiced)][voiced, 1:].mean(0) if voiced.any() else np.zeros(CEPSTRA - 1, np.float32)


def speech_s(samples: Floats) -> float:
    """Seconds from the first to the last sound."""
    loud = np.flatnonzero(_loud(samples))
    return float(loud[-1] - loud[0] + 1) * STEP / RATE if len(loud) else 0.0
