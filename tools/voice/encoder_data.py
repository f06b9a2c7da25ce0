"""What the encoders learn from: each voice's sentences in one long row on the device, and changes to the sound."""

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .features import FRAME
from .quantizer import Quantizer, pitch_vectors, raw_vectors
from .shards import FRAMES_AN_HOUR, read

HELD_OUT = 20
"""one voice in so many is kept for the validation"""
GAIN_DB, TILT, NOISE_DB, PLAIN = 6.0, (-0.3, 0.4), (20.0, 60.0), 0.3
"""gain in dB either way, weight of the sample before, signal over noise in dB, and the share of rows left alone"""


class Streams:
    """All frames of some shards, sorted by voice: a crop goes over the ends of sentences, as references do."""

    def __init__(self, folders: list[Path], device: str, hours: float, wait_hours: float = 0.0) -> None:
        """:param hours: the most to read. :param wait_hours: the least to wait for, while synth runs."""
        while True:
            shards = [s for folder in folders for s in read(folder, hours, audio=True)]
            if shards and sum(int(s.frames.sum()) for s in shards) >= wait_hours * FRAMES_AN_HOUR:
                break
            time.sleep(2)
        voices = np.concatenate([s.voices for s in shards]).astype(np.int64)
        order = np.argsort(voices, kind="stable")
        self.voices = voices[order]
        sounds = [s.samples.reshape(-1, FRAME) for s in shards if s.samples is not None]
        self.samples = torch.from_numpy(np.concatenate(sounds)[order]).to(device)
        self.envelope, self.voicing, self.pitch = (
            np.concatenate([getattr(s, name) for s in shards])[order]
            for name in ("envelope", "voicing", "pitch")
        )

    @property
    def hours(self) -> float:
        return len(self.voices) / FRAMES_AN_HOUR

    def spans(self, frames: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places where a crop of so many frames of one voice begins: to train, and of voices held out."""
        whole = self.voices[: len(self.voices) - frames + 1] == self.voices[frames - 1 :]
        places, held = np.flatnonzero(whole), self.voices[: len(whole)] % HELD_OUT == HELD_OUT - 1
        return places[~held[places]], places[held[places]]

    def crops(self, places: Tensor, frames: int) -> Tensor:
        """[batch] places -> [batch, frames * FRAME] samples within ±1."""
        at = places[:, None] + torch.arange(frames, device=places.device)
        return self.samples[at].flatten(1).float() / 32768

    def vectors(self, quantizer: Quantizer) -> NDArray[np.float32]:
        """[frames, DIMS] as the quantizer has them, the speaker's mean still in."""
        return (raw_vectors(self.envelope, self.voicing) - quantizer.mean) @ quantizer.basis

    def pitches(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """quantizer.pitch_vectors of all frames."""
        return pitch_vectors(self.pitch)


def changed(samples: Tensor) -> Tensor:
    """[batch, n] samples made louder or softer, brighter or darker, and noisy: recordings are not as clean."""

    def drawn(low: float, high: float) -> Tensor:
        return torch.rand(len(samples), 1, device=samples.device) * (high - low) + low

    loud = samples.square().mean(1, keepdim=True).sqrt()
    tilt = drawn(*TILT)
    before = torch.cat([torch.zeros_like(samples[:, :1]), samples[:, :-1]], 1)
    other = (samples + tilt * before) / (1 + tilt) * 10 ** (drawn(-GAIN_DB, GAIN_DB) / 20)
    other = other + torch.randn_like(samples) * loud * 10 ** (-drawn(*NOISE_DB) / 20)
    return torch.where(drawn(0, 1) < PLAIN, samples, other)
