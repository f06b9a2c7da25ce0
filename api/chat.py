"""`POST /v1/chat/completions`: a conversation in, the next message of it as it is made, or whole."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
from quart import Blueprint, Response

from ..bus.errors import RequestError
from ..bus.messages import Call, ChatDelta, ChatDone, ChatFinished, Drawn, Likely
from . import sse
from .chat_job import AT_ONCE_S, ChatJob, Choice
from .chat_schema import ChatBody, chat_of
from .edge import Edge
from .errors import openai_shape
from .exchange import current
from .operations import INFERENCE, OBJECT, Operation
from .schema import read

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Continue a conversation: as events, or whole.",
        body=ChatBody,
        answers={"application/json": OBJECT, "text/event-stream": {"type": "string"}},
        errors=INFERENCE,
    ),
)

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def completions() -> Response:
        body = await read(ChatBody)
        model = edge.catalog.find(body.model, "chat")
        chat = chat_of(body, current().id, model.name, edge.layout.chat.lookahead_tokens)
        job = ChatJob(edge, current(), chat, "chat")
        talk = _Talk(job, body)
        return await answered(edge, job, body.stream, talk.events, talk.whole)

    _ = completions
    return routes


async def answered(
    edge: Edge, job: ChatJob, streamed: bool, events: Any, whole: Any, headers_s: float = AT_ONCE_S
) -> Response:
    """A stream of `events(keep_alive_s)`, whose status is that of the acceptance, or `whole(choices)` as JSON."""
    if not streamed:
        await job.start()
        return Response(msgspec.json.encode(whole(await job.whole())), content_type="application/json")
    with anyio.move_on_after(headers_s):
        await job.read()
    return sse.response(events(edge.settings.keep_alive_s))


class _Talk:
    """The answer to one request, in OpenAI's words."""

    def __init__(self, job: ChatJob, body: ChatBody) -> None:
        self._job = job
        self._body = body
        self._id = f"chatcmpl-{job.chat.request.removeprefix('req-')}"
        self._calls: dict[int, int] = {}
        """How many calls of each choice have been told."""

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            **totals(self._job),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        calls = choice.calls if self._body.parallel_tool_calls else choice.calls[:1]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not choice.text.strip() else choice.text,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)} for call in calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs(choice.drawn) if self._body.logprobs else None,
            "finish_reason": choice.reason,
        }

    async def events(self, keep_alive_s: float) -> AsyncIterator[bytes]:
        job = self._job
        try:
            async for comment in sse.comments_until(job.start, keep_alive_s):
                yield comment
        except RequestError as error:
            yield failed(error.failure, job)
            return
        for index in range(job.chat.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for part in job.parts(keep_alive_s):
            if part is None:
                yield sse.COMMENT
                continue
            for chunk in self._told(part):
                yield chunk
        if failure := job.failure():
            yield failed(failure, job)
            return
        if self._usage:
            yield sse.data({**self._head("chat.completion.chunk"), "choices": [], **totals(job)})
        yield sse.DONE

    def _told(self, part: ChatDelta | ChatFinished) -> list[bytes]:
        if isinstance(part, ChatFinished):
            return [self._chunk(part.choice, {}, reason=part.reason)]
        chunks: list[bytes] = []
        delta: dict[str, Any] = {}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.text:
            delta["content"] = part.text
        if delta or part.drawn:
            chunks.append(self._chunk(part.choice, delta, drawn=part.drawn))
        for call in part.calls:
            index = self._calls.get(part.choice, 0)
            self._calls[part.choice] = index + 1
            if index and not self._body.parallel_tool_calls:
                break
            # Id and name come once, ahead of the arguments: some clients join whatever is repeated.
            begin = {"name": call.name, "arguments": ""}
            told = (
                {"index": index, "id": call.id, "type": "function", "function": begin},
                {"index": index, "function": {"arguments": call.arguments}},
            )
            chunks += [self._chunk(part.choice, {"tool_calls": [one]}) for one in told]
        return chunks

    def _chunk(
        self, index: int, delta: dict[str, Any], *, drawn: tuple[Drawn, ...] = (), reason: str | None = None
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs(drawn) if drawn else None,
            "finish_reason": reason,
        }
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return sse.data({**chunk, "usage": None} if self._usage else chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._job.created,
            "model": self._body.model or self._job.chat.model,
            "system_fingerprint": None,
        }

    @property
    def _usage(self) -> bool:
        options = self._body.stream_options
        return options is not None and bool(options.include_usage)


def failed(failure: Any, job: ChatJob) -> bytes:
    return sse.data(openai_shape(failure, job.chat.request))


def totals(job: ChatJob) -> dict[str, Any]:
    """Usage and figures of a request that has come to a good end."""
    assert job.done is not None
    return {"usage": usage(job.done), "timing": msgspec.to_builtins(job.figures())}


def usage(done: ChatDone) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": done.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": done.accepted_tokens,
            "rejected_prediction_tokens": done.rejected_tokens,
        },
    }


def logprobs(drawn: list[Drawn] | tuple[Drawn, ...]) -> dict[str, Any]:
    content = [{**_likely(one.token), "top_logprobs": [_likely(other) for other in one.top]} for one in drawn]
    return {"content": content, "refusal": None}


def _likely(one: Likely) -> dict[str, Any]:
    return {
        "token": one.data.decode(errors="replace"),
        "logprob": max(one.logprob, LEAST_LOGPROB),
        "bytes": list(one.data),
    }


def _function(call: Call) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}
