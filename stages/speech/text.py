"""What is spoken of a text: marks that nobody says are taken out, and a long text is cut into parts.

The cleaning rule, in this order:
  - fenced code blocks go, with all that is in them; `inline code` keeps its words
  - tags (<speak>, <break time="2s"/>, HTML) go, a space in place of those that break a line; <|…|> stays text
  - [words](address) and ![words](address) keep the words; bare http, https and www addresses go
  - headings lose their marks and end like sentences; bullets, quote marks, rules and table bars go
  - *emphasis*, **strong**, __strong__, ~~struck~~ lose their marks and keep their words
  - emoji go, with skin tones, flags, joiners and variation marks
  - runs of spaces become one, and none is left before a comma or a full stop that a removal has bared
"""

import re
import unicodedata

_FENCE = re.compile(
    r"^[ \t]*(```|~~~)[^\n]*\n.*?(?:^[ \t]*\1[`~]*[ \t]*(?:\n|\Z)|\Z)", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)\1(?!`)")
_BREAKING = re.compile(r"</?(?:br|p|div|li|ul|ol|h[1-6]|tr|td|table)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>|<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+[\"'][^\"'\n]*[\"'])?\)")
_ADDRESS = re.compile(r"<?\b(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]}\"'」』》）。，！？、]>?")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$", re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+[ \t:-]*(?:\n|\Z)", re.MULTILINE)
_ROW = re.compile(r"^[ \t]*\|([^\n]+)\|[ \t]*$", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?|(?:>[ \t]?)+)", re.MULTILINE)
_STRONG = re.compile(
    r"(\*{1,3}|~~|(?<!\w)_{1,3})(?=\S)([^*~\n]+?)(?<=\S)\1(?!\w)|(\*{1,3})(?=\S)([^*\n]+?)(?<=\S)\3"
)
_BARE = re.compile(r"[ \t]+([,.;:!?…])(?=\s|$)")
_ENDS = ".!?…:;,。！？：；，"

_JOINERS = {0x200D, 0x20E3, 0xFE0E, 0xFE0F}


def clean(text: str) -> str:
    """The words of a text that may hold Markdown, tags, addresses and emoji. Plain text comes back as it is."""
    if not any(mark in text for mark in "`<[*_~#>|") and "://" not in text and "www." not in text:
        made = text
    else:
        made = _FENCE.sub("", text)
        made = _CODE.sub(r"\2", made)
        made = _TAG.sub("", _BREAKING.sub(" ", made))
        made = _LINK.sub(r"\1", made)
        made = _ADDRESS.sub("", made)
        made = _ROW.sub(lambda found: _cells(found[1]), _RULE.sub("", _TABLE.sub("", made)))
    made = _BULLET.sub("", _HEADING.sub(lambda found: _sentence(found[1]), made))
    for _ in range(3):
        made = _STRONG.sub(lambda found: found[2] or found[4], made)
    if any(ord(letter) > 0x200C for letter in made):
        made = "".join(letter for letter in made if not _is_emoji(letter))
    if made == text:
        return text
    made = _BARE.sub(r"\1", re.sub(r"[ \t]+", " ", made))
    return re.sub(r" ?\n ?", "\n", re.sub(r"\n{3,}", "\n\n", made)).strip()


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


_CUTS = (
    r"\n\s*\n\s*",
    r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[」』”’）]*\s*|\n\s*",
    r"[,;:–—]\s+|[，；：、]\s*",
    r"\s+",
)


def _cut(text: str, most: int) -> int:
    """Where the first part of `text` ends, at most `most`."""
    for pattern in _CUTS:
        ends = [found.end() for found in re.finditer(pattern, text[: most + 1]) if found.end() <= most]
        if ends and ends[-1] >= most // 3:
            return ends[-1]
    return most


def _cells(row: str) -> str:
    return ", ".join(cell.strip() for cell in row.split("|") if cell.strip())


def _sentence(heading: str) -> str:
    bare = heading.strip("*_ ")
    return heading if not bare or bare[-1] in _ENDS else f"{heading}."


def _is_emoji(letter: str) -> bool:
    code = ord(letter)
    if code < 0x200D:
        return False
    if code in _JOINERS or 0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F:
        return True
    if 0x1F000 <= code <= 0x1FAFF or 0x1F1E6 <= code <= 0x1F1FF:
        return True
    return 0x2600 <= code <= 0x27BF and unicodedata.category(letter) == "So"
