"""English text as it is said: digits, times, prices and signs become words.

The same rules feed the speech engines and normalise transcripts before words are compared.
"""

import re

_SMALL = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]  # fmt: skip
_TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_UNITS = {"km": "kilometers", "kg": "kilograms", "mph": "miles per hour", "lbs": "pounds"}
_TITLES = {"Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "Ms.": "Miss"}


def cardinal(number: int) -> str:
    """The number in words, without "and"."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_SMALL[ones]}" if ones else "")
    size, word = next(scale for scale in _SCALES if number >= scale[0])
    head, rest = divmod(number, size)
    return f"{cardinal(head)} {word}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """first, second, twenty third."""
    head, _, last = cardinal(number).rpartition(" ")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return f"{head} {last}".strip()


def year(number: int) -> str:
    """nineteen oh five, two thousand three, twenty twenty six."""
    if 2000 <= number < 2010:
        return cardinal(number)
    century, rest = divmod(number, 100)
    return f"{cardinal(century)} " + (
        "hundred" if not rest else cardinal(rest) if rest > 9 else f"oh {_SMALL[rest]}"
    )


def digits(text: str) -> str:
    """Each digit by itself; 0 is "oh"."""
    return " ".join("oh" if d == "0" else _SMALL[int(d)] for d in text if d.isdigit())


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    tail = "" if not minute else f" oh {_SMALL[minute]}" if minute < 10 else f" {cardinal(minute)}"
    return cardinal(hour) + tail


def _price(match: re.Match[str]) -> str:
    whole, cents = int(match[1].replace(",", "")), int(match[2] or 0)
    text = f"{cardinal(whole)} dollar" + ("s" if whole != 1 else "")
    return text + (f" and {cardinal(cents)} cent" + ("s" if cents != 1 else "") if cents else "")


def _integer(match: re.Match[str]) -> str:
    text = match[0].replace(",", "")
    number = int(text)
    if "," not in match[0] and 1100 <= number <= 2099 and number not in (2000,):
        return year(number)
    return cardinal(number) if (number < 10**12 and text[0] != "0") or number == 0 else digits(text)


_RULES: tuple[tuple[str, object], ...] = (
    (r"\b(Mr|Mrs|Dr|Ms)\.", lambda m: _TITLES[m[0]]),
    (r"\b(\d{3})-(\d{4})\b", lambda m: f"{digits(m[1])}, {digits(m[2])}"),
    (r"(?<=\d)\s?([apAP])\.?[mM]\b\.?", lambda m: f" {m[1].lower()} m"),
    (r"\b(\d{1,2}):(\d\d)", _time),
    (r"\$(\d[\d,]*)(?:\.(\d\d))?", _price),
    (r"(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1]))),
    (r"(\d)\s?(km|kg|mph|lbs)\b", lambda m: f"{m[1]} {_UNITS[m[2]]}"),
    (r"(\d+)\.(\d+)", lambda m: f"{cardinal(int(m[1]))} point {digits(m[2]).replace('oh', 'zero')}"),
    (r"\d{1,3}(?:,\d{3})+|\d+", _integer),
    (r"\s?%", " percent"),
    (r"\s?°\s?[CF]?", " degrees "),
    (r"\s?&\s?", " and "),
)


def spoken(text: str) -> str:
    """The sentence with every number, sign and title written out."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return re.sub(r"\s+", " ", text).strip()


_SAME = {
    "okay": "ok",
    "colour": "color",
    "favourite": "favorite",
    "mister": "mr",
    "missus": "mrs",
    "doctor": "dr",
    "grey": "gray",
    "neighbour": "neighbor",
    "theatre": "theater",
}


def words(text: str) -> list[str]:
    """Lower-case words of the spoken form, for counting errors: no punctuation, one spelling each."""
    text = spoken(text.replace("-", " ") if not re.search(r"\d-\d", text) else text).lower()
    text = re.sub(r"[^a-z ]", " ", text.replace("'", "").replace("’", ""))
    text = re.sub(r"\bpm\b", "p m", text)
    return [_SAME.get(word, word) for word in text.split()]


def word_errors(reference: list[str], heard: list[str]) -> int:
    """Edit distance in words (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(reference, 1):
        above, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (wanted != got))
    return row[-1]
