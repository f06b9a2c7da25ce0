"""From a conversation and what is wanted of the answer to a prompt, the way to read replies, and a grammar."""

from typing import Any, Literal

import msgspec

from ...bus.errors import RequestError
from .calls import HERMES, Json
from .grammar import Grammar
from .model import ChatModel
from .reply import Style


class Conversation(msgspec.Struct, kw_only=True):
    messages: list[Json]
    """As in OpenAI's chat completions."""
    tools: list[Json] = []
    """`{"type": "function", "function": {"name", "description", "parameters"}}`"""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    """Forces a call of this tool."""
    schema: Json | None = None
    """JSON schema that the answer has to fit."""
    thinking: bool | None = None
    """None leaves it to the model."""
    effort: str | None = None
    """For templates with a `reasoning_effort`."""
    template_options: Json = {}


class Composed(msgspec.Struct, frozen=True):
    prompt: list[int]
    style: Style
    grammar: Grammar | None = None


def compose(model: ChatModel, conversation: Conversation) -> Composed:
    """Render and tokenise. Raises RequestError naming what is wrong."""
    tools = [] if conversation.tool_choice == "none" else conversation.tools
    text = model.template.render(
        conversation.messages,
        tools,
        thinking=conversation.thinking,
        effort=conversation.effort,
        options=conversation.template_options,
    )
    text, thinking = _thought(model, text, conversation)
    grammar = None
    forced = _forced(conversation, tools)
    if forced:
        grammar = model.grammars.calls(forced)
        line = "\n" if model.call_format is HERMES else ""
        text += model.call_format.start + line
    elif conversation.schema is not None:
        grammar = model.grammars.schema(conversation.schema, "response_format")
    style = Style(
        decode=model.decode,
        skip=model.silent,
        think=model.think,
        thinking=thinking,
        calls=model.call_format if tools else None,
        tools=tools,
        forced=bool(forced),
    )
    _bound(model, text, "messages")
    return Composed(model.template.encode(text), style, grammar)


def plain(model: ChatModel, prompt: str | list[int]) -> Composed:
    """A prompt that is continued as it stands. Raises RequestError."""
    if isinstance(prompt, str):
        _bound(model, prompt, "prompt")
    tokens: Any = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return Composed(list(tokens), Style(decode=model.decode, skip=model.silent))


def _bound(model: ChatModel, text: str, param: str) -> None:
    """Raise RequestError for a text that is too long whatever its tokens are: to find them takes a while."""
    if len(text) > model.most_letters:
        raise RequestError(
            f"The prompt has {len(text)} letters, more than this model's context of {model.context} tokens can"
            " hold. Shorten it.",
            param,
            code="context_length_exceeded",
        )


def _forced(conversation: Conversation, tools: list[Json]) -> list[Json]:
    """The tools one of which has to be called."""
    if conversation.tool_name is not None:
        named = [tool for tool in tools if _name(tool) == conversation.tool_name]
        if not named:
            raise RequestError(
                f"tool_choice names {conversation.tool_name!r}, which is not in tools.", "tool_choice"
            )
        return named
    if conversation.tool_choice == "required" and not tools:
        raise RequestError('tool_choice "required" needs tools.', "tool_choice")
    return tools if conversation.tool_choice == "required" else []


def _name(tool: Json) -> Any:
    return tool.get("function", tool).get("name")


def _thought(model: ChatModel, text: str, conversation: Conversation) -> tuple[str, bool]:
    """Settle whether the reply begins inside reasoning; return the prompt's text and that."""
    if model.think is None:
        return text, False
    start, end = model.think
    wanted = conversation.thinking is not False
    is_open = text.rstrip().endswith(start)
    if conversation.tool_name is not None or conversation.tool_choice == "required":
        wanted = False
    if is_open and not wanted:
        return f"{text.rstrip()}\n\n{end}\n\n", False
    # Under a grammar the model cannot open its reasoning itself.
    opens_itself = model.template.switches_thinking and not text.rstrip().endswith(end)
    if not is_open and wanted and opens_itself and conversation.schema is not None:
        return f"{text}{start}\n", True
    return text, is_open
