"""The languages that checkpoints name, and their codes."""

from collections.abc import Collection

NAMES = {
    "en": "english",
    "zh": "chinese",
    "de": "german",
    "es": "spanish",
    "ja": "japanese",
    "fr": "french",
    "ko": "korean",
    "ru": "russian",
    "it": "italian",
    "pt": "portuguese",
}
"""By ISO 639-1 code."""


def find(asked: str, known: Collection[str]) -> str | None:
    """The known name that is meant by a name or an ISO code, also with a region (`pt-BR`); None where none is."""
    asked = asked.strip().lower()
    name = asked if asked in known else NAMES.get(asked.replace("_", "-").split("-")[0], asked)
    return name if name in known else None


def unknown(asked: str, known: Collection[str]) -> str:
    """What to say when none is."""
    return f"There is no language {asked!r}; this model has {', '.join(known)}."
