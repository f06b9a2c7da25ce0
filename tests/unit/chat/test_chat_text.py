"""Tokens to text: whole characters, stop strings, sections (cases O19 and O20)."""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.stages.chat.calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    CallFormat,
    CallPart,
    CallReader,
    call_format,
    foreign,
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


def joined(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Calls from their parts."""
    calls: dict[int, CallPart] = {}
    for part in parts:
        before = calls.setdefault(part.number, part._replace(arguments="", last=False))
        assert before.name == part.name
        assert not before.last
        calls[part.number] = part._replace(arguments=before.arguments + part.arguments)
    return tuple(calls.values())


def whole(piece: Piece) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in piece.calls if call.last]


def read(reply: Reply, tokens: list[int], cut: bool = False) -> Piece:
    """All that a reply told, its calls joined."""
    pieces: list[Piece] = []
    for token in tokens:
        pieces.append(reply.push(token))
        if reply.stopped is not None:
            break
    pieces.append(reply.finish(cut))
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        joined(call for piece in pieces for call in piece.calls),
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


@settings(deadline=None)
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


@settings(deadline=None)
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
TIGHT = '{"path":"ď/👩‍🚀","body":"\\u00e9{[","n":[{}, 1e-3]}'
SAVED = CallPart(0, "save", ARGUMENTS, last=True)
SHAPES: dict[str, tuple[CallFormat, str]] = {
    "hermes": (HERMES, f"<tool_call>\n{CALL}\n</tool_call>"),
    "llama": (LLAMA, CALL.replace("arguments", "parameters")),
    "llama, behind white space": (LLAMA, f"\n {CALL}"),
    "llama, typed": (LLAMA, CALL.replace('{"name"', '{"type": "function", "name"')),
    "mistral": (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
    "mistral, numbered": (MISTRAL, f'[TOOL_CALLS] [{CALL[:-1]}, "id": "abcdefghi"}}]'),
    "mistral, named": (MISTRAL, f"[TOOL_CALLS]save[ARGS]{ARGUMENTS}"),
    "mistral, named with id": (MISTRAL, f"[TOOL_CALLS]save[CALL_ID]abcdefghi[ARGS]{ARGUMENTS}"),
}
OTHERS: dict[str, tuple[CallFormat, str]] = {
    "arguments first": (HERMES, f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "save"}}</tool_call>'),
    "arguments in a string": (
        HERMES,
        f'<tool_call>{{"name": "save", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>',
    ),
    "a function inside": (HERMES, f'<tool_call>{{"function": {CALL}}}</tool_call>'),
}
"""Calls that are told whole."""


@pytest.mark.parametrize("shape", [*SHAPES, *OTHERS])
def test_a_call(codec: Any, shape: str) -> None:
    encode, decode = codec
    form, said = {**SHAPES, **OTHERS}[shape]
    assert read(Reply(Style(decode, calls=form)), encode(said)) == Piece("", "", (SAVED,))
    reply = Reply(Style(decode, calls=form))
    parts = [part for token in encode(said) for part in reply.push(token).calls]
    assert len(parts) == 1 if shape in OTHERS else len(parts) > 10


@pytest.mark.parametrize("shape", list(SHAPES))
def test_arguments_are_told_as_they_are_written(codec: Any, shape: str) -> None:
    encode, decode = codec
    form, said = SHAPES[shape]
    for arguments in (ARGUMENTS, TIGHT, "{}"):
        reply, told = Reply(Style(decode, calls=form)), ""
        before = said.index(ARGUMENTS)
        for token in encode(said[:before]):
            assert not reply.push(token).calls
        for length, token in enumerate(encode(arguments), 1):
            told += "".join(part.arguments for part in reply.push(token).calls)
            written = arguments.encode()[:length].decode(errors="ignore")
            assert written.startswith(told)
            assert form.end.startswith(written[len(told) :])  # what may yet become the marker is held back
        assert told == arguments


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_prefix_of_a_call_is_survived(codec: Any, shape: str) -> None:
    """Of a call that the limit cut the beginning comes out, and no exception ever does (case O24)."""
    encode, decode = codec
    form, said = SHAPES[shape]
    tokens = encode("Sure. " + said if form is not LLAMA else said)
    for length in range(len(tokens)):
        for cut in (True, False):
            piece = read(Reply(Style(decode, calls=form)), tokens[:length], cut)
            assert whole(piece) in ([], [("save", ARGUMENTS)])
            assert all(ARGUMENTS.startswith(call.arguments) for call in piece.calls)
            if cut:
                assert "save" not in piece.text or form is LLAMA
            elif piece.calls and not piece.calls[0].last:
                assert piece.calls[0].arguments in piece.text


def test_calls_one_after_the_other(codec: Any) -> None:
    encode, decode = codec
    said = f"Both.\n{SHAPES['hermes'][1]}\n{SHAPES['hermes'][1]}\n"
    piece = read(Reply(Style(decode, calls=HERMES)), encode(said))
    assert piece == Piece("Both.\n", "", (SAVED, SAVED._replace(number=1)))


BODIES = {
    "two objects": (HERMES, f"{CALL}\n{CALL}"),
    "with a semicolon": (LLAMA, f"{CALL}; {CALL}"),
    "an array": (MISTRAL, f"[{CALL}, {CALL}]"),
    "an array with ids": (MISTRAL, f'[{CALL[:-1]}, "id": "1"}}, {CALL[:-1]}, "id": "2"}}]'),
    "by name": (MISTRAL, f"save[ARGS]{ARGUMENTS}[TOOL_CALLS]save{ARGUMENTS}"),
    "the second whole": (HERMES, f'{CALL} {{"arguments": {ARGUMENTS}, "name": "save"}}'),
    "without its last brace": (HERMES, f"{CALL[:-1]}, {CALL[:-1]}"),
}


def told(form: CallFormat, pieces: Iterable[str]) -> tuple[tuple[CallPart, ...], str]:
    reader = CallReader(form, [])
    parts = [part for piece in pieces for part in reader.push(piece)]
    rest, text = reader.close()
    return joined([*parts, *rest]), text


@pytest.mark.parametrize("body", list(BODIES))
def test_two_calls_in_one_body_however_it_is_cut(body: str) -> None:
    form, text = BODIES[body]
    wanted = ((SAVED, SAVED._replace(number=1)), "")
    assert told(form, text) == told(form, [text]) == wanted
    for at in range(len(text)):
        assert told(form, (text[:at], text[at:])) == wanted


BROKEN = {
    "a line end in a string": '{"name": "save", "arguments": {"body": "a\nb"}}',
    "no quotes": '{"name": "save", "arguments": {path: 1}}',
    "not a number": '{"name": "save", "arguments": {"n": NaN}}',
    "too large": '{"name": "save", "arguments": {"n": 1e999}}',
    "half a pair": '{"name": "save", "arguments": {"body": "\\ud800"}}',
    "deep": '{"name": "save", "arguments": {"n": ' + "[" * 5000 + "]" * 5000 + "}}",
}


@pytest.mark.parametrize("body", list(BROKEN))
def test_arguments_that_are_no_json_are_content_in_the_end(body: str) -> None:
    text = BROKEN[body]
    calls, rest = told(HERMES, [text])
    assert rest == text
    assert [call.last for call in calls] == [False]
    for cut in (text.index("arg"), text.index('": {') + 3, len(text) - 2):
        assert told(HERMES, (text[:cut], text[cut:])) == (calls, rest)


FRAGMENTS = (
    '{"name": "f", "arguments": ',
    '{"a": "}"}',
    "{}",
    "}",
    "]",
    "[",
    ", ",
    "f[ARGS]",
    '"',
    "\\",
    " ",
    "{",
    "x",
)


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.sampled_from([HERMES, MISTRAL]), st.data())
def test_any_cut_tells_the_same(fragments: list[str], form: CallFormat, data: st.DataObject) -> None:
    text = "".join(fragments)
    at = data.draw(st.integers(0, len(text)))
    assert told(form, [text]) == told(form, text) == told(form, (text[:at], text[at:]))


MARKED = (
    *FRAGMENTS,
    '{"name": "f", "parameters": {"b": "</tool_call>"}}',
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from((*MARKED, "<think>", "</think>", "stop", "\n")), max_size=9),
    st.sampled_from([HERMES, LLAMA, MISTRAL]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_tokens_of_a_reply_tell_the_same(
    fragments: list[str], form: CallFormat, cut: bool, random: Random
) -> None:
    text = "".join(fragments)
    at = sorted({0, len(text), *(random.randrange(len(text) + 1) for _ in range(6))})
    told: list[tuple[Piece, str | None]] = []
    for words in (list(text), [text[begin:end] for begin, end in pairwise(at)]):

        def decode(tokens: list[int], words: list[str] = words) -> str:
            return "".join(words[token] for token in tokens)

        reply = Reply(Style(decode, think=("<think>", "</think>"), calls=form), ("stop",))
        told.append((read(reply, list(range(len(words))), cut), reply.stopped))
    assert told[0] == told[1]


def test_nothing_behind_a_stop_string_is_told_though_it_is_in_the_same_token() -> None:
    said = 'a stop<think>{"name": "f", "arguments": '
    reply = Reply(
        Style(lambda tokens: said * len(tokens), think=("<think>", "</think>"), calls=HERMES), ("stop",)
    )
    assert read(reply, [0]) == Piece(text="a ")
    assert reply.stopped == "stop"


def test_what_is_no_call_is_content(codec: Any) -> None:
    encode, decode = codec
    said = "<tool_call>not a call</tool_call> then"
    assert (
        read(Reply(Style(decode, calls=HERMES)), encode(said)).text == "<tool_call>not a call</tool_call>then"
    )
    assert read(Reply(Style(decode, calls=LLAMA)), encode('{"a": 1}')).text == '{"a": 1}'
    assert read(Reply(Style(decode)), encode(said)).text == said


def test_stop_strings_are_found_in_what_is_no_call(codec: Any) -> None:
    encode, decode = codec
    for cut in (True, False):
        reply = Reply(Style(decode, calls=LLAMA), ("stop",))
        assert read(reply, encode('{"a": "stop it"}'), cut).text == '{"a": "'
        assert reply.stopped == "stop"
    reply = Reply(Style(decode, calls=HERMES), ("nothing",))
    assert read(reply, encode("<tool_call>noth</tool_call>ing")).text == "<tool_call>noth</tool_call>ing"
    reply = Reply(Style(decode, calls=HERMES), ("city",))
    assert whole(read(reply, encode('<tool_call>{"name": "f", "arguments": {"city": 1}}</tool_call>')))


def test_values_that_json_does_not_have_are_no_call(codec: Any) -> None:
    encode, decode = codec

    def parse(body: str, tools: Any) -> Any:
        return {"name": "f", "arguments": {"a": {1, 2} if body == "set" else "\ud800"}}

    for body in ("set", "half"):
        form = CallFormat("<call>", "</call>", foreign(parse))
        said = f"<call>{body}</call>"
        assert read(Reply(Style(decode, calls=form)), encode(said)) == Piece(said)


@settings(deadline=None)
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
