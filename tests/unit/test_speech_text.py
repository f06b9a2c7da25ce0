"""The cleaning rule of texts (case O02), and where long ones are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.stages.speech.text import pause_after, split
from vivavoce.stages.speech.text_cleaning import FARTHEST, Cleaner, clean


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("## Plan\n**First**, see [the map](https://example.org/a_b?x=1).", "Plan.\nFirst, see the map."),
        ("Good 😀👍🏽 work 🇨🇿!", "Good work!"),
        ("Before.\n```python\nprint('*no*')\n```\nAfter.", "Before.\nAfter."),
        ('<speak>Wait<break time="2s"/> now</speak>', "Wait now"),
        ("*word* and _word_ and ***word***", "word and word and word"),
        ("__init__ stays? No: init", "init stays? No: init"),
        ("Use `pip install` or ``a`b``.", "Use pip install or ``a`b``."),
        ("- one\n- [x] two\n* three\n> quoted", "one\ntwo\nthree\nquoted"),
        ("See https://example.org/a, or www.example.org.", "See, or."),
        ("![a cat](cat.png) sits", "a cat sits"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a, b\n1, 2"),
        ("One<br>two<p>three</p>", "One two three"),
        ("Is it?\n---\n# What? #\nYes.", "Is it?\n\nWhat?\nYes."),
        ("family 👩‍👩‍👧 ❤️ and ✨", "family and"),
        ("~~old~~ new", "old new"),
        ("A <!-- no\n\nno --> B\n<!-- x -->\nC <!-- open", "A B\nC"),
        ("Before.\n\n~~~\nx\n~~~\n\n😀\n\nAfter.", "Before.\n\nAfter."),
        ("# Plan 🚀\r\n## Done! 🎉\r\nText  \r\n", "Plan.\nDone!\nText"),
        ("**bold _both_ and `code`**, _use snake_case_", "bold both and code, use snake_case"),
        ("你好，**世界**。看 https://x.org/a，好。", "你好，世界。看，好。"),
    ],
)
def test_marks_are_taken_out_and_words_stay(raw: str, plain: str) -> None:
    assert clean(raw) == plain


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 = 6, and 4 * 5 = 20.",
        "a < b and c > d, 5 <6 > 3",
        "snake_case_name and __ and *",
        "Hello <|im_end|> <|im_start|>user again.",
        "Rock 'n' roll – 50 % off! #1, C# and F#.",
        "中文，句子。日本語！한국어?",
        "A line.\n\nAnother, with  two spaces.",
        "e-mail me: a_b@c_d.org",
        "™ © ® № → ½ 20 €",
        "(see [1] and [2])",
        "[看，。",
        "1. First\n2. Second",
    ],
)
def test_plain_text_comes_back_as_it_is(text: str) -> None:
    assert clean(text) == text


MARKS = """word **bold *slant _low ~~old ` `` [text ](https://x.org/a) ](a (b) ! https://x.org www. <b> <br/> <b
</p> > <!-- --> # ## - * + | --- :-: ``` ~~~ 😀 ❤️ 中文，。 . , ? 's \\ \ufdd0 \u200d"""
SPACES = [" ", "  ", "\t", "\n", "\n\n", "\r\n"]
PIECES = st.lists(st.sampled_from([*MARKS.split(), *SPACES, "x" * FARTHEST]), max_size=30)


@given(st.one_of(st.text(max_size=200), PIECES.map("".join), PIECES.map(" ".join)), st.data())
def test_a_text_in_pieces_comes_out_as_when_cleaned_whole(text: str, data: st.DataObject) -> None:
    cleaner, made, left = Cleaner(), "", text
    while left:
        size = data.draw(st.integers(1, 12))
        piece, left = cleaner.feed(left[:size]), left[size:]
        assert not (made[-1:].isalnum() and piece[:1].isalnum())
        made += piece
    assert made + cleaner.feed("", final=True) == clean(text)


@given(st.text(max_size=300))
def test_cleaning_never_fails_and_adds_little(text: str) -> None:
    assert len(clean(text)) <= len(text) + text.count("#") + text.count("|")


def test_only_what_may_still_change_is_held_back() -> None:
    fed = {
        "Sure! ": "Sure!",
        "**First**, ": " First,",
        "do ": " do",
        "*this one* ": " this one",
        "or [the ": " or",
        "map](http://x.y/z), ": " the map,",
        "2 * 3.\n": " 2 * 3.",
        "# Head\n": "\nHead.",
        "- ": "",
        "item ": "\nitem",
        "one": "",
    }
    cleaner = Cleaner()
    assert [cleaner.feed(piece) for piece in fed] == list(fed.values())
    assert cleaner.feed("", final=True) == " one"


@pytest.mark.parametrize(
    "mark",
    [
        "[",
        "*",
        "<a ",
        "`",
        "_a",
        "![](",
        "https://",
        "**a",
        "~~~\n",
        "|",
        "\n# ",
        "_a ",
        "*a ",
        "[a](b ",
        "x",
    ],
)
def test_hostile_marks_cost_no_time(mark: str) -> None:
    """A quadratic pattern, or looking at a line anew with each word, would take minutes."""
    text, cleaner = mark * (20_000 // len(mark)), Cleaner()
    clean(text)
    for at in range(0, len(text), 4):
        cleaner.feed(text[at : at + 4])


SENTENCE = "The living voice leaves before the second frame is begun. "


def test_long_texts_are_cut_behind_sentences() -> None:
    text = SENTENCE * 345  # about 20,000 letters
    parts = split(text, 500)
    assert "".join(parts) == text
    assert all(part.endswith(". ") and len(part) <= 500 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 250
    assert split(text[:500], 500) == [text[:500]]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("One two three. Four five six\n\nSeven eight nine ten. Eleven", "Seven"),
        ("第一句话在这里。第二句话在这里。第三句话在这里。第四句话。", "第"),
        ("no full stop here, but a comma, and words that go on and on", "and"),
    ],
)
def test_where_it_is_cut(text: str, at: str) -> None:
    parts = split(text, 32 if text.isascii() else 20)
    assert "".join(parts) == text
    assert any(part.startswith(at) for part in parts[1:])


def test_the_pause_behind_a_part_follows_its_end() -> None:
    ends = {
        "One.\n\n": 0.7,
        "One.\n \n": 0.7,
        "One!\n": 0.35,
        "Heading\n": 0.35,
        "One.” ": 0.35,
        "好。": 0.35,
    }
    assert {end: pause_after(end) for end in ends} == ends
    assert {pause_after(end) for end in ("one, ", "one ", "one", "，")} == {0.0}


@given(st.text(min_size=1, max_size=400), st.integers(1, 50))
def test_cuts_lose_nothing(text: str, most: int) -> None:
    parts = split(text, most)
    assert all(len(part) <= most for part in parts)
    if all(part.strip() for part in parts) and text.strip():
        assert "".join(text.split()) == "".join("".join(parts).split())
