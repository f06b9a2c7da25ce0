"""Read what synth wrote, as far as it has got."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FRAMES_AN_HOUR = 45000
ARRAYS = ("frames", "text", "voice", "envelope", "voicing", "pitch", "phones")


@dataclass
class Shard:
    """Utterances one after the other; arrays as features.Analysis has them, joined."""

    name: str
    frames: NDArray[np.int64]
    text: NDArray[np.int64]
    voice: NDArray[np.uint16]
    envelope: NDArray[np.float16]
    voicing: NDArray[np.float16]
    pitch: NDArray[np.float16]
    phones: NDArray[np.uint8]
    samples: NDArray[np.int16] | None

    @property
    def voices(self) -> NDArray[np.uint16]:
        """The voice's number for every frame."""
        return np.repeat(self.voice, self.frames)


def read(
    folder: Path, hours: float = 1e9, audio: bool = False, known: Container[str] = ()
) -> Iterator[Shard]:
    """The finished shards that are not known by name, in a fixed order, until hours are reached.

    With audio only those that kept their samples count.
    """
    left = hours * FRAMES_AN_HOUR
    # Numbers first, so that a part of the shards holds something of every worker.
    for path in sorted(folder.glob("*[0-9].npz"), key=lambda p: (p.stem.split("-")[1], p.stem)):
        if path.stem in known:
            continue
        with np.load(path) as arrays:
            if left <= 0 or (audio and "samples" not in arrays):
                continue
            fields = {key: arrays[key] for key in ARRAYS}
            shard = Shard(path.stem, **fields, samples=arrays["samples"] if audio else None)
        left -= int(shard.frames.sum())
        yield shard
