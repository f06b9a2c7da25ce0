"""What is spoken of a text that may hold Markdown, tags, addresses and emoji: its words, without the marks.

The rule, line by line:
  - fenced code blocks and table rulers go, a rule becomes a paragraph's end; `inline code` keeps its words
  - tags (<speak>, <break time="2s"/>, HTML) and comments go, those that break a line leave a space; <|…|> stays
  - [words](address) and ![words](address) keep the words; bare http, https and www addresses go
  - emoji go, with skin tones, flags, joiners and variation marks
  - headings lose their marks and end like sentences; bullets, quote marks and table bars go
  - *emphasis*, **strong**, __strong__, ~~struck~~ lose their marks and keep their words
  - of the spaces around what went one is left, or none at a line's end and before a comma or full stop; a line of
    which nothing is left goes too, and so do spaces at the ends of lines and third newlines in a row

A pair of marks lies in one line, and not much further apart than `FARTHEST` letters.
"""

import re
import unicodedata

FARTHEST = 500
GAP = "\ufdd0"
"""Stands where something was taken out: a noncharacter, which no text has."""

_EMOJI = "[\u200d\u20e3\ufe0e\ufe0f\U0001f000-\U0001faff\U000e0020-\U000e007f{}]".format(
    "".join(letter for letter in map(chr, range(0x2600, 0x27C0)) if unicodedata.category(letter) == "So")
)
_EMOJIS = re.compile(f"{_EMOJI}+")
_MARK = re.compile(rf"[`<\[*_~{GAP}]|https?://|www\.|{_EMOJI}")
_STOPS = "。！？，、；："
_BOUNDARY = re.compile(rf"(?<=[^ \t])(?=[ \t])|(?<=[{_STOPS}])")
"""Where a word has ended, and no mark's meaning depends on what follows."""

_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`]+)\1(?!`)")
_BREAKING = re.compile(r"</?(?:br|p|div|li|ul|ol|h[1-6]|tr|td|table)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+[\"'][^\"']*[\"'])?\)")
_ADDRESS = re.compile(rf"<?\b(?:https?://|www\.)[^\s<>{_STOPS}]*[^\s<>{_STOPS}.,;:!?)\]}}\"'」』》）]>?")
_MAY_GO_ON = re.compile(
    r"`|</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?$|\[[^\[\]]*$|\[[^\[\]]*\]\((?:[^()]|\([^()]*\))*$"
)
_STRONG = re.compile(
    r"(\*{1,3}|~~|(?<!\w)_{1,3})(?=\S)((?:[^*~_]|(?<=\w)_(?=\w))+?)(?<=\S)\1(?!\w)"
    r"|(\*{1,3})(?=\S)([^*]+?)(?<=\S)\3"
)
_MAY_BE_CLOSED = re.compile(r"\*+(?=[^\s*])|~~+(?=[^\s~])|(?<!\w)_+(?=[^\s_])")

_FENCE = re.compile(r"[ \t]*(?:(```)[^`]*|(~~~).*)")
_RULE = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})")
_TABLE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+[ \t:-]*")
_ROW = re.compile(r"[ \t]*\|(.+)\|[ \t]*")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*")
_BULLET = re.compile(r"[ \t]*(?:[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?|(?:>[ \t]?)+)")
_NEEDS_WHOLE_LINE = re.compile(r"[ \t]*(?:\||#{1,6}(?:[ \t]|$)|```|~~~)")
_BEGUN = re.compile(r"[ \t]*(?:[-*+•][ \t]+)?+(?:\[[ xX]\])?+.*[^\W_]")
"""A line of which it is clear whether it begins with a bullet, and that it is no rule."""
_GAPS = re.compile(rf"[ \t]*{GAP}[ \t{GAP}]*([,.;:!?…](?=\s|$)|[{_STOPS}])?")
_ENDS = f".!?…:;,{_STOPS}"
_SPACES = f" \t{GAP}"


def clean(text: str) -> str:
    """The words of a text."""
    return Cleaner().feed(text, final=True)


class Cleaner:
    """`clean` for a text that arrives in pieces: however it was cut, the pieces that come out join to the same.

    A word comes out when what follows can no longer change it: it has ended, no mark, tag or link before it is
    open, and its line needs not be seen whole, as headings and table rows do. A piece never ends within a word.
    """

    def __init__(self) -> None:
        self._raw = ""
        """Not looked at, or the beginning of a comment's mark."""
        self._comment = False
        self._fence = ""
        """The mark that ends the code block."""
        self._held = ""
        """Of the current line, without comments: from a boundary on, what is not settled."""
        self._next = 0
        """Where in it to look for the next boundary; the more is held, the fewer are tried, lest time grow with the
        square of a line."""
        self._line_begins = True
        """Whether `_held` is the beginning of its line."""
        self._gap = ""
        """Spaces and gaps at the end of what was made."""
        self._in_line, self._in_text = False, False
        """Whether anything of the line, and of the text, is spoken."""
        self._newlines = 0

    def feed(self, text: str, *, final: bool = False) -> str:
        """What has become certain with more text; `final` says that there is no more after it."""
        self._raw += text.replace(GAP, "")
        made: list[str] = []
        while self._raw:
            if self._comment:
                before, found, after = self._raw.partition("-->")
                self._comment, self._raw = not found, after if found else before[-2:]
                if not found:
                    break
                continue
            line, newline, rest = self._raw.partition("\n")
            at = -1 if self._fence else line.find("<!--")
            if at >= 0:
                self._held, self._raw, self._comment = self._held + line[:at] + GAP, self._raw[at + 4 :], True
            elif newline:
                self._held, self._raw = self._held + line, rest
                made += [self._settled(), self._end_line()]
            else:
                kept = 0 if final else next(n for n in (3, 2, 1, 0) if line.endswith("<!--"[:n]))
                self._held, self._raw = self._held + line[: len(line) - kept], line[len(line) - kept :]
                break
        made.append(self._settled())
        if final:
            made.append(self._end_line())
        return "".join(made)

    def _settled(self) -> str:
        """What nothing that follows in the line can change."""
        made: list[str] = []
        while not self._fence and self._next <= len(self._held):
            if (found := _BOUNDARY.search(self._held, self._next)) is None:
                self._next = len(self._held)
                break
            at = found.end()
            text = self._without_marks(self._held[:at], whole=at > FARTHEST)
            if text is None:
                self._next = at + 1 + at // 8
            else:
                made.append(self._spaced(text))
                self._held, self._next, self._line_begins = self._held[at:], 1, False
        return "".join(made)

    def _end_line(self) -> str:
        line, begins = self._held.rstrip(" \t\r"), self._line_begins
        made, counts = "", True
        if self._fence:
            counts = False
            if line.strip(" \t").startswith(self._fence) and not line.strip(" \t`~"):
                self._fence = ""
        elif begins and (found := _FENCE.fullmatch(line)):
            self._fence, counts = found[1] or found[2], False
        elif begins and _TABLE.fullmatch(line):
            counts = False
        elif not (begins and _RULE.fullmatch(line)):
            made = self._spaced(self._without_marks(line, whole=True) or "")
            counts = self._in_line or not line
        self._newlines += counts
        self._held, self._next, self._line_begins, self._gap, self._in_line = "", 0, True, "", False
        return made

    def _without_marks(self, raw: str, *, whole: bool) -> str | None:
        """A line or a piece of it, `GAP` where something was; None where more of the line may change it."""
        if not self._line_begins and not _MARK.search(raw):
            return raw
        text = _TAG.sub(GAP, _BREAKING.sub(f" {GAP}", _CODE.sub(r"\2", raw)))
        text = _ADDRESS.sub(GAP, _LINK.sub(lambda found: found[1] or GAP, text))
        text = _EMOJIS.sub(GAP, text)
        if not whole and _MAY_GO_ON.search(text):
            return None
        if self._line_begins:
            if whole:
                text = _heading(_row(text))
            elif _NEEDS_WHOLE_LINE.match(text) or not _BEGUN.match(text):
                return None
            text = text[found.end() :] if (found := _BULLET.match(text)) else text
        for _ in range(3):
            text = _STRONG.sub(lambda found: found[2] or found[4], text)
        return None if not whole and _MAY_BE_CLOSED.search(text) else text

    def _spaced(self, text: str) -> str:
        """Gaps closed, newlines before it; spaces and gaps at its end wait for what follows."""
        text = self._gap + text
        if not self._in_line:
            text = text.lstrip(_SPACES)
        made = text.rstrip(_SPACES)
        self._gap = text[len(made) :]
        if not made:
            return ""
        before = "\n" * min(self._newlines, 2) if self._in_text else ""
        self._in_line, self._in_text, self._newlines = True, True, 0
        return before + _GAPS.sub(
            lambda found: found[1] or (" " if re.search(r"[ \t]", found[0]) else ""), made
        )


def _row(line: str) -> str:
    found = _ROW.fullmatch(line)
    return ", ".join(cell.strip() for cell in found[1].split("|") if cell.strip()) if found else line


def _heading(line: str) -> str:
    found = _HEADING.fullmatch(line)
    if found is None:
        return line
    bare = found[1].strip(f"*_{_SPACES}")
    return found[1] if not bare or bare[-1] in _ENDS else f"{found[1]}."
