"""Where a long text is cut into parts."""

import re


def split(text: str, most: int) -> list[str]:
    """Parts of at most `most` letters that join to the text, cut behind sentences, else at commas or spaces.

    A text that is short enough stays whole. Cuts prefer ends of paragraphs, and parts are of like length, so that
    none is a stub.
    """
    if len(text) <= most:
        return [text]
    parts: list[str] = []
    while len(text) > most:
        left = -(-len(text) // most)
        at = _cut(text, min(most, -(-len(text) // left) + most // 8))
        parts.append(text[:at])
        text = text[at:]
    parts.append(text)
    return [part for part in parts if part.strip()]


_CUTS = {
    r"\n\s*\n\s*": 0.7,
    r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[」』”’）]*\s*|\n\s*": 0.35,
    r"[,;:–—]\s+|[，；：、]\s*": 0.0,
    r"\s+": 0.0,
}
"""Where to cut, best first, and how many seconds of silence there should be."""


def pause_after(part: str) -> float:
    """Seconds of silence that a part should end with, more behind a paragraph than behind a sentence."""
    return next((pause for pattern, pause in _CUTS.items() if re.search(rf"(?:{pattern})\Z", part)), 0.0)


def _cut(text: str, most: int) -> int:
    """Where the first part of `text` ends, at most `most`."""
    for pattern in _CUTS:
        ends = [found.end() for found in re.finditer(pattern, text[: most + 1]) if found.end() <= most]
        if ends and ends[-1] >= most // 3:
            return ends[-1]
    return most
