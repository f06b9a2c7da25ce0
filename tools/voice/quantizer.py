"""Frames to sixteen codes and back to numbers, by tables that `quantize` finds.

A frame's envelope and voicing become a short vector (PCA). Group 0 is the nearest of 1,023 centroids after the
speaker's mean has been taken off, so that it says what is spoken; group 1 is the pitch (mean and slope; 0 =
unvoiced); the later groups quantise what is left, speaker and all, one after the other. Groups past `used` are
always 0 and carry nothing. Code 0 of group 0 is never used: some readers take it for padding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .features import CEPSTRA, STEPS
from .shards import Shard

GROUPS = 16
FIRST, REST = 1024, 256
DIMS = 56
VOICING_WEIGHT = 4.0
SLOPE_WEIGHT = 0.35
_POSITION = np.linspace(-1, 1, STEPS)


def _weights() -> NDArray[np.float32]:
    """Loudness counts half, and the first tilt a little less, than the shape of the spectrum."""
    row = np.ones(CEPSTRA, np.float32)
    row[:2] = 0.5, 0.8
    return np.tile(row, STEPS)


def raw_vectors(envelope: NDArray[Any], voicing: NDArray[Any]) -> NDArray[np.float32]:
    """[frames, STEPS * CEPSTRA + STEPS], weighted for Euclidean distance."""
    return np.concatenate(
        [envelope * _weights(), voicing.astype(np.float32) * VOICING_WEIGHT], 1, dtype=np.float32
    )


def pitch_vectors(pitch: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """[frames, 2] mean log2 pitch and weighted rise over the frame, and where the frame is voiced at all."""
    hertz = pitch.astype(np.float32)
    on = hertz > 0
    count = on.sum(1)
    mean = hertz.sum(1) / np.maximum(count, 1)
    at = np.where(on, _POSITION, 0)
    centre = at.sum(1) / np.maximum(count, 1)
    lever = np.where(on, _POSITION - centre[:, None], 0)
    slope = (lever * (hertz - mean[:, None])).sum(1) / np.maximum((lever**2).sum(1), 1)
    return np.stack([mean - slope * centre, slope * SLOPE_WEIGHT], 1).astype(np.float32), count >= 2


def nearest(points: Tensor, centroids: Tensor, block: int = 65536) -> Tensor:
    """[n] index of the closest centroid."""
    half = (centroids**2).sum(1) / 2
    return torch.cat([(part @ centroids.T - half).argmax(1) for part in points.split(block)])


@dataclass
class Quantizer:
    """Tables of the codec, as numpy arrays in one file."""

    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    """[raw, DIMS]"""
    speakers: NDArray[np.float32]
    """[voices, DIMS]"""
    first: NDArray[np.float32]
    """[FIRST, DIMS]; row 0 is not used"""
    pitch: NDArray[np.float32]
    """[REST, 2]; row 0 stands for unvoiced"""
    rest: NDArray[np.float32]
    """[used - 2, REST, DIMS]"""

    @property
    def used(self) -> int:
        """Groups that carry anything."""
        return 2 + len(self.rest)

    def save(self, path: Path) -> None:
        """Write all tables."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Quantizer":
        """Read what save wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)

    def encode(
        self,
        envelope: NDArray[Any],
        voicing: NDArray[Any],
        pitch: NDArray[Any],
        voices: NDArray[np.integer[Any]],
        device: str = "cpu",
    ) -> NDArray[np.int16]:
        """[frames, GROUPS] codes of features.Analysis arrays and each frame's voice number."""
        vectors = torch.from_numpy((raw_vectors(envelope, voicing) - self.mean) @ self.basis).to(device)

        def put(array: NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(array).to(device)

        codes = np.zeros((len(vectors), GROUPS), np.int16)
        first = put(self.first)
        index = nearest(vectors - put(self.speakers[voices]), first[1:]) + 1
        codes[:, 0] = index.cpu().numpy()
        points, voiced = pitch_vectors(pitch)
        codes[:, 1] = np.where(
            voiced, nearest(torch.from_numpy(points), torch.from_numpy(self.pitch[1:])) + 1, 0
        )
        left = vectors - first[index]
        for group, table in enumerate(self.rest, 2):
            index = nearest(left, put(table))
            left = left - put(table)[index]
            codes[:, group] = index.cpu().numpy()
        return codes

    def encode_shard(self, shard: Shard, device: str = "cpu") -> NDArray[np.int16]:
        """[frames, GROUPS] codes of a whole shard."""
        return self.encode(shard.envelope, shard.voicing, shard.pitch, shard.voices, device)

    def vectors(self, codes: NDArray[np.int16], groups: int = GROUPS) -> NDArray[np.float32]:
        """[frames, DIMS] what the first groups say of envelope and voicing."""
        total = self.first[codes[:, 0]].copy()
        for group, table in enumerate(self.rest[: max(0, groups - 2)], 2):
            total += table[codes[:, group]]
        return total
