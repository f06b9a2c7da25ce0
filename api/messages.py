"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's protocol over the same chat requests.

    message_start   (content_block_start  content_block_delta…  content_block_stop)…   message_delta  message_stop

`ping` may come anywhere behind the first. What is whole is made of the same events, so both are the same.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from quart import Blueprint, Response

from ..bus.messages import Call, ChatDelta, ChatFinished, Failure
from . import sse
from .chat_job import ChatJob, Choice
from .edge import Edge
from .errors import anthropic_shape
from .exchange import current
from .messages_schema import CountBody, MessagesBody, chat_of
from .operations import INFERENCE, OBJECT, AnthropicError, Operation
from .schema import read
from .talk import Talk, begin

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/messages",
        summary="Continue a conversation, in Anthropic's protocol: as events, or whole.",
        body=MessagesBody,
        answers={"application/json": OBJECT, "text/event-stream": {"type": "string"}},
        errors=INFERENCE,
        problem=AnthropicError,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="How many tokens the prompt of a message would have.",
        body=CountBody,
        errors=INFERENCE,
        problem=AnthropicError,
    ),
)

Event = tuple[str, dict[str, Any]]


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("messages", __name__)

    @routes.post("/v1/messages")
    async def messages() -> Response:
        body = await read(MessagesBody)
        talk = MessagesTalk(begin(edge, body, chat_of, "messages"), body)
        return await talk.answer(edge.settings.keep_alive_s, streamed=body.stream)

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens() -> dict[str, int]:
        job = begin(edge, await read(CountBody), chat_of, "count_tokens")
        await job.start()
        assert job.accepted is not None
        return {"input_tokens": job.accepted.prompt_tokens}

    @routes.after_request
    async def named(response: Response) -> Response:
        response.headers["request-id"] = current().name
        return response

    _ = messages, count_tokens, named
    return routes


class Blocks:
    """The content blocks of one message, numbered as they come, each open until another kind begins."""

    def __init__(self, calls: int | None) -> None:
        """:param calls: how many calls may be told; None is all."""
        self._calls = calls
        self._index = -1
        self._kind: str | None = None
        self._call_id = ""
        """Of the latest call."""

    def take(self, part: ChatDelta) -> Iterator[Event]:
        if part.reasoning:
            yield from self._open("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": part.reasoning})
        if part.text:
            yield from self._open("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": part.text})
        for call in part.calls:
            yield from self._call(call)

    def _call(self, call: Call) -> Iterator[Event]:
        if call.id != self._call_id:
            if self._calls == 0:
                return
            self._calls = None if self._calls is None else self._calls - 1
            self._call_id = call.id
            yield from self.close()
            name = f"toolu_{call.id.removeprefix('call_')}"
            yield from self._open("tool_use", {"id": name, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def end(self) -> Iterator[Event]:
        """A message has one block at least."""
        if self._index < 0:
            yield from self._open("text", {"text": ""})
        yield from self.close()

    def close(self) -> Iterator[Event]:
        if self._kind == "thinking":
            # Nothing is signed here; what is sent back as thinking is believed.
            yield self._delta({"type": "signature_delta", "signature": "vivavoce"})
        if self._kind is not None:
            yield "content_block_stop", {"index": self._index}
        self._kind = None

    def _open(self, kind: str, empty: dict[str, Any]) -> Iterator[Event]:
        if self._kind != kind:
            yield from self.close()
            self._kind = kind
            self._index += 1
            yield "content_block_start", {"index": self._index, "content_block": {"type": kind, **empty}}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": self._index, "delta": delta}


class MessagesTalk(Talk[ChatDelta | ChatFinished]):
    """In Anthropic's words."""

    silence = sse.event("ping", {})

    def __init__(self, job: ChatJob, body: MessagesBody) -> None:
        super().__init__(job, job)
        self._body = body
        single = body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use
        self._blocks = Blocks(1 if single else None)
        self._end: ChatFinished | None = None

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        whole = {call.id for call in choices[0].calls}
        for part in choices[0].parts:
            if isinstance(part, ChatFinished):
                self._end = part
            else:
                calls = tuple(call for call in part.calls if call.id in whole)
                _build(content, self._blocks.take(msgspec.structs.replace(part, calls=calls)))
        _build(content, self._blocks.end())
        return {**self._message(), "content": content, **self._ended(), "usage": self._usage()}

    def begin(self) -> Iterator[bytes]:
        start = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        yield sse.event("message_start", {"message": {**start, "usage": self._usage()}})

    def tell(self, part: ChatDelta | ChatFinished) -> Iterator[bytes]:
        if isinstance(part, ChatFinished):
            self._end = part
        else:
            for kind, data in self._blocks.take(part):
                yield sse.event(kind, data)

    def end(self) -> Iterator[bytes]:
        for kind, data in self._blocks.end():
            yield sse.event(kind, data)
        yield sse.event("message_delta", {"delta": self._ended(), "usage": self._usage()})
        yield sse.event("message_stop", {})

    def failed(self, failure: Failure) -> bytes:
        return sse.event("error", anthropic_shape(failure, self.job.name))

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self.job.chat.request.removeprefix('req-')}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model or self.job.chat.model,
        }

    def _ended(self) -> dict[str, Any]:
        end, done = self._end, self.job.done
        assert end is not None
        assert done is not None
        reason = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}[end.reason]
        if end.stop is not None:
            reason = "stop_sequence"
        elif end.reason == "length" and done.completion_tokens < self._body.max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": end.stop}

    def _usage(self) -> dict[str, Any]:
        """As far as it is known; what came from the prompt cache is not among the input tokens."""
        job, done = self.job, self.job.done
        cached = job.started.cached_tokens if job.started is not None else 0
        prompt = job.accepted.prompt_tokens if job.accepted is not None else 0
        return {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": done.completion_tokens if done is not None else 0,
            "output_tokens_details": {"thinking_tokens": done.reasoning_tokens if done is not None else 0},
        }


def _build(content: list[dict[str, Any]], events: Iterator[Event]) -> None:
    """Put together what the events of blocks tell; the input of a tool is text until its block stops."""
    for kind, data in events:
        if kind == "content_block_start":
            block = data["content_block"]
            content.append({**block, "input": ""} if block["type"] == "tool_use" else block)
        elif kind == "content_block_delta":
            for name in data["delta"].keys() - {"type"}:
                content[-1]["input" if name == "partial_json" else name] += data["delta"][name]
        elif content[-1]["type"] == "tool_use":
            content[-1]["input"] = msgspec.json.decode(content[-1]["input"])
