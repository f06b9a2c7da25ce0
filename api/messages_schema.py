"""What Anthropic's clients send, and the chat request that it means.

Sampling may be asked for as in the other protocols. `max_tokens` beyond the context means as many as fit, and
`budget_tokens` bounds the reasoning.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..bus.errors import RequestError
from ..bus.messages import Chat
from .chat_schema import Count, Json, Sampled, conversation, refuse, sampled, stops


class AnthropicTool(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    type: str | None = None
    description: str | None = None
    input_schema: Json | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: Json


class OutputConfig(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class CountBody(Sampled, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: list[Any]
    system: str | list[Any] = ""
    tools: tuple[AnthropicTool, ...] = ()
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None


class MessagesBody(CountBody, kw_only=True):
    """Body of `POST /v1/messages`."""

    max_tokens: Count
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False
    container: Any = None
    mcp_servers: Any = None


def chat_of(body: CountBody, request: str, model: str, lookahead: int) -> Chat:
    """The chat request that a body asks for; a `CountBody` asks for a length only. Raises RequestError."""
    messages = [message for n, one in enumerate(body.messages) for message in _message(one, f"messages[{n}]")]
    if body.system:
        messages.insert(0, {"role": "system", "content": _text(body.system, "system")})
    choice = body.tool_choice
    forced = choice.name if choice is not None and choice.type == "tool" else None
    if choice is not None and choice.type == "tool" and not forced:
        raise RequestError("`tool_choice` of type tool needs `name`.", "tool_choice")
    wanted = (body.output_config and body.output_config.format) or body.output_format
    talk = conversation(
        messages,
        tools=[_tool(tool, f"tools[{n}]") for n, tool in enumerate(body.tools)],
        tool_choice="auto" if choice is None else _CHOICES[choice.type],
        tool_name=forced,
        schema=wanted.schema if wanted else None,
        thinking=_thinks(body),
        effort=body.output_config.effort if body.output_config else None,
    )
    if not isinstance(body, MessagesBody):
        return Chat(request=request, model=model, conversation=talk, count_only=True)
    refuse(
        {
            "container": (body.container, "this server runs no code"),
            "mcp_servers": (body.mcp_servers, "call them from the client and give `tools`"),
        }
    )
    return Chat(
        request=request,
        model=model,
        conversation=talk,
        max_tokens=body.max_tokens,
        thinking_tokens=body.thinking.budget_tokens if body.thinking else None,
        stop=stops(body.stop_sequences, "stop_sequences"),
        lookahead=lookahead,
        sampling=sampled(body),
    )


_CHOICES: dict[str, Any] = {"auto": "auto", "any": "required", "tool": "auto", "none": "none"}


def _thinks(body: CountBody) -> bool:
    """Only where it is asked for."""
    thinking = body.thinking
    if thinking is None or thinking.type == "disabled":
        return False
    limit = body.max_tokens if isinstance(body, MessagesBody) else None
    if thinking.type == "enabled":
        budget = thinking.budget_tokens
        if budget is None or budget < 1024 or (limit is not None and budget >= limit):
            raise RequestError(
                "`thinking.budget_tokens` must be at least 1024 and less than `max_tokens`.", "thinking"
            )
    return True


def _tool(tool: AnthropicTool, where: str) -> Json:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"{where} is of type {tool.type}, which this server does not run; give it as a custom tool.",
            where,
        )
    function: Json = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _message(message: Any, where: str) -> list[Json]:
    """One message in OpenAI's form; results of tools become messages of their own. Raises RequestError."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user or assistant.", where)
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be text or a list of blocks.", where)
    if role == "assistant":
        return [_said(content, f"{where}.content")]
    made: list[Json] = []
    for n, block in enumerate(content):
        place = f"{where}.content[{n}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            result = _text(block.get("content") or "", f"{place}.content")
            made.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": result})
            continue
        part = {"type": "text", "text": _block(block, place)}
        if made and made[-1]["role"] == role:
            made[-1]["content"].append(part)
        else:
            made.append({"role": role, "content": [part]})
    return made or [{"role": role, "content": ""}]


def _said(content: list[Any], where: str) -> Json:
    """What the assistant said."""
    text, thought, calls = "", "", []
    for n, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            name, arguments = block.get("name"), block.get("input") or {}
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise RequestError(f"{where}[{n}] needs a name and an object as input.", f"{where}[{n}]")
            function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
            calls.append({"id": str(block.get("id")), "type": "function", "function": function})
        elif kind == "thinking":
            thought += str(block.get("thinking") or "")
        elif kind != "redacted_thinking":
            text += _block(block, f"{where}[{n}]")
    said: Json = {"role": "assistant", "content": text}
    if thought:
        said["reasoning_content"] = thought
    if calls:
        said["tool_calls"] = calls
    return said


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of blocks.", where)
    return "\n".join(_block(block, f"{where}[{n}]") for n, block in enumerate(content))


def _block(block: Any, where: str) -> str:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return block["text"]
    kind = block.get("type") if isinstance(block, dict) else None
    raise RequestError(f"{where} is of type {kind!r}; this model reads text only.", where)
