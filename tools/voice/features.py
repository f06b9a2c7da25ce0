"""What a frame of 80 ms sounds like, as numbers: envelope, voicing and pitch of its eight 10 ms steps.

All lengths are at 24 kHz. The envelope is a short cepstrum of mel energies, so the harmonics of the pitch are
smoothed away and the pitch is kept apart.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .flite import PITCH_STEP_S

Floats = NDArray[np.float32]

RATE = 24000
FRAME = 1920
STEPS = 8
STEP = FRAME // STEPS
WINDOW, FFT, MELS, CEPSTRA = 600, 1024, 40, 20
FLOOR = 1e-7
PHONES = (
    *("pau", "aa", "ae", "ah", "ao", "aw", "ax", "ay", "b", "ch", "d", "dh", "eh", "er", "ey", "f", "g", "hh"),
    *("ih", "iy", "jh", "k", "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "t", "th", "uh", "uw", "v"),
    *("w", "y", "z", "zh"),
)  # fmt: skip
"""Flite's American English phones; the talker learns to name them while it trains"""


@dataclass
class Analysis:
    """One utterance in frames."""

    samples: NDArray[np.int16]
    """[frames * FRAME]"""
    envelope: Floats
    """[frames, STEPS * CEPSTRA]"""
    voicing: Floats
    """[frames, STEPS], 0..1"""
    pitch: Floats
    """[frames, STEPS], log2 of Hz, 0 where unvoiced"""
    phones: NDArray[np.uint8]
    """[frames, 2], the phone at one and at three quarters of the frame"""


@cache
def _mel_filters() -> Floats:
    top = 2595 * np.log10(1 + 10000 / 700)
    hertz = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rising = (bins[None] - hertz[:-2, None]) / np.diff(hertz)[:-1, None]
    falling = (hertz[2:, None] - bins[None]) / np.diff(hertz)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return (filters / filters.sum(1, keepdims=True)).astype(np.float32)


@cache
def _cosines() -> Floats:
    """Orthonormal DCT-II, [MELS, CEPSTRA]."""
    angle = np.pi * (np.arange(MELS)[:, None] + 0.5) * np.arange(CEPSTRA)[None] / MELS
    basis = np.cos(angle) * np.sqrt(2 / MELS)
    basis[:, 0] /= np.sqrt(2)
    return basis.astype(np.float32)


def envelope(samples: Floats) -> Floats:
    """[frames * FRAME] samples to [frames, STEPS * CEPSTRA] cepstra, one window centred in each step."""
    steps = len(samples) // STEP
    side = (WINDOW - STEP) // 2
    padded = np.pad(samples, (side, side + STEP))
    at = np.arange(steps)[:, None] * STEP + np.arange(WINDOW)[None]
    windowed = padded[at] * np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(windowed, FFT)) ** 2 / WINDOW
    cepstra = np.log(power.astype(np.float32) @ _mel_filters().T + FLOOR) @ _cosines()
    return cepstra.reshape(-1, STEPS * CEPSTRA)


def analyse(
    samples: Floats,
    track: Floats,
    phones: list[tuple[str, float]],
    speed: float,
    lead_s: float,
    tail_s: float,
) -> Analysis | None:
    """Cut an engine's utterance into frames; None where there is no speech or an unknown phone in it.

    samples are already at RATE and played faster by speed; track (Hz) and phones are on the engine's own clock.
    The first phone begins lead_s after the start; at least tail_s of silence close the last.
    """
    names = [name for name, _ in phones]
    spoken = [i for i, name in enumerate(names) if name != "pau"]
    if not spoken or any(name not in PHONES for name in names) or not np.isfinite(track).all():
        return None
    begin = phones[spoken[0] - 1][1] / speed if spoken[0] else 0.0
    end = phones[spoken[-1]][1] / speed
    start = round((begin - lead_s) * RATE)
    body = samples[max(0, start) : round((end + 0.06) * RATE)]
    body = np.concatenate([np.zeros(max(0, -start), np.float32), body - body.mean()])
    fade = np.linspace(0, 1, 240, dtype=np.float32)
    body[:240] *= fade
    body[-240:] *= fade[::-1]
    loud = float(np.sqrt((body**2).mean()))
    if loud < 1e-4:
        return None
    body *= min(0.09 / loud, 0.95 / float(np.abs(body).max()))
    frames = int(np.ceil((len(body) + tail_s * RATE) / FRAME))
    body = np.pad(body, (0, frames * FRAME - len(body)))

    centre = (np.arange(frames * STEPS) + 0.5) * STEP / RATE + start / RATE
    at = centre * speed / PITCH_STEP_S
    pairs = np.stack([np.floor(at - 0.5), np.floor(at + 0.5)]).astype(int)
    inside = (pairs >= 0) & (pairs < len(track)) & (centre[None] < end)
    hertz = np.where(inside, track[np.clip(pairs, 0, len(track) - 1)], 0) * speed
    voiced = hertz > 20
    count = voiced.sum(0)
    mean = np.where(voiced, np.log2(np.maximum(hertz, 20)), 0).sum(0) / np.maximum(count, 1)

    middles = (np.arange(frames)[:, None] + np.array([0.25, 0.75])) * FRAME / RATE + start / RATE
    ends = np.array([end for _, end in phones]) / speed
    numbers = np.array([PHONES.index(name) for name in names] + [0], np.uint8)
    return Analysis(
        samples=(body * 32767).astype(np.int16),
        envelope=envelope(body),
        voicing=(count / 2).reshape(frames, STEPS).astype(np.float32),
        pitch=mean.reshape(frames, STEPS).astype(np.float32),
        phones=numbers[np.searchsorted(ends, middles)],
    )
