"""What clients of `/v1/responses` send, and the conversation that it means."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..bus.errors import RequestError
from .chat_schema import Count, Effort, Function, Json, Sampled, refuse

TEXT_PARTS = ("input_text", "output_text", "text")


class ResponseTool(Function, kw_only=True):
    type: str
    strict: bool | None = None


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    schema: Json | None = None


class TextOptions(msgspec.Struct):
    format: TextFormat | None = None


class Reasoning(msgspec.Struct):
    effort: Effort | None = None


class InputBody(Sampled, kw_only=True):
    """Body of `POST /v1/responses/input_tokens`."""

    model: str | None = None
    input: str | list[Any] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: tuple[Json, ...] = ()
    tool_choice: str | Json = "auto"
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    conversation: Any = None
    prompt: Any = None


class ResponseBody(InputBody, kw_only=True):
    """Body of `POST /v1/responses`."""

    max_output_tokens: Count | None = None
    stream: bool = False
    store: bool = True
    parallel_tool_calls: bool = True
    metadata: Json = {}  # noqa: RUF012 (msgspec copies it)
    include: tuple[str, ...] = ()
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    background: bool = False


def check(body: InputBody) -> None:
    """Raises RequestError for a field that is not served."""
    refuse(
        {
            "conversation": (body.conversation, "use `previous_response_id`"),
            "prompt": (body.prompt, "send the text of the prompt as `instructions` and `input`"),
            "background": (isinstance(body, ResponseBody) and body.background, "stream it instead"),
            "truncation": (body.truncation == "auto", "shorten the input in the client"),
        }
    )


def tools_of(body: InputBody) -> list[Json]:
    """Raises RequestError for a tool that is no function."""
    made: list[Json] = []
    for index, tool in enumerate(body.tools):
        where = f"tools[{index}]"
        if tool.get("type") != "function":
            raise RequestError(
                f"{where} is of type {tool.get('type')!r}, which this server does not run; give functions.",
                "tools",
            )
        try:
            made.append(msgspec.convert(tool, ResponseTool).tool())
        except msgspec.ValidationError as error:
            raise RequestError(f"{where}: {error}.", "tools") from None
    return made


def messages_of(given: str | list[Any]) -> list[Json]:
    """Input items as chat messages. Raises RequestError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    messages: list[Json] = []
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[Json], item: Any, where: str) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    match item:
        case {"role": str(role)} if kind == "message":
            messages.append({"role": role, "content": _parts(item.get("content"), f"{where}.content")})
        case {"type": "function_call", "call_id": str(call), "name": str(name)}:
            arguments = item.get("arguments")
            function = {"name": name, "arguments": arguments if isinstance(arguments, str) else "{}"}
            told = {"id": call, "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(told)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [told]})
        case {"type": "function_call_output", "call_id": str(call)}:
            result = _parts(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": call, "content": result})
        case {"type": "reasoning"}:
            return
        case _:
            raise RequestError(f"{where} is of type {kind!r}, which this server does not take.", where)


def _parts(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of parts.", where)
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in (*TEXT_PARTS, "refusal") or not isinstance(text, str):
            raise RequestError(
                f"{where}[{index}] is of type {kind!r}; this model reads text only.", f"{where}[{index}]"
            )
        texts.append(text)
    return "\n".join(texts)
