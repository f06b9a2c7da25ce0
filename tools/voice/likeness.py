"""Do clones sound like their references, and described voices as described? Used by evaluate.py.

A clone is compared by pitch and timbre (measure.py), each number in units of its spread over all the references.
A pitch or pace is followed if it is on the right side of the middle, or for a medium one near the middle.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .descriptions import Description, describe
from .flite import Flite
from .measure import pitch, speech_s, timbre
from .spoken import spoken
from .synth import say
from .voices import Voice, crowd

SEX_HZ = 150
"""women are above"""
MIDDLE_HZ, NEAR_HZ = {True: 195, False: 110}, {True: (166, 228), False: (94, 132)}
"""of women and of men: the middle, and what counts as medium"""
MIDDLE_PACE, NEAR_PACE = 1.02, (0.84, 1.24)
"""of slowness (voices.py)"""
STRANGERS = 2
"""seed of the voices that no training has heard"""
Sound = NDArray[np.float32]


@dataclass
class Reference:
    """A stranger's words, to be cloned."""

    voice: Voice
    said: str
    samples: Sound


def references(engine: Flite, sentences: list[str], count: int) -> list[Reference]:
    """Two sentences of each of so many strangers."""
    found: list[Reference] = []
    for number, voice in enumerate(crowd(count, STRANGERS)):
        said = " ".join(sentences[(2 * number + i) % len(sentences)] for i in (0, 1))
        part = say(engine, voice, spoken(said))
        if part is None:
            raise RuntimeError(f"The engine could not say {said!r}.")
        found.append(Reference(voice, said, part.samples.astype(np.float32) / 32768))
    return found


def likeness(originals: list[Sound], clones: list[tuple[int, Sound]]) -> tuple[float, float]:
    """Share of the pairs (clone, another reference) where the clone is nearer to its own, and the median error of
    the pitch in semitones. clones are (number of the reference, sound)."""

    def numbers(samples: Sound) -> Sound:
        return np.concatenate([[12 * np.log2(max(pitch(samples), 1))], timbre(samples)], dtype=np.float32)

    known = np.stack([numbers(samples) for samples in originals])
    made = np.stack([numbers(samples) for _, samples in clones])
    own = np.array([number for number, _ in clones])
    # The pitch weighs as much as the whole timbre.
    weight = np.full(known.shape[1], 1 / (known.shape[1] - 1))
    weight[0] = 1
    distance = (((made[:, None] - known[None]) / known.std(0)) ** 2 * weight).sum(-1)
    mine = distance[np.arange(len(own)), own]
    others = np.arange(len(originals))[None] != own[:, None]
    nearer = (mine[:, None] < distance)[others].mean()
    return float(nearer), float(np.median(np.abs(made[:, 0] - known[own, 0])))


def described(count: int, seed: int) -> list[Description]:
    """Descriptions of strangers in the wordings of the training."""
    rng = random.Random(seed)
    return [describe(voice, rng) for voice in crowd(count, STRANGERS)]


def read_descriptions(path: Path) -> list[Description]:
    """Lines of sex, pitch, pace ("-" if not said) | text."""
    found: list[Description] = []
    levels = {"-": None, "low": -1, "high": 1, "fast": -1, "slow": 1}
    for line in path.read_text().splitlines():
        aspects, text = line.split(" | ")
        sex, height, pace = aspects.split()
        found.append(Description(text, {"woman": True, "man": False}[sex], levels[height], levels[pace]))
    return found


def _right(wanted: int, value: float, middle: float, near: tuple[float, float]) -> bool:
    return near[0] < value < near[1] if wanted == 0 else (value > middle) == (wanted > 0)


def followed(engine: Flite, wanted: Description, text: str, samples: Sound) -> dict[str, bool]:
    """What of a description was followed in a sentence spoken."""
    hertz, found = pitch(samples), dict[str, bool]()
    woman = hertz > SEX_HZ
    if wanted.woman is not None:
        found["sex"] = woman == wanted.woman
        woman = wanted.woman
    if wanted.pitch is not None:
        found["pitch"] = _right(wanted.pitch, hertz, MIDDLE_HZ[woman], NEAR_HZ[woman])
    if wanted.pace is not None:
        usual = say(engine, crowd(1, STRANGERS)[0], spoken(text))
        assert usual is not None
        slowness = crowd(1, STRANGERS)[0].slowness / speech_s(usual.samples.astype(np.float32) / 32768)
        found["pace"] = _right(wanted.pace, speech_s(samples) * slowness, MIDDLE_PACE, NEAR_PACE)
    return found
