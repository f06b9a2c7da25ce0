"""What a forced call may hold."""

import json
from typing import Any

from llguidance import LLMatcher


def fits(model: Any, tool: dict[str, Any], text: str) -> bool:
    """Whether a reply is a whole call of the tool."""
    grammar = model.grammars.calls([{"type": "function", "function": tool}])
    matcher = LLMatcher(model.grammars._tokenizer, grammar.source)
    tokens = model.tokenizer.encode(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def call(**arguments: Any) -> str:
    return json.dumps({"name": "f", "arguments": arguments}, separators=(",", ":"))


def test_a_call_has_the_named_arguments_and_no_others(tiny_models: Any) -> None:
    model = tiny_models()
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    parameters = {"type": "object", "properties": {"a": inner, "b": {"type": "array", "items": inner}}}
    tool = {"name": "f", "parameters": parameters}
    assert fits(model, tool, call(a={"x": 1}, b=[{"x": 2}]))
    assert not fits(model, tool, call(a={"x": 1}, c=1))
    assert not fits(model, tool, call(a={"x": 1, "y": 2}))
    assert not fits(model, tool, call(b=[{"x": 1, "y": 2}]))


def test_a_schema_that_speaks_of_others_keeps_its_word(tiny_models: Any) -> None:
    model = tiny_models()
    parameters = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
    assert fits(model, {"name": "f", "parameters": parameters}, call(a="x", other=5))
    assert fits(model, {"name": "f"}, call(anything="x"))
