"""Write the training sentences: python -m tools.voice.texts OUT.jsonl --templates 40000 --drills 12000

Sources, all from Debian: sentences grown from templates.txt with common words of WordNet, WordNet's own example
sentences, fortunes, the Debian Administrator's Handbook, and drills over the word list for spelling and names.
Each line is {"raw": as typed, "spoken": numbers written out}.
"""

import argparse
import glob
import html
import json
import random
import re
from pathlib import Path

from .spoken import spoken

DRILLS = (
    "The word is {}.",
    "Please say {} again.",
    "{}, {}, and {}.",
    "Not {}, but {}.",
    "{} and {}.",
    "Do you know the word {}?",
    "The {} and the {} are here.",
    "What does {} mean?",
    "She wrote {} and {}.",
    "{} or {}?",
    "{}.",
    "I heard about the {} in {}.",
)
RUDE = re.compile(
    r"damn|fuck|shit|\bsex|hell\b|drug|nigg|\bjew|whore|bitch|suicid|rape|breast|naked|nazi|hitler|penis|vagina|"
    r"\bgay\b|lesbian|negro|terroris|prostitut|bastard|orgasm|semen",
    re.IGNORECASE,
)
ABBREVIATED = re.compile(r"\b[A-Z]\.|etc\.|e\.g|i\.e|\.\.")
PLAIN = re.compile(r"[A-Z\"'][A-Za-z0-9 ,.'!?;:$%\"-]+[.!?]")


def _lists() -> dict[str, list[str]]:
    lines = Path(__file__).with_name("words.txt").read_text().splitlines()
    return {slot: entries.split(", ") for slot, _, entries in (line.partition(": ") for line in lines)}


def _wordnet(kind: str, count: int) -> list[str]:
    """The most frequent single-word lemmas of one part of speech (n, v or a) in WordNet's tagged texts."""
    wanted = {"n": "1", "v": "2", "a": "35"}[kind]
    totals: dict[str, int] = {}
    for line in Path("/usr/share/wordnet/cntlist.rev").read_text().splitlines():
        sense, _, uses = line.split(" ")
        lemma, _, rest = sense.partition("%")
        if rest[0] in wanted and re.fullmatch("[a-z]{2,12}", lemma) and not RUDE.search(lemma):
            totals[lemma] = totals.get(lemma, 0) + int(uses)
    return sorted(totals, key=lambda lemma: -totals[lemma])[:count]


def _irregular(kind: str) -> dict[str, list[str]]:
    forms: dict[str, list[str]] = {}
    for line in Path(f"/usr/share/wordnet/{kind}.exc").read_text().splitlines():
        form, lemma, *_ = line.split(" ")
        if form.isalpha():
            forms.setdefault(lemma, []).append(form)
    return forms


def _regular(verb: str, ending: str) -> str:
    if verb.endswith("e"):
        return verb[:-1] + ending
    if ending == "ed" and re.search("[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    if re.fullmatch("[^aeiou]*[aeiou][bdgmnprt]", verb):
        return verb + verb[-1] + ending
    return verb + ending


def _plural(noun: str) -> str:
    if re.search("(s|x|ch|sh)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search("[^aeiou]y$", noun) else noun + "s"


class Grammar:
    """Grows sentences from templates.txt; seeded."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        path = Path(__file__).with_name("templates.txt")
        self.templates = path.read_text().splitlines()
        verbs, irregular = _wordnet("v", 700), _irregular("verb")
        nouns, plurals = _wordnet("n", 1800), _irregular("noun")
        self.lists: dict[str, list[str]] = {
            **_lists(),
            "noun": nouns,
            "nouns": [plurals.get(noun, [_plural(noun)])[0] for noun in nouns],
            "verb": verbs,
            "verbing": [_regular(verb, "ing") for verb in verbs],
            "verbed": [self._past(irregular.get(verb, []), verb) for verb in verbs],
            "adj": _wordnet("a", 900),
        }

    @staticmethod
    def _past(forms: list[str], verb: str) -> str:
        past = [form for form in forms if not form.endswith("ing") and form not in ("is", "am", "are", "has")]
        return past[-1] if past else _regular(verb, "ed")

    def _number(self, slot: str) -> str:
        r = self.random
        if slot == "n":
            number = r.choice((r.randint(2, 12), r.randint(2, 20), r.randint(10, 99)))
            return str(number) if r.random() < 0.6 else spoken(str(number))
        if slot == "big":
            number = r.choice((r.randint(100, 999), r.randint(1000, 9999), r.randint(2, 99) * 1000))
            return r.choice((f"{number:,}", str(number)))
        if slot == "time":
            hour, minute = r.randint(1, 12), r.choice((0, 15, 30, 45, r.randint(1, 59)))
            half = r.choice(("", "", " AM", " PM", " a.m.", " p.m."))
            named = [f"half past {spoken(str(hour))}", f"quarter to {spoken(str(hour))}", f"{hour} o'clock"]
            return r.choice(
                (f"{hour}:{minute:02d}{half}", f"{hour}:{minute:02d}{half}", *named, f"{hour}{half or ' PM'}")
            )
        if slot == "price":
            whole, cents = (
                r.choice((r.randint(1, 20), r.randint(1, 400))),
                r.choice((0, 50, 99, r.randint(1, 99))),
            )
            return f"${whole}.{cents:02d}" if cents and r.random() < 0.6 else f"${whole}"
        if slot == "date":
            month, day = r.choice(self.lists["month"]), r.randint(1, 31)
            suffix = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
            return r.choice((f"{month} {day}{suffix}", f"the {day}{suffix} of {month}"))
        if slot == "ordinal":
            number = r.randint(1, 31)
            suffix = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
            return r.choice((f"{number}{suffix}", spoken(f"{number}{suffix}")))
        return {
            "percent": lambda: r.choice((f"{r.randint(1, 100)}%", f"{r.randint(1, 100)} percent")),
            "degrees": lambda: r.choice((f"{r.randint(2, 105)}°", f"{r.randint(2, 105)} degrees")),
            "year": lambda: str(r.choice((r.randint(1700, 1999), r.randint(1900, 2035)))),
            "decimal": lambda: f"{r.randint(0, 60)}.{r.randint(0, 9)}",
            "phone": lambda: f"{r.randint(200, 999)}-{r.randint(0, 9999):04d}",
        }[slot]()

    def sentence(self) -> str:
        """One sentence; common words are likelier, as in real text."""

        def fill(match: re.Match[str]) -> str:
            words = self.lists.get(match[1])
            if words is None:
                return self._number(match[1])
            if len(words) < 200:
                return self.random.choice(words)
            return words[int(len(words) * self.random.random() ** 1.6)]

        text = re.sub(r"\{(\w+)\}", fill, self.random.choice(self.templates))
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
        return text[0].upper() + text[1:]


def _sentences(paragraph: str) -> list[str]:
    paragraph = paragraph.replace("’", "'").replace("“", '"').replace("”", '"')
    paragraph = re.sub(r"\s*--\s*", ", ", re.sub(r"\s+", " ", paragraph))
    found: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", paragraph):
        sentence = sentence.replace('"', "").strip(" '")
        shouting = any(len(w) > 1 and w.isupper() for w in re.findall("[A-Za-z]+", sentence))
        fits = 2 <= len(sentence.split()) <= 24 and PLAIN.fullmatch(sentence)
        if fits and not shouting and not RUDE.search(sentence) and not ABBREVIATED.search(sentence):
            found.append(sentence)
    return found


def _prose() -> list[str]:
    """Sentences of WordNet's examples, fortunes and the handbook, in a fixed order, each once."""
    found: list[str] = []
    for name in ("noun", "verb", "adj", "adv"):
        for quote in re.findall(r'"([^"]{8,140})"', Path(f"/usr/share/wordnet/data.{name}").read_text()):
            quote = quote.strip(" ;,-")
            if len(quote.split()) > 1:
                found += _sentences(quote[0].upper() + quote[1:] + ("" if quote[-1] in ".!?" else "."))
    for path in sorted(glob.glob("/usr/share/games/fortunes/*.u8")):
        if "ascii-art" not in path:
            for fortune in re.sub(r"(?m)^\s*--.*$", "", Path(path).read_text(errors="ignore")).split("\n%\n"):
                found += _sentences(fortune)
    for path in sorted(glob.glob("/usr/share/doc/debian-handbook/html/en-US/*.html")):
        for paragraph in re.findall(
            r'(?s)<div class="para">(.*?)</div>', Path(path).read_text(errors="ignore")
        ):
            found += _sentences(html.unescape(re.sub(r"<[^>]+>", "", paragraph)))
    return list(dict.fromkeys(found))


def _drills(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    listed = Path("/usr/share/dict/american-english").read_text().split()
    words = [w for w in listed if re.fullmatch("[A-Za-z][a-z]{2,12}", w) and not RUDE.search(w)]
    found: list[str] = []
    for _ in range(count):
        text = re.sub(r"\{\}", lambda _: rng.choice(words), rng.choice(DRILLS))
        found.append(text[0].upper() + text[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--templates", type=int, default=40000, help="sentences grown from templates")
    parser.add_argument("--drills", type=int, default=12000, help="sentences over the word list")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    grammar = Grammar(args.seed)
    texts = [grammar.sentence() for _ in range(args.templates)] + _drills(args.drills, args.seed)
    prose = _prose()
    texts = list(dict.fromkeys(texts + prose))
    joiner = random.Random(args.seed)
    texts += [" ".join(joiner.sample(texts, 2)) for _ in range(len(texts) // 10)]
    joiner.shuffle(texts)
    with args.out.open("w") as file:
        for raw in texts:
            if len(raw) <= 170:
                file.write(json.dumps({"raw": raw, "spoken": spoken(raw)}, ensure_ascii=False) + "\n")
    hours = sum(map(len, texts)) / 14 / 3600
    print(f"{len(texts)} sentences ({len(prose)} of prose), {hours:.1f} h at 14 letters a second")


if __name__ == "__main__":
    main()
