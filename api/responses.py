"""`/v1/responses`: OpenAI's newer protocol over the same chat requests.

    response.created  response.in_progress
      (response.output_item.added … response.output_item.done)…      one for each item
    response.completed or .failed

An item is reasoning, a message (one text part) or a function call, each told in deltas. An answer that was cut is
told as completed too, with the status `incomplete`: helpers of OpenAI's own packages take nothing else for an end.
What is whole is the response in the last event, so both are the same.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from quart import Blueprint, Response

from ..bus.messages import Call, Chat, ChatDelta, ChatFinished, Failure
from . import sse
from .chat import logprobs
from .chat_job import ChatJob, Choice, is_whole
from .chat_schema import THINKING, JsonSchema, ResponseFormat, chosen, conversation, sampled, schema_of
from .edge import Edge
from .errors import openai_shape
from .operations import INFERENCE, OBJECT, Operation
from .response_store import ResponseStore, Stored
from .responses_schema import InputBody, ResponseBody, check, messages_of, tools_of
from .schema import read
from .talk import Talk, begin

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/responses",
        summary="Answer an input, with memory of earlier answers: as events, or whole.",
        body=ResponseBody,
        answers={"application/json": OBJECT, "text/event-stream": {"type": "string"}},
        errors=INFERENCE,
    ),
    Operation(
        method="post",
        path="/v1/responses/input_tokens",
        summary="How many tokens the prompt of a response would have.",
        body=InputBody,
        errors=INFERENCE,
    ),
    Operation(method="get", path="/v1/responses/{name}", summary="A stored response.", errors=(404,)),
    Operation(method="delete", path="/v1/responses/{name}", summary="Forget a response.", errors=(404,)),
    Operation(
        method="get", path="/v1/responses/{name}/input_items", summary="What it answered.", errors=(404,)
    ),
)

Event = tuple[str, dict[str, Any]]


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("responses", __name__)
    settings = edge.layout.chat
    store = ResponseStore(settings.max_responses, settings.max_responses_bytes)

    @routes.post("/v1/responses")
    async def create() -> Response:
        body = await read(ResponseBody)
        messages = _messages(body, store)
        job = begin(edge, body, partial(_chat, messages), "responses")
        talk = ResponseTalk(job, body, messages, store)
        return await talk.answer(edge.settings.keep_alive_s, streamed=body.stream)

    @routes.post("/v1/responses/input_tokens")
    async def count() -> dict[str, Any]:
        body = await read(InputBody)
        job = begin(edge, body, partial(_chat, _messages(body, store)), "input_tokens")
        await job.start()
        assert job.accepted is not None
        return {"object": "response.input_tokens", "input_tokens": job.accepted.prompt_tokens}

    @routes.get("/v1/responses/<name>")
    async def one(name: str) -> dict[str, Any]:
        return store.get(name).response

    @routes.delete("/v1/responses/<name>")
    async def forget(name: str) -> dict[str, Any]:
        store.delete(name)
        return {"id": name, "object": "response", "deleted": True}

    @routes.get("/v1/responses/<name>/input_items")
    async def items(name: str) -> dict[str, Any]:
        found = store.get(name).items
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
        return {"object": "list", "data": found, "has_more": False, **ends}

    _ = create, count, one, forget, items
    return routes


def _messages(body: InputBody, store: ResponseStore) -> list[dict[str, Any]]:
    """The conversation without instructions. Raises RequestError."""
    check(body)
    before: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        before = store.get(body.previous_response_id, "previous_response_id").messages
    return [*before, *messages_of(body.input)]


def _chat(messages: list[dict[str, Any]], body: InputBody, request: str, model: str, lookahead: int) -> Chat:
    """An `InputBody` asks for a length only."""
    tools, choice, name = chosen(tools_of(body), body.tool_choice)
    wanted = body.text.format if body.text else None
    effort = body.reasoning.effort if body.reasoning else None
    told = [{"role": "system", "content": body.instructions}, *messages] if body.instructions else messages
    whole = isinstance(body, ResponseBody)
    return Chat(
        request=request,
        model=model,
        count_only=not whole,
        conversation=conversation(
            told,
            tools=tools,
            tool_choice=choice,
            tool_name=name,
            schema=schema_of(ResponseFormat(wanted.type, JsonSchema(wanted.schema))) if wanted else None,
            thinking=None if effort is None else effort != "none",
            effort=effort,
        ),
        max_tokens=body.max_output_tokens if whole else None,
        thinking_tokens=THINKING.get(effort or ""),
        logprobs=(body.top_logprobs or 0) if whole and _likely(body) else None,
        lookahead=lookahead,
        sampling=sampled(body),
    )


def _likely(body: ResponseBody) -> bool:
    return "message.output_text.logprobs" in body.include or bool(body.top_logprobs)


class ResponseTalk(Talk[ChatDelta | ChatFinished]):
    """In the words of this protocol."""

    def __init__(
        self, job: ChatJob, body: ResponseBody, messages: list[dict[str, Any]], store: ResponseStore
    ) -> None:
        super().__init__(job, job)
        self._body = body
        self._messages = messages
        self._store = store
        self._key = job.name.removeprefix("req-")
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """The item that grows, the last of the output."""
        self._end: ChatFinished | None = None
        self._number = -1

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        for part in choices[0].parts:
            for _ in self._take(part):
                pass
        for _ in self._close():
            pass
        return self._finished()[1]["response"]

    def begin(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": self._response("in_progress")})

    def tell(self, part: ChatDelta | ChatFinished) -> Iterator[bytes]:
        for event in self._take(part):
            yield self._event(*event)

    def end(self) -> Iterator[bytes]:
        for event in self._close():
            yield self._event(*event)
        yield self._event(*self._finished())

    def failed(self, failure: Failure) -> bytes:
        error = openai_shape(failure, self.job.name)["error"]
        told = {"code": error["code"] or "server_error", "message": error["message"]}
        return self._event("response.failed", {"response": {**self._response("failed"), "error": told}})

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        self._number += 1
        return sse.event(kind, {"sequence_number": self._number, **data})

    def _take(self, part: ChatDelta | ChatFinished) -> Iterator[Event]:
        if isinstance(part, ChatFinished):
            self._end = part
            return
        if part.reasoning:
            yield from self._text("reasoning", "reasoning_text", part.reasoning, {})
        if part.text:
            told = {"logprobs": (logprobs(part.drawn)["content"] if part.drawn else [])}
            yield from self._text("message", "output_text", part.text, told)
        for call in part.calls:
            yield from self._call(call)

    def _text(self, kind: str, part: str, text: str, told: dict[str, Any]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._begin(kind, part)
        assert self._open is not None
        content = self._open["content"][0]
        content["text"] += text
        content.get("logprobs", []).extend(told.get("logprobs", []))
        yield f"response.{part}.delta", {**self._place(), "delta": text, **told}

    def _begin(self, kind: str, part: str) -> Iterator[Event]:
        prefix = "msg" if kind == "message" else "rs"
        item: dict[str, Any] = {
            "id": f"{prefix}_{self._key}_{len(self._output)}",
            "type": kind,
            "status": "in_progress",
            "content": [],
        }
        item |= {"role": "assistant"} if kind == "message" else {"summary": []}
        self._output.append(item)
        self._open = item
        shown = {"output_index": len(self._output) - 1, "item": {**item, "content": []}}
        yield "response.output_item.added", shown
        extra = {"annotations": [], "logprobs": []} if kind == "message" else {}
        item["content"].append({"type": part, "text": "", **extra})
        empty = {"type": part, "text": "", **({"annotations": [], "logprobs": []} if extra else {})}
        yield "response.content_part.added", {**self._place(), "part": empty}

    def _place(self) -> dict[str, Any]:
        item = self._output[-1]
        within = {} if item["type"] == "function_call" else {"content_index": 0}
        return {"item_id": item["id"], "output_index": len(self._output) - 1, **within}

    def _close(self) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        place = self._place()
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**place, **told}
            cut = not is_whole(item["arguments"])
        else:
            part = item["content"][0]
            told = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield f"response.{part['type']}.done", {**place, "text": part["text"], **told}
            yield "response.content_part.done", {**place, "part": part}
            cut = self._end is not None and self._end.reason == "length"
        item["status"] = "incomplete" if cut else "completed"
        yield "response.output_item.done", {"output_index": place["output_index"], "item": item}

    def _call(self, call: Call) -> Iterator[Event]:
        if self._open is None or self._open.get("call_id") != call.id:
            if not self._body.parallel_tool_calls and self._calls():
                return
            yield from self._close()
            self._open = {
                "id": f"fc_{self._key}_{len(self._output)}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.id,
                "name": call.name,
                "arguments": "",
            }
            self._output.append(self._open)
            shown = {"output_index": len(self._output) - 1, "item": {**self._open}}
            yield "response.output_item.added", shown
        self._open["arguments"] += call.arguments
        yield "response.function_call_arguments.delta", {**self._place(), "delta": call.arguments}

    def _calls(self) -> list[dict[str, Any]]:
        return [item for item in self._output if item["type"] == "function_call"]

    def _finished(self) -> Event:
        """The last event of a good end; what it says is remembered, if that is wanted."""
        cut = self._end is not None and self._end.reason == "length"
        status = "incomplete" if cut else "completed"
        response = self._response(status)
        if self._body.store:
            broken = [item for item in self._calls() if item["status"] == "incomplete"]
            said = messages_of([i for i in self._output if i["type"] != "reasoning" and i not in broken])
            stored = Stored(response, self._items(), [*self._messages, *said])
            self._store.add(response["id"], stored)
        return "response.completed", {"response": response}

    def _items(self) -> list[dict[str, Any]]:
        given = self._body.input
        if isinstance(given, str):
            content = [{"type": "input_text", "text": given}]
            given = [{"type": "message", "role": "user", "content": content}]
        return [{"id": f"item_{self._key}_{n}", **item} for n, item in enumerate(given)]

    def _response(self, status: str) -> dict[str, Any]:
        body, job, done = self._body, self.job, self.job.done
        usage = None
        if done is not None:
            usage = {
                "input_tokens": done.prompt_tokens,
                "input_tokens_details": {"cached_tokens": done.cached_tokens},
                "output_tokens": done.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
                "total_tokens": done.prompt_tokens + done.completion_tokens,
            }
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        wanted = body.text.format if body.text else None
        return {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": job.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": reason,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": body.model or job.chat.model,
            "output": [] if status == "in_progress" else self._output,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store,
            "temperature": body.temperature,
            "text": {"format": msgspec.to_builtins(wanted) if wanted else {"type": "text"}},
            "tool_choice": body.tool_choice,
            "tools": [{"strict": None, **tool} for tool in body.tools],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": usage,
            "timing": msgspec.to_builtins(job.figures()) if done is not None else None,
        }
