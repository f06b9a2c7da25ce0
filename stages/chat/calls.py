"""Reads tool calls out of a reply, in the form the model was trained on.

Where a name comes ahead of arguments that are a JSON object, these are told as they are written, letter for letter:
in the forms of Hermes, Llama and Mistral, and under a grammar. Other forms (parameters in XML, calls as Python,
arguments in a string or ahead of the name) have no JSON to tell before the call is whole.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]
Parser = Callable[[str, list[Json]], list[tuple[str, str]]]
"""(body, tools) → (name, arguments as JSON text) of each call. Raises ValueError if the body is no call."""


class CallFormat(NamedTuple):
    start: str
    """Marker before a call, or before each of several; empty if a call is a reply that begins with `{`."""
    end: str
    """Marker behind it; empty if the end of the reply ends it."""
    parse: Parser
    head: re.Pattern[str] | None = None
    """All of a call ahead of its arguments, with the name as its one group; None if calls are told whole."""


class CallPart(NamedTuple):
    """A call, or the next part of it."""

    number: int
    """Of the call in its body."""
    name: str
    arguments: str
    """What comes next of a JSON object's text."""
    last: bool


def parse_json(body: str, tools: list[Json]) -> list[tuple[str, str]]:
    """JSON objects with a name and arguments, in an array or one after the other (`;`, `,` or space between)."""
    del tools
    calls: list[tuple[str, str]] = []
    rest = body.strip()
    while rest:
        value, end = _DECODER.raw_decode(rest)
        calls += [_call(item) for item in (value if isinstance(value, list) else [value])]
        rest = rest[end:].lstrip(" \t\r\n;,")
    if not calls:
        raise ValueError("no call")
    return calls


def parse_named(body: str, tools: list[Json]) -> list[tuple[str, str]]:
    """Mistral: a JSON array of calls, or each as `name{…}` with or without `[ARGS]` between."""
    if body.lstrip().startswith("["):
        return parse_json(body, tools)
    calls: list[tuple[str, str]] = []
    rest = body.replace("[TOOL_CALLS]", "").strip()
    while rest:
        at = rest.index("{")
        name = rest[:at].split("[CALL_ID]")[0].replace("[ARGS]", "").strip()
        arguments, end = _DECODER.raw_decode(rest[at:])
        calls.append(_call({"name": name, "arguments": arguments}))
        rest = rest[at + end :].strip()
    if not calls:
        raise ValueError("no call")
    return calls


def _call(value: Any) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise ValueError("a call is a JSON object")
    inner: Any = value.get("function", value)
    if not isinstance(inner, dict):
        inner = value
    name = inner.get("name")
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except TypeError as error:  # some forms have values that JSON has not
        raise ValueError(str(error)) from error
    (name + text).encode()  # half a surrogate pair is no text
    return name, text


class CallReader:
    """Reads bodies of calls as they come, one behind the other.

    A call begins for good with the brace that opens its arguments. One whose arguments never become JSON has no
    last part, and its text is told as well when the body closes.
    """

    def __init__(self, form: CallFormat, tools: list[Json]) -> None:
        self.form = form
        self._tools = tools
        self._rest = ""
        """The body from the open call on, or from where the next may begin."""
        self._number = 0
        """Of the open call, or of the next."""
        self._first = 0
        """Of the first call of this body."""
        self._name = ""
        self._begin = 0
        """Where the arguments of the open call begin; 0: none is open."""
        self._told = 0

    @property
    def busy(self) -> bool:
        """Whether a body has begun."""
        return bool(self._rest) or self.begun

    @property
    def begun(self) -> bool:
        """Whether a part of a call in this body has been told."""
        return self._number > self._first or self._begin > 0

    def push(self, text: str) -> list[CallPart]:
        self._rest += text
        parts: list[CallPart] = []
        while self._open():
            # No object ends without a brace, and to try at every token would be slow.
            end = _end(self._rest, self._begin) if "}" in text else None
            parts.append(CallPart(self._number, self._name, self._rest[self._told : end], end is not None))
            if end is None:
                self._told = len(self._rest)
                break
            self._rest = self._rest[end:]
            self._number += 1
            self._begin = 0
        return [part for part in parts if part.arguments]

    def _open(self) -> bool:
        if not self._begin and self.form.head and (found := self.form.head.match(self._rest)):
            self._name = found[found.lastindex or 0]
            self._begin = self._told = found.end()
        return self._begin > 0

    def close(self) -> tuple[list[CallPart], str]:
        """The end of the body: calls that could not be told before, and the text that is none."""
        rest, broken = self._rest, self._begin > 0
        if self._number > self._first and not broken:
            rest = _BETWEEN.sub("", rest, count=1)
        try:
            calls = [] if broken else self.form.parse(rest, self._tools)
        except (ValueError, RecursionError):
            calls = []
        parts = [CallPart(self._number + n, *call, last=True) for n, call in enumerate(calls)]
        self._number += len(calls) + broken
        self._first = self._number
        self._rest, self._begin = "", 0
        return parts, "" if calls else rest


def _end(text: str, begin: int) -> int | None:
    """Where the JSON object ends that begins there, if it does."""
    try:
        end = _DECODER.raw_decode(text, begin)[1]
        msgspec.json.decode(text[begin:end])  # stricter: of surrogates and of numbers too large
    except (ValueError, RecursionError):
        return None
    return end


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_BETWEEN = re.compile(r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?[\s;,\[\]}]*')
"""What may stand between the arguments of a call and the next call."""
_OBJECT = (
    rf'{_BETWEEN.pattern}\{{\s*(?:"(?:id|type)"\s*:\s*"[^"]*"\s*,\s*)*"name"\s*:\s*"([^"\\\x00-\x1f]+)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_NAMED = r'(?:\s|\[TOOL_CALLS\])*([^\s\[\]{}",]++)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\]\s*)?(?=\{)'

HERMES = CallFormat("<tool_call>", "</tool_call>", parse_json, re.compile(_OBJECT))
LLAMA = HERMES._replace(start="", end="")
FORCED = LLAMA
"""The JSON of a call and nothing else, as grammars have it."""
MISTRAL = CallFormat("[TOOL_CALLS]", "", parse_named, re.compile(f"{_OBJECT}|{_NAMED}"))


def call_format(tokenizer: Any) -> CallFormat:
    """The form that a model's tokenizer and template speak; Hermes' if they name none.

    `tokenizer` is mlx-lm's wrapper. Forms other than JSON are read by mlx-lm's own parsers.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    start, end = tokenizer.tool_call_start, tokenizer.tool_call_end
    if start == MISTRAL.start:
        return MISTRAL
    if start is None:
        llama = '"parameters"' in template and "<tool_call>" not in template
        return LLAMA if llama else HERMES
    kind = getattr(tokenizer, "init_kwargs", {}).get("tool_parser_type")
    if kind == "json_tools":
        return HERMES
    return CallFormat(start, end or "", foreign(tokenizer.tool_parser))


def foreign(parser: Callable[[str, list[Json]], Any]) -> Parser:
    def parse(body: str, tools: list[Json]) -> list[tuple[str, str]]:
        try:
            found = parser(body, tools)
        except Exception as error:  # parsers of many hands: whatever they raise means that this is no call
            raise ValueError(str(error)) from error
        return [_call(item) for item in (found if isinstance(found, list) else [found])]

    return parse
