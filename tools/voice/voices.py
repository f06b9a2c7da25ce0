"""The nine presets: which engine speaks, and how it is moved. Names and ids are the released checkpoints'."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Preset:
    """One speaker of the checkpoint."""

    name: str
    engine: str
    pitch: float
    """factor on the engine's fundamental"""
    size: Fraction
    """played faster by this factor: > 1 is a smaller speaker, pitch and formants together"""
    stretch: float
    """duration of the phones as heard, after the change of size"""
    token: int
    """the preset's row of the talker's codec embedding"""
    about: str


PRESETS = (
    Preset("aiden", "awb", 1.00, Fraction(1), 1.00, 2861, "a man with a Scottish accent"),
    Preset("dylan", "rms", 1.12, Fraction(23, 20), 1.00, 2878, "a young man, bright"),
    Preset("eric", "awb", 1.10, Fraction(23, 20), 1.04, 2875, "a young man with a Scottish accent"),
    Preset("ono_anna", "slt", 1.12, Fraction(6, 5), 1.04, 2873, "a girl, high and light"),
    Preset("ryan", "rms", 1.05, Fraction(1), 1.06, 3061, "a man, calm and clear"),
    Preset("serena", "slt", 0.94, Fraction(1), 1.08, 3066, "a woman, warm and slow"),
    Preset("sohee", "slt", 0.90, Fraction(9, 10), 1.02, 2864, "a woman with a low voice"),
    Preset("uncle_fu", "rms", 0.92, Fraction(17, 20), 1.12, 3010, "an old man, deep and slow"),
    Preset("vivian", "slt", 1.04, Fraction(21, 20), 1.00, 3065, "a young woman, clear"),
)
