"""From messages to the tokens of a prompt, through the model's own chat template."""

import json
import re
from contextlib import suppress
from inspect import signature
from typing import Any

import msgspec
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ...bus.errors import RequestError
from .calls import Json

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")

NOT_VARIABLES = {"messages", *signature(PreTrainedTokenizerBase.apply_chat_template).parameters} - {
    "documents"
}
"""Not for callers to set: one's own template could run for ever."""

TOOL_PROMPT = """You can call functions. Their signatures, one JSON object a line, are:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON between these tags, once for each call:
<tool_call>
{{"name": "<name>", "arguments": {{…}}}}
</tool_call>"""

SEAM = "\ufdd0"
"""Stands inside special-token strings of the messages, where the text is taken apart before it is encoded."""


class Template:
    """The chat template of one tokenizer, and what it can and cannot express."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._tokenizer = tokenizer
        template = getattr(tokenizer, "chat_template", None)
        # A template kept as code instead of text is taken to know tools.
        source = (
            template
            if isinstance(template, str)
            else "tools tool_calls"
            if tokenizer.has_chat_template
            else ""
        )
        self.known = bool(tokenizer.has_chat_template)
        self.takes_tools = bool(re.search(r"\btools\b", source))
        self.takes_calls = "tool_calls" in source
        self.switches_thinking = "enable_thinking" in source
        special = sorted((str(token) for token in tokenizer.all_special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def _defuse(self, message: Json) -> Json:
        """Keep special-token strings in what others wrote from being read as tokens."""
        if message["role"] == "assistant" or self._special is None:
            return message
        content = message["content"].replace(SEAM, "")
        return message | {
            "content": self._special.sub(lambda found: found[0][0] + SEAM + found[0][1:], content)
        }

    def render(
        self,
        messages: list[Json],
        tools: list[Json] | None = None,
        *,
        thinking: bool | None = None,
        effort: str | None = None,
        options: Json | None = None,
    ) -> str:
        """Render a conversation; a last message of the assistant is left open, to be continued.

        `thinking` None leaves it to the template; `options` are its own variables. Raises RequestError.
        """
        if not self.known:
            raise RequestError("This model has no chat template; use /v1/completions.", "model")
        if not messages:
            raise RequestError("messages needs at least one message.", "messages")
        if refused := NOT_VARIABLES & set(options or {}):
            raise RequestError(f"{min(refused)} is no variable of the chat template.", "chat_template_kwargs")
        shaped = [_shape(message, f"messages[{index}]") for index, message in enumerate(messages)]
        if tools and not self.takes_tools:
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            shaped.insert(0, {"role": "system", "content": TOOL_PROMPT.format(tools=listed)})
        if not self.takes_calls:
            shaped = [_spell_out(message) for message in shaped]
        variables = dict(options or {})
        if thinking is not None:
            variables["enable_thinking"] = thinking
        if effort is not None:
            variables["reasoning_effort"] = effort
        if tools and self.takes_tools:
            variables["tools"] = tools
        return self._render(_merge_systems([self._defuse(message) for message in shaped]), variables)

    def encode(self, rendered: str) -> list[int]:
        """Tokens of a rendered conversation."""
        pieces = (self._tokenizer.encode(piece, add_special_tokens=False) for piece in rendered.split(SEAM))
        return [token for piece in pieces for token in piece]

    def _render(self, messages: list[Json], variables: Json) -> str:
        try:
            text = self._apply(messages, variables)
            if all(
                str(message["content"]).strip() in text for message in messages if message["role"] == "system"
            ):
                return text
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            first = error
        else:
            first = None
        # No place for the instructions where they stand: they go into the user's message behind them.
        folded = _fold_systems(messages)
        try:
            if folded != messages:
                return self._apply(folded, variables)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            first = error
        raise RequestError(f"The model's chat template does not take these messages: {first}", "messages")

    def _apply(self, messages: list[Json], variables: Json) -> str:
        last = messages[-1]
        going_on = last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not going_on,
                continue_final_message=going_on,
                **variables,
            )
        )


def _shape(message: Any, where: str) -> Json:
    """Bring one message to the form that templates expect. Raises RequestError."""
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object.", where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}.", f"{where}.role")
    shaped: Json = {"role": "system" if role == "developer" else "tool" if role == "function" else role}
    shaped["content"] = _content(message.get("content"), f"{where}.content")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(name), str):
            shaped[name] = message[name]
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls must be a list.", f"{where}.tool_calls")
        shaped["tool_calls"] = [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return shaped


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of parts.", where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    raise RequestError(f"{where} is of type {kind!r}; this model reads text parts only.", where)


def _call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function needs a name.", where)
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        # Those of a call that was cut are no JSON, and stay text.
        with suppress(ValueError, RecursionError):
            arguments = msgspec.json.decode(arguments)
    inner = {"name": function["name"], "arguments": arguments}
    return {"type": "function", "id": str(call.get("id") or ""), "function": inner}


def _spell_out(message: Json) -> Json:
    """Write calls and their results into the content, for a template that knows neither."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    lines = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    text = "\n".join(f"<tool_call>\n{line}\n</tool_call>" for line in lines)
    content = f"{message['content']}\n{text}".strip()
    return {"role": message["role"], "content": content}


def _merge_systems(messages: list[Json]) -> list[Json]:
    """Join the instructions that stand at the beginning; templates look for one message there."""
    count = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    joined = "\n\n".join(message["content"] for message in messages[:count] if message["content"])
    return [{"role": "system", "content": joined}, *messages[count:]]


def _fold_systems(messages: list[Json]) -> list[Json]:
    folded: list[Json] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(message["content"])
        elif message["role"] == "user" and pending:
            folded.append({**message, "content": "\n\n".join([*pending, message["content"]])})
            pending = []
        else:
            folded.append(message)
    return [*folded, {"role": "user", "content": "\n\n".join(pending)}] if pending else folded
