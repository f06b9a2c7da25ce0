"""Reads one reply as its tokens come: content, reasoning, tool calls, stop strings."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .calls import FORCED, CallFormat, CallPart, CallReader, Json
from .text import Decode, Detokenizer, Section, Sections, StopMatcher


@dataclass(frozen=True)
class Style:
    """How the replies to one prompt are to be read."""

    decode: Decode
    skip: frozenset[int] = frozenset()
    """Tokens without text."""
    think: tuple[str, str] | None = None
    """Markers around reasoning."""
    thinking: bool = False
    """Whether the prompt ended inside reasoning."""
    calls: CallFormat | None = None
    """None leaves calls in the content."""
    tools: list[Json] = field(default_factory=list[Json])
    forced: bool = False
    """The whole answer is the JSON of a call."""


class Piece(NamedTuple):
    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)


class Reply:
    """State of one reply: `push` a token at a time, then `finish`. Neither raises, whatever the model wrote."""

    def __init__(self, style: Style, stops: tuple[str, ...] = ()) -> None:
        self._style = style
        self._tokens = Detokenizer(style.decode, style.skip)
        self._sections = _sections(style)
        self._stops = StopMatcher(stops)
        self._fresh = self._bare
        """Whether white space is dropped, behind another section and ahead of what may be a call."""
        self._thought = False
        """Whether the reasoning has any text yet."""
        self._gap = ""
        """White space at the end of the reasoning so far, held back."""
        self._wrote = False
        """Whether the content has any text yet."""
        form = FORCED if style.forced or style.calls is None else style.calls
        self._calls = CallReader(form, style.tools)

    @property
    def reasoning(self) -> bool:
        return self._sections.kind == "reasoning"

    @property
    def stopped(self) -> str | None:
        """The stop string that was met, if any."""
        return self._stops.found

    def push(self, token: int) -> Piece:
        return self._read(self._sections.push(self._tokens.push(token)))

    def finish(self, cut: bool) -> Piece:
        """Hand out what was held back; `cut` says that the limit ended the reply."""
        if self.stopped is not None:
            return Piece()
        pieces = [self._read([*self._sections.push(self._tokens.flush()), *self._sections.flush()])]
        # A call that was cut stays as it is; text that only looked like one is told.
        if self._calls.busy and (not cut or (self._bare and not self._calls.begun)):
            pieces.append(self._close(""))
        return _join([*pieces, Piece(text=self._stops.flush())])

    @property
    def _bare(self) -> bool:
        return self._style.calls is not None and not self._style.calls.start and not self._style.forced

    def _read(self, sections: list[Section]) -> Piece:
        readers = {"content": self._content, "reasoning": self._reason, "tool": self._tool}
        pieces: list[Piece] = []
        for kind, text, closed in sections:
            if self.stopped is not None:
                break  # what stands behind a stop string is not told, in one token with it or not
            pieces.append(readers[kind](text, closed))
        return _join(pieces)

    def _content(self, text: str, closed: bool) -> Piece:
        if self._fresh:
            text = text.lstrip()
        self._fresh = self._fresh and not text
        if self._calls.busy or (self._bare and not self._wrote and text.lstrip().startswith("{")):
            return self._tool(text, closed=False)
        self._wrote = self._wrote or bool(text.strip())
        text = self._stops.push(text)
        return Piece(text=text + self._stops.flush() if closed and self.stopped is None else text)

    def _reason(self, text: str, closed: bool) -> Piece:
        if not self._thought:
            text = text.lstrip()
        self._thought = self._thought or bool(text)
        text = self._gap + text
        shown = text.rstrip()
        self._gap = "" if closed else text[len(shown) :]
        self._fresh = self._fresh or closed
        return Piece(reasoning=shown)

    def _tool(self, text: str, closed: bool) -> Piece:
        parts = Piece(calls=tuple(self._calls.push(text)))
        return _join([parts, self._close(self._calls.form.end)]) if closed else parts

    def _close(self, end: str) -> Piece:
        """The end of a body of calls, before the marker `end`; what is no call is content, with its markers."""
        parts, text = self._calls.close()
        self._fresh = True
        text = text and self._calls.form.start + text + end
        return Piece(self._stops.push(text), calls=tuple(parts))


def _sections(style: Style) -> Sections:
    opens: dict[str, str] = {}
    closes: dict[str, str] = {}
    if style.think:
        opens[style.think[0]] = "reasoning"
        closes["reasoning"] = style.think[1]
    if style.calls and not style.forced:
        opens[style.calls.start] = "tool"
        closes["tool"] = style.calls.end
    return Sections(opens, closes, "reasoning" if style.thinking else "tool" if style.forced else "content")


def _join(pieces: list[Piece]) -> Piece:
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
    )
