"""What clients of the chat routes send, and the chat request that it means.

Fields that change the answer are served or refused by name; those for the provider's books are ignored, as is
whatever is unknown. `stop` may be a text or up to 16; empty ones stop nothing.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..bus.errors import RequestError
from ..bus.messages import Chat, Sampling
from .schema import Speaking

Json = dict[str, Any]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1, le=2**31)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Choosing = Literal["auto", "none", "required"]
MAX_STOPS = 16
THINKING = {"minimal": 512, "low": 2048, "medium": 8192}
"""Most tokens of reasoning by effort; more effort has no bound."""


class Sampled(msgspec.Struct, kw_only=True):
    """How tokens are drawn, in every protocol."""

    temperature: Annotated[float, Meta(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] = 0
    """0 and -1 keep all."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] = {}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Function(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Json | None = None

    def tool(self) -> Json:
        """As templates and grammars expect it."""
        given = {"description": self.description, "parameters": self.parameters}
        inner = {"name": self.name, **{key: value for key, value in given.items() if value is not None}}
        return {"type": "function", "function": inner}


class Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class JsonSchema(msgspec.Struct):
    schema: Json | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class OpenAIBody(Sampled, kw_only=True):
    """What chat and plain completions share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stop: str | list[str] = []


class ChatAudio(Speaking, kw_only=True):
    """How an answer is to be spoken, in the words of the speech route.

    `format` is OpenAI's name in chat for `response_format`: one of them may be given; wav where neither is.
    """

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16", "pcm"] | None = None


class ChatBody(OpenAIBody, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Any]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] = []
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    """False leaves out every call but the first."""
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: Json = {}
    """Variables for the model's template, such as `enable_thinking`."""
    modalities: list[Literal["text", "audio"]] = []
    audio: ChatAudio | None = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None


def refuse(fields: dict[str, tuple[Any, str]]) -> None:
    """:raises RequestError: one of the fields is given, whose name and what to do instead are told."""
    for name, (value, why) in fields.items():
        if value:
            raise RequestError(f"`{name}` is not served: {why}.", name, code="unsupported_parameter")


def conversation(
    messages: list[Any],
    *,
    tools: Sequence[Json] = (),
    tool_choice: Choosing = "auto",
    tool_name: str | None = None,
    schema: Json | None = None,
    thinking: bool | None = None,
    effort: str | None = None,
    template_options: Json | None = None,
) -> str:
    """JSON text of what the chat stage composes a prompt from."""
    parts: Json = {
        "messages": messages,
        "tools": list(tools),
        "tool_choice": tool_choice,
        "tool_name": tool_name,
        "schema": schema,
        "thinking": thinking,
        "effort": effort,
        "template_options": template_options or {},
    }
    try:
        return msgspec.json.encode(parts).decode()
    except (RecursionError, ValueError) as error:
        raise RequestError(f"The messages cannot be taken: {error}", "messages") from None


def sampled(how: Sampled) -> Sampling:
    """Raises RequestError."""
    try:
        bias = {int(token): weight for token, weight in how.logit_bias.items()}
    except ValueError:
        raise RequestError("`logit_bias` maps numbers of tokens to weights.", "logit_bias") from None
    if any(not 0 <= token < 2**31 for token in bias):
        raise RequestError("`logit_bias` names a token that no model has.", "logit_bias")
    return Sampling(
        # Nothing but the likeliest token is what a top_p of 0 leaves.
        temperature=how.temperature if how.top_p > 0 else 0.0,
        top_p=how.top_p or 1.0,
        top_k=max(0, how.top_k),
        min_p=how.min_p,
        repetition_penalty=how.repetition_penalty,
        frequency_penalty=how.frequency_penalty,
        presence_penalty=how.presence_penalty,
        seed=how.seed,
        logit_bias=bias,
    )


def stops(given: str | Sequence[str], param: str = "stop") -> tuple[str, ...]:
    """Raises RequestError for too many."""
    found = tuple(text for text in ([given] if isinstance(given, str) else given) if text)
    if len(found) > MAX_STOPS:
        raise RequestError(f"`{param}` may hold at most {MAX_STOPS} texts.", param)
    return found


def chat_of(body: ChatBody, request: str, model: str, lookahead: int) -> Chat:
    """The chat request that a body asks for. Raises RequestError."""
    refuse(
        {
            "functions": (body.functions, "use `tools`"),
            "function_call": (body.function_call, "use `tool_choice`"),
            "web_search_options": (body.web_search_options, "this server does not search the web"),
        }
    )
    if body.audio is not None and "audio" not in body.modalities:
        raise RequestError('`audio` needs `modalities` to be ["text", "audio"].', "modalities")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    tools, choice, name = chosen([tool.function.tool() for tool in body.tools], body.tool_choice)
    options = dict(body.chat_template_kwargs)
    thinking = options.pop("enable_thinking", None)
    if body.reasoning_effort is not None:
        thinking = body.reasoning_effort != "none"
    return Chat(
        request=request,
        model=model,
        conversation=conversation(
            body.messages,
            tools=tools,
            tool_choice=choice,
            tool_name=name,
            schema=schema_of(body.response_format),
            thinking=thinking if isinstance(thinking, bool) else None,
            effort=body.reasoning_effort,
            template_options=options,
        ),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        thinking_tokens=THINKING.get(body.reasoning_effort or ""),
        stop=stops(body.stop),
        n=body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        lookahead=lookahead,
        sampling=sampled(body),
    )


def schema_of(wanted: ResponseFormat | None) -> Json | None:
    """The JSON schema that an answer is held to."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        raise RequestError("`response_format` of type json_schema needs `json_schema`.", "response_format")
    return wanted.json_schema.schema or {}


def chosen(tools: list[Json], choice: str | Json) -> tuple[list[Json], Choosing, str | None]:
    """(tools, choice, name of the tool that has to be called) of OpenAI's `tool_choice`."""
    match choice:
        case "auto" | "none" | "required":
            return tools, choice, None
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return tools, "auto", name
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(some)},
        }:
            return _allowed(tools, some), mode, None
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(some)}:
            return _allowed(tools, some), mode, None
        case _:
            raise RequestError(
                '`tool_choice` is "auto", "none", "required" or an object that names a function.',
                "tool_choice",
            )


def _allowed(tools: list[Json], some: list[Any]) -> list[Json]:
    names = {one.get("function", one).get("name") for one in some if isinstance(one, dict) and _is_named(one)}
    return [tool for tool in tools if tool["function"]["name"] in names]


def _is_named(one: Json) -> bool:
    inner = one.get("function", one)
    return isinstance(inner, dict) and isinstance(inner.get("name"), str)
