"""From tokens to text: whole characters only, stop strings, and the sections of a reply."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

HOLE = "\ufffd"
Decode = Callable[[list[int]], str]
WINDOW = 12
"""Tokens that are decoded together before the window moves on."""


class Detokenizer:
    """Turns tokens into text as they come; a character spread over several tokens comes out once it is whole.

    Decodes a short window of tokens with the tokenizer's own `decode`, so every kind of tokenizer will do.
    """

    def __init__(self, decode: Decode, skip: frozenset[int] = frozenset()) -> None:
        """Tokens in `skip` have no text."""
        self._decode = decode
        self._skip = skip
        self._window: list[int] = []
        self._shown = ""
        """The part of the window's text that has been handed out."""

    def push(self, token: int) -> str:
        if token in self._skip:
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(HOLE):
            return ""
        return self._hand_out(text)

    def flush(self) -> str:
        """What was held back: a character cut for good becomes one U+FFFD."""
        return self._hand_out(self._decode(self._window)) if self._window else ""

    def _hand_out(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown = text
        if len(self._window) > WINDOW:
            # The spacing of a token can depend on the one before it, so one stays.
            self._window = self._window[-1:]
            self._shown = self._decode(self._window)
        return new


class StopMatcher:
    """Cuts text before the stop string that is complete first, however the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Return the text that can no longer be part of a stop string."""
        if self.found is not None:
            return ""
        self._held += text
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if matches:
            _, at, self.found = min(matches)
            safe, self._held = self._held[:at], ""
            return safe
        return self._release(_overlap(self._held, self._stops))

    def flush(self) -> str:
        """What was held back for a match that did not come."""
        return self._release(0)

    def _release(self, hold: int) -> str:
        at = len(self._held) - hold
        safe, self._held = self._held[:at], self._held[at:]
        return safe


def _overlap(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of `words` without being all of it."""
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(word) > length and word.startswith(tail) for word in words):
            return length
    return 0


class Section(NamedTuple):
    kind: str
    """`content`, `reasoning` or `tool`."""
    text: str
    closed: bool = False
    """Whether a marker ended the section here."""


class Sections:
    """Splits a reply at the markers that open and close reasoning and tool calls; the markers are left out."""

    def __init__(self, opens: dict[str, str], closes: dict[str, str], start: str = "content") -> None:
        """`opens` maps a marker to the section it opens, `closes` a section to the marker that ends it.

        A section opens out of content, a tool call also out of reasoning.
        """
        self._opens = {marker: kind for marker, kind in opens.items() if marker}
        self._closes = {kind: marker for kind, marker in closes.items() if marker}
        self.kind = start
        self._held = ""

    def push(self, text: str) -> list[Section]:
        self._held += text
        found: list[Section] = []
        while True:
            markers = self._markers()
            matches = [(self._held.find(marker), -len(marker), marker) for marker in markers]
            matches = [match for match in matches if match[0] >= 0]
            if not matches:
                break
            at, _, marker = min(matches)
            found.append(Section(self.kind, self._held[:at], closed=True))
            self._held = self._held[at + len(marker) :]
            self.kind = markers[marker]
        safe = len(self._held) - _overlap(self._held, list(self._markers()))
        if safe:
            found.append(Section(self.kind, self._held[:safe]))
            self._held = self._held[safe:]
        return found

    def flush(self) -> list[Section]:
        """What was held back for a marker that did not come."""
        held, self._held = self._held, ""
        return [Section(self.kind, held)] if held else []

    def _markers(self) -> dict[str, str]:
        if self.kind == "content":
            return self._opens
        close = self._closes.get(self.kind)
        markers = {close: "content"} if close else {}
        if self.kind == "reasoning":
            markers |= {marker: kind for marker, kind in self._opens.items() if kind == "tool"}
        return markers
