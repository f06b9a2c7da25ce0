"""Descriptions of a voice, as people might write them: sex, pitch and pace, sometimes age and accent.

What a voice sounds like follows from its traits: a word for its pitch is relative to its sex, and voices in the
middle have a word for that or none.
"""

import random
from dataclasses import dataclass

from .voices import Voice

PITCH = {"slt": (176, 216), "rms": (95, 112), "awb": (104, 126)}
"""an engine's voices below the first are low, above the second high, in Hz"""
PACE = (0.9, 1.16)
"""slowness of a fast and of a slow voice"""
SIZE = (0.95, 1.07)
"""of an old and of a young voice"""

WORDS: dict[str, dict[int, list[str]]] = {
    "adjective": {
        -1: ["low", "deep", "low-pitched", "dark", "deep and low"],
        0: ["medium-pitched", "normal", "middle", "ordinary"],
        1: ["high", "high-pitched", "light", "bright", "high and light"],
    },
    "pace": {
        -1: [
            "speaks fast",
            "speaks quickly",
            "talks fast",
            "talks very quickly",
            "is in a hurry",
            "speaks at a fast pace",
            "talks rapidly",
        ],
        0: [
            "speaks at a normal pace",
            "speaks at a medium speed",
            "talks neither fast nor slowly",
            "speaks at a steady pace",
        ],
        1: [
            "speaks slowly",
            "talks slowly",
            "speaks at a slow pace",
            "talks very slowly",
            "takes his time",
            "is in no hurry",
            "speaks in a slow way",
        ],
    },
    "short pace": {
        -1: ["fast", "quick", "rapid", "fast pace", "high speed", "speaking fast", "speaking quickly"],
        0: ["normal pace", "medium speed", "steady pace", "moderate speed", "speaking at a normal pace"],
        1: ["slow", "slow pace", "unhurried", "low speed", "speaking slowly", "very slow"],
    },
    "order": {
        -1: ["Speak fast.", "Speak quickly.", "Talk fast.", "Use a fast pace.", "Hurry up."],
        0: ["Speak at a normal pace.", "Use a medium speed.", "Keep a steady pace."],
        1: ["Speak slowly.", "Talk slowly.", "Use a slow pace.", "Take your time."],
    },
    "woman": {
        -1: ["older", "mature", "old", "elderly"],
        0: ["adult", "middle-aged", ""],
        1: ["young", "youthful"],
    },
    "man": {
        -1: ["older", "old", "elderly", "aged"],
        0: ["adult", "middle-aged", ""],
        1: ["young", "youthful"],
    },
}
MANNER = ("calm", "clear", "friendly", "warm", "pleasant", "soft", "serious", "neutral", "natural", "kind")
"""words that change nothing"""


@dataclass(frozen=True)
class Description:
    """A text and what it says; None is what it does not say."""

    text: str
    woman: bool | None
    pitch: int | None
    """1 is high, -1 low"""
    pace: int | None
    """1 is slow, -1 fast"""


def level(value: float, between: tuple[float, float]) -> int:
    """-1 below, 0 within, 1 above."""
    return (value > between[1]) - (value < between[0])


def levels(voice: Voice) -> tuple[int, int, int]:
    """Pitch (1 is high), pace (1 is slow) and age (1 is young)."""
    return (
        level(voice.hertz, PITCH[voice.engine]),
        level(voice.slowness, PACE),
        level(float(voice.size), SIZE),
    )


def describe(voice: Voice, rng: random.Random) -> Description:
    """One of very many descriptions that fit; each says two things or more."""
    pitch, pace, age = levels(voice)
    woman = voice.engine == "slt"
    person = "woman" if woman else "man"
    said = {"pitch": rng.random() < 0.7, "pace": rng.random() < 0.7, "age": rng.random() < 0.25}
    said["sex"] = rng.random() < 0.9 or not (said["pitch"] and said["pace"])
    if not (said["pitch"] or said["pace"] or said["age"]):
        said[rng.choice(("pitch", "pace"))] = True
    manner = rng.choice(MANNER) if rng.random() < 0.25 else ""
    years = rng.choice(WORDS[person][age]) if said["age"] else ""
    tone = rng.choice(WORDS["adjective"][pitch]) if said["pitch"] else ""
    accent = rng.choice(("Scottish", "Scottish", "British"))
    accent = accent if voice.engine == "awb" and rng.random() < 0.4 else ""
    text = rng.choice((_sentence, _sentence, _list, _order))(
        rng, person if said["sex"] else "", years, tone, pace if said["pace"] else None, manner, accent
    )
    if rng.random() < 0.2:
        text = text.lower()
    if rng.random() < 0.3:
        text = text.rstrip(".")
    return Description(
        text, woman if said["sex"] else None, pitch if said["pitch"] else None, pace if said["pace"] else None
    )


def _a(words: str) -> str:
    words = " ".join(words.split())
    return f"an {words}" if words[0].lower() in "aeio" else f"a {words}"


def _who(rng: random.Random, person: str) -> str:
    if person == "woman":
        return rng.choice(("woman", "woman", "female speaker", "lady", "female"))
    return rng.choice(("man", "man", "male speaker", "gentleman", "male")) if person else "speaker"


def _pace(rng: random.Random, pace: int | None, person: str) -> str:
    words = "" if pace is None else rng.choice(WORDS["pace"][pace])
    return words.replace("his", {"man": "his", "woman": "her"}.get(person, "their"))


def _sentence(
    rng: random.Random, person: str, years: str, tone: str, pace: int | None, manner: str, accent: str
) -> str:
    """A woman with a low voice who speaks slowly."""
    subject = _a(f"{years} {'' if tone else manner} {accent} {_who(rng, person)}")
    has = ""
    if tone:
        sort = f"{tone} and {manner}" if manner and rng.random() < 0.5 else f"{manner} {tone}"
        has = rng.choice((f"with {_a(f'{sort} voice')}", f"whose voice is {tone}"))
    does = _pace(rng, pace, person)
    if does and rng.random() < 0.5:
        does = f"{rng.choice(('who', 'and who') if has else ('who',))} {does}"
    elif does and does.split()[0] in ("speaks", "talks"):
        first, _, rest = does.partition(" ")
        does = f"{first[:-1]}ing {rest}"
    elif does:
        does = f"who {does}"
    text = " ".join(part for part in (subject, has, does) if part)
    opening = rng.choice(("", "", "", "The voice of ", "This is ", "I want ", "Use the voice of "))
    text = opening + text
    return text[0].upper() + text[1:] + "."


def _list(
    rng: random.Random, person: str, years: str, tone: str, pace: int | None, manner: str, accent: str
) -> str:
    """Female, low voice, slow pace."""
    sex = {"woman": "female", "man": "male"}.get(person, "")
    parts = [rng.choice((sex, f"{sex} voice", person)) if sex else "", years]
    parts += [rng.choice((f"{tone} voice", f"{tone} tone", f"{tone}")) if tone else ""]
    parts += [rng.choice(WORDS["short pace"][pace]) if pace is not None else "", manner]
    parts += [f"{accent} accent" if accent else ""]
    parts = [part for part in parts if part]
    if rng.random() < 0.3:
        rng.shuffle(parts)
    text = ", ".join(parts)
    return text[0].upper() + text[1:] + "."


def _order(
    rng: random.Random, person: str, years: str, tone: str, pace: int | None, manner: str, accent: str
) -> str:
    """A low female voice. Speak slowly."""
    sex = {"woman": "female", "man": "male"}.get(person, "")
    if person and rng.random() < 0.3:
        voice = f"{manner} {tone} voice of {_a(f'{years} {accent} {person}')}"
    else:
        voice = f"{years} {manner} {tone} {accent} {sex} voice"
    opening = rng.choice(("", "", "Use ", "Speak with ", "Speak in ", "I would like "))
    text = opening + _a(voice)
    text = text[0].upper() + text[1:] + "."
    return text if pace is None else f"{text} {rng.choice(WORDS['order'][pace])}"
