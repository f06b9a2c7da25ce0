"""Who speaks: the nine presets, with the released checkpoints' names and ids, and a crowd drawn at random."""

import math
import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

ENGINES = {"slt": (172, 1.0), "rms": (104, 1.13), "awb": (130, 1.0)}
"""An engine's own median pitch in Hz and, against the others, its slowness. slt is a woman; rms and awb are men,
awb is Scottish. The pitch of rms follows the size alone."""
TRAITS = 4 * len(ENGINES)


@dataclass(frozen=True)
class Voice:
    """Which engine speaks, and how it is moved."""

    engine: str
    pitch: float
    """factor on the engine's fundamental"""
    size: Fraction
    """played faster by this factor: > 1 is a smaller speaker, pitch and formants together"""
    stretch: float
    """duration of the phones as heard, after the change of size"""

    @property
    def hertz(self) -> float:
        """Median pitch."""
        return ENGINES[self.engine][0] * float(self.size) * (1 if self.engine == "rms" else self.pitch)

    @property
    def slowness(self) -> float:
        """Duration of its phones, over that of slt and awb left alone."""
        return self.stretch * ENGINES[self.engine][1]

    @property
    def traits(self) -> NDArray[np.float32]:
        """[TRAITS]: for each engine 1, size, pitch and slowness, all within about ±1, or zeros if it is another.

        A cloned voice's row (x-vector) is a linear function of these, so that a speaker encoder can learn to hear
        the traits before there is a talker.
        """
        own = [
            1.0,
            4 * math.log2(self.size),
            1.3 * math.log2(self.hertz / 150),
            2 * math.log2(self.slowness),
        ]
        return np.array([[x * (self.engine == e) for x in own] for e in ENGINES], np.float32).flatten()


@dataclass(frozen=True)
class Preset(Voice):
    """One speaker of the checkpoint."""

    name: str
    token: int
    """the preset's row of the talker's codec embedding"""
    about: str


PRESETS = (
    Preset("awb", 1.00, Fraction(1), 1.00, "aiden", 2861, "a man with a Scottish accent"),
    Preset("rms", 1.12, Fraction(23, 20), 1.00, "dylan", 2878, "a young man, bright"),
    Preset("awb", 1.10, Fraction(23, 20), 1.04, "eric", 2875, "a young man with a Scottish accent"),
    Preset("slt", 1.12, Fraction(6, 5), 1.04, "ono_anna", 2873, "a girl, high and light"),
    Preset("rms", 1.05, Fraction(1), 1.06, "ryan", 3061, "a man, calm and clear"),
    Preset("slt", 0.94, Fraction(1), 1.08, "serena", 3066, "a woman, warm and slow"),
    Preset("slt", 0.90, Fraction(9, 10), 1.02, "sohee", 2864, "a woman with a low voice"),
    Preset("rms", 0.92, Fraction(17, 20), 1.12, "uncle_fu", 3010, "an old man, deep and slow"),
    Preset("slt", 1.04, Fraction(21, 20), 1.00, "vivian", 3065, "a young woman, clear"),
)


_CROWD = {
    "slt": (0.45, (156, 255), (-0.12, 0.13)),
    "rms": (0.30, (85, 126), (0, 0)),
    "awb": (0.25, (92, 146), (-0.12, 0.13)),
}
"""share of an engine in the crowd, medians of pitch in Hz, and how far a size may be from what fits the pitch"""


def crowd(count: int, seed: int = 1) -> list[Voice]:
    """Voices drawn at random; the first do not depend on how many there are, another seed gives strangers."""
    return [_draw(random.Random(f"voice {seed}-{number}")) for number in range(count)]


def _draw(rng: random.Random) -> Voice:
    engine = rng.choices(list(_CROWD), [share for share, _, _ in _CROWD.values()])[0]
    _, (low, high), (smaller, larger) = _CROWD[engine]
    own, place = ENGINES[engine][0], rng.random()
    hertz = low * (high / low) ** place
    # A higher voice is mostly that of a smaller speaker, as in life.
    size = hertz / own if engine == "rms" else 0.92 + 0.14 * place + rng.uniform(smaller, larger)
    size = Fraction(round(40 * size), 40)
    stretch = math.exp(rng.uniform(math.log(0.74), math.log(1.36)))
    return Voice(engine, round(hertz / own / float(size), 3), size, round(stretch, 3))


def everyone(count: int) -> list[Voice]:
    """The presets and a crowd behind them: voice numbers in the speech are places in this list."""
    return [*PRESETS, *crowd(count)]
