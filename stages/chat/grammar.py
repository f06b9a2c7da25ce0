"""Answers that have to match a grammar: token masks from llguidance."""

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from ...bus.errors import RequestError

Json = dict[str, Any]


class Grammar(msgspec.Struct, frozen=True):
    """A grammar in llguidance's own form."""

    source: str


class GrammarCompiler:
    """Makes grammars and matchers for one tokenizer."""

    def __init__(self, tokenizer: Any, vocab: int, stops: list[int]) -> None:
        """`tokenizer` is Hugging Face's, `vocab` the width of the logits. Takes up to a second.

        :raises RequestError: it is not a fast one.
        """
        try:
            self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocab, eos_token=stops)
        except ValueError as error:
            raise RequestError(
                "This model's tokenizer is none of the fast ones, which structured output, forced calls and"
                " log-probabilities need.",
                code="unsupported_parameter",
            ) from error
        self._vocab = vocab

    def schema(self, schema: Json, param: str) -> Grammar:
        """Grammar of the JSON documents that fit `schema`. Raises RequestError naming `param`."""
        try:
            grammar = LLMatcher.grammar_from_json_schema(
                _closed(schema), overrides={"whitespace_flexible": False}
            )
        except ValueError as error:
            raise RequestError(f"The JSON schema cannot be used: {error}", param) from error
        wrong = LLMatcher.validate_grammar(grammar, self._tokenizer)
        if wrong and not wrong.startswith("WARNING"):
            raise RequestError(f"The JSON schema cannot be used: {wrong}", param)
        trial = self.matcher(Grammar(grammar))
        trial.mask()
        if trial.error:
            raise RequestError("The JSON schema cannot be used: no answer can begin to fit it.", param)
        return Grammar(grammar)

    def calls(self, tools: list[Json]) -> Grammar:
        """Grammar of one call of one of `tools`: an object with its name and its arguments."""
        variants = [_call_schema(tool.get("function", tool)) for tool in tools]
        return self.schema(variants[0] if len(variants) == 1 else {"anyOf": variants}, "tools")

    def matcher(self, grammar: Grammar) -> "Matcher":
        return Matcher(LLMatcher(self._tokenizer, grammar.source), self._vocab)

    def token_bytes(self, token: int) -> bytes:
        return self._tokenizer.decode_bytes([token])


def _closed(schema: Any) -> Any:
    """The schema without room for properties that it does not name, where it says nothing of others.

    What fits it fits the schema, and a model that may add properties often does not end.
    """
    if not isinstance(schema, dict):
        return schema
    closed: Json = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            closed[key] = {name: _closed(part) for name, part in schema[key].items()}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            closed[key] = [_closed(part) for part in schema[key]]
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    others = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "$ref")
    if schema.get("properties") and not any(key in schema for key in others):
        closed["additionalProperties"] = False
    return closed


def _call_schema(function: Json) -> Json:
    parameters = function.get("parameters") or {"type": "object"}
    arguments = {key: value for key, value in parameters.items() if key not in ("$defs", "definitions")}
    schema: Json = {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    # References are resolved from the top of a document, so what they point at moves there.
    return schema | {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab

    def mask(self) -> mx.array:
        """Which tokens may come next, bool [V]."""
        words = mx.array(np.frombuffer(self._matcher.compute_bitmask(), np.uint32))
        bits = (words[:, None] >> mx.arange(32, dtype=mx.uint32)) & 1
        return bits.reshape(-1)[: self._vocab].astype(mx.bool_)

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar gave up (it is too complex), or nothing."""
        return self._matcher.get_error().split("\n")[0] if self._matcher.is_error() else ""
