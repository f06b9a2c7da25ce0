"""Tokens to text: whole characters, stop strings, sections (cases O19 and O20)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.stages.chat.calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    CallFormat,
    call_format,
    parse_json,
    parse_named,
)
from vivavoce.stages.chat.reply import Piece, Reply, Style
from vivavoce.stages.chat.text import Detokenizer, StopMatcher

HARD = "👩‍🚀 ď 中 é 🇨🇿 🧑🏽‍🍳"


@pytest.fixture(scope="session")
def codec(tiny_models: Any) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Encode to single bytes, and decode."""
    model = tiny_models()
    return lambda text: model.tokenizer.encode(text, add_special_tokens=False), model.decode


def read(reply: Reply, tokens: list[int], cut: bool = False) -> Piece:
    pieces: list[Piece] = []
    for token in tokens:
        pieces.append(reply.push(token))
        if reply.stopped is not None:
            break
    pieces.append(reply.finish(cut))
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
    )


def test_characters_stay_whole(codec: Any) -> None:
    encode, decode = codec
    tokens = encode(HARD)
    assert len(tokens) == len(HARD.encode())
    stream = Detokenizer(decode)
    parts = [stream.push(token) for token in tokens]
    assert "".join(parts) + stream.flush() == HARD
    assert all("\ufffd" not in part for part in parts)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_cut_at_the_end_is_one_hole(codec: Any, cut: int) -> None:
    encode, decode = codec
    stream = Detokenizer(decode)
    text = "".join([stream.push(token) for token in encode("ok 🚀")[:-cut]]) + stream.flush()
    assert text == "ok \ufffd"


@given(text=st.text(max_size=30))
def test_any_text_comes_back(codec: Any, text: str) -> None:
    encode, decode = codec
    stream = Detokenizer(decode)
    assert "".join([stream.push(token) for token in encode(text)]) + stream.flush() == text


@pytest.mark.parametrize(
    ("stops", "shown", "found"),
    [
        (["wo thr"], "one t", "wo thr"),
        (["wo thrX"], "one two three four", None),
        (["four", "two"], "one ", "two"),
        (["two"], "one ", "two"),
        ([""], "one two three four", None),
        (["r"], "one two th", "r"),
        (["ree", "three"], "one two ", "three"),
    ],
)
def test_stop_strings(stops: list[str], shown: str, found: str | None) -> None:
    for size in (1, 3, 100):
        matcher = StopMatcher(stops)
        text = "one two three four"
        parts = [matcher.push(text[at : at + size]) for at in range(0, len(text), size)]
        assert ("".join(parts) + matcher.flush(), matcher.found) == (shown, found)


words = st.text(alphabet="ab", min_size=0, max_size=5)


@given(text=st.text(alphabet="ab", max_size=20), stops=st.lists(words, max_size=3))
def test_stop_by_letter_equals_stop_by_whole(text: str, stops: list[str]) -> None:
    whole, letters = StopMatcher(stops), StopMatcher(stops)
    first = whole.push(text) + whole.flush()
    assert "".join([letters.push(letter) for letter in text]) + letters.flush() == first
    assert letters.found == whole.found


def test_reasoning_is_split_off(codec: Any) -> None:
    encode, decode = codec
    style = Style(decode, think=("<think>", "</think>"))
    said = "<think>\nTwo and two. </think>\n\nFour, <thin ice."
    assert read(Reply(style), encode(said)) == Piece("Four, <thin ice.", "Two and two.", ())
    opened = Style(decode, think=("<think>", "</think>"), thinking=True)
    assert read(Reply(opened), encode("\nHm.\n</think>\nFour")) == Piece("Four", "Hm.", ())
    assert read(Reply(opened), encode("Hm, still"), cut=True) == Piece("", "Hm, still", ())


def test_stop_strings_do_not_look_into_reasoning(codec: Any) -> None:
    encode, decode = codec
    reply = Reply(Style(decode, think=("<think>", "</think>")), ("Two",))
    assert read(reply, encode("<think>Two</think>One Two")) == Piece("One ", "Two", ())
    assert reply.stopped == "Two"


CALL = '{"name": "save", "arguments": {"path": "a/b.txt", "body": "x = \\"1\\"\\n} ] </tool"}}'
ARGUMENTS = '{"path": "a/b.txt", "body": "x = \\"1\\"\\n} ] </tool"}'
SHAPES: dict[str, tuple[CallFormat, str]] = {
    "hermes": (HERMES, f"<tool_call>\n{CALL}\n</tool_call>"),
    "llama": (LLAMA, CALL.replace("arguments", "parameters")),
    "mistral": (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
    "mistral, named": (MISTRAL, f"[TOOL_CALLS]save[ARGS]{ARGUMENTS}"),
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_call(codec: Any, shape: str) -> None:
    encode, decode = codec
    form, said = SHAPES[shape]
    piece = read(Reply(Style(decode, calls=form)), encode(said))
    assert piece == Piece("", "", (("save", ARGUMENTS),))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_prefix_of_a_call_is_survived(codec: Any, shape: str) -> None:
    """A call that the limit cut never comes out; nor does any exception (case O24)."""
    encode, decode = codec
    form, said = SHAPES[shape]
    tokens = encode("Sure. " + said if form is not LLAMA else said)
    for length in range(len(tokens)):
        piece = read(Reply(Style(decode, calls=form)), tokens[:length], cut=True)
        assert piece.calls in ((), (("save", ARGUMENTS),))
        ended = read(Reply(Style(decode, calls=form)), tokens[:length], cut=False)
        assert ended.calls in ((), (("save", ARGUMENTS),))


def test_calls_one_after_the_other(codec: Any) -> None:
    encode, decode = codec
    said = f"Both.\n{SHAPES['hermes'][1]}\n{SHAPES['hermes'][1]}\n"
    piece = read(Reply(Style(decode, calls=HERMES)), encode(said))
    assert piece == Piece("Both.\n", "", (("save", ARGUMENTS),) * 2)


def test_what_is_no_call_is_content(codec: Any) -> None:
    encode, decode = codec
    said = "<tool_call>not a call</tool_call> then"
    assert (
        read(Reply(Style(decode, calls=HERMES)), encode(said)).text == "<tool_call>not a call</tool_call>then"
    )
    assert read(Reply(Style(decode, calls=LLAMA)), encode('{"a": 1}')).text == '{"a": 1}'
    assert read(Reply(Style(decode)), encode(said)).text == said


@given(body=st.text(max_size=40))
def test_parsers_raise_nothing_but_value_error(body: str) -> None:
    for parse in (parse_json, parse_named):
        for text in (body, "{" + body, "[" + body, '{"name": "f", "arguments": ' + body):
            try:
                calls = parse(text, [])
            except ValueError:
                continue
            assert all(name and arguments for name, arguments in calls)


def test_the_form_is_found_from_the_template(tiny_models: Any) -> None:
    assert call_format(tiny_models().tokenizer) is HERMES
