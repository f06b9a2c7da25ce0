"""Reads tool calls out of a reply, in the form the model was trained on."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Json = dict[str, Any]
Parser = Callable[[str, list[Json]], list[tuple[str, str]]]
"""(body, tools) → (name, arguments as JSON text) of each call. Raises ValueError if the body is no call."""


class CallFormat(NamedTuple):
    start: str
    """Marker before a call, or before each of several; empty if a call is a reply that begins with `{`."""
    end: str
    """Marker behind it; empty if the end of the reply ends it."""
    parse: Parser


def parse_json(body: str, tools: list[Json]) -> list[tuple[str, str]]:
    """JSON objects with a name and arguments, in an array or one after the other (`;`, `,` or space between)."""
    del tools
    calls: list[tuple[str, str]] = []
    decoder = json.JSONDecoder()
    rest = body.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
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
    decoder = json.JSONDecoder()
    rest = body.replace("[TOOL_CALLS]", "").strip()
    while rest:
        at = rest.index("{")
        name = rest[:at].split("[CALL_ID]")[0].replace("[ARGS]", "").strip()
        arguments, end = decoder.raw_decode(rest[at:])
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
    return name, json.dumps(arguments, ensure_ascii=False)


HERMES = CallFormat("<tool_call>", "</tool_call>", parse_json)
LLAMA = CallFormat("", "", parse_json)
MISTRAL = CallFormat("[TOOL_CALLS]", "", parse_named)


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
    return CallFormat(start, end or "", _foreign(tokenizer.tool_parser))


def _foreign(parser: Callable[[str, list[Json]], Any]) -> Parser:
    def parse(body: str, tools: list[Json]) -> list[tuple[str, str]]:
        try:
            found = parser(body, tools)
        except Exception as error:  # parsers of many hands: whatever they raise means that this is no call
            raise ValueError(str(error)) from error
        return [_call(item) for item in (found if isinstance(found, list) else [found])]

    return parse
