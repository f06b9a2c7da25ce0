"""`POST /v1/chat/completions`: a conversation in, the next message of it as it is made, or whole."""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
from quart import Blueprint, Response

from ..bus.messages import Call, ChatDelta, ChatDone, ChatFinished, Drawn, Failure, Likely
from . import sse
from .chat_job import ChatJob, Choice
from .chat_schema import ChatBody, chat_of
from .edge import Edge
from .errors import openai_shape
from .exchange import current
from .operations import INFERENCE, OBJECT, Operation
from .schema import read
from .spoken import Joined, Spoken, Transcripts, Voice, speak_of
from .talk import Talk, begin

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
    transcripts = Transcripts()

    @routes.post("/v1/chat/completions")
    async def completions() -> Response:
        body = await read(ChatBody)
        body.messages = transcripts.recall(body.messages)
        speak = await speak_of(edge, body) if "audio" in body.modalities else None
        job = begin(edge, body, chat_of, "chat")
        spoken = Spoken(job, Voice(edge, current(), speak, "chat_audio")) if speak else None
        talk = ChatTalk(job, body, spoken, transcripts)
        return await talk.answer(edge.settings.keep_alive_s, streamed=body.stream)

    _ = completions
    return routes


class ChatTalk(Talk[ChatDelta | ChatFinished | bytes]):
    """In OpenAI's words."""

    def __init__(self, job: ChatJob, body: ChatBody, spoken: Spoken | None, transcripts: Transcripts) -> None:
        super().__init__(job, spoken or job)
        self._body = body
        self._spoken = spoken
        self._transcripts = transcripts
        key = job.name.removeprefix("req-")
        self._id, self._audio_id = f"chatcmpl-{key}", f"audio_{key}"
        self._audio = Joined()
        self._said = ""
        """The text so far of a reply that is spoken."""
        self._calls: dict[int, list[str]] = {}
        """The ids of the calls of each choice that have been told."""
        self._named = False
        """Whether the id of the audio has been told."""

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            **self._totals(),
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
        if self._spoken and self._spoken.audio:
            message["audio"] = {
                "id": self._audio_id,
                "data": base64.b64encode(self._spoken.audio).decode(),
                "transcript": choice.text,
                "expires_at": self._transcripts.keep(self._audio_id, choice.text),
            }
            if "text" not in self._body.modalities:
                message["content"] = None
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

    def begin(self) -> Iterator[bytes]:
        for index in range(self.job.chat.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def end(self) -> Iterator[bytes]:
        if self._usage:
            yield sse.data({**self._head("chat.completion.chunk"), "choices": [], **self._totals()})
        yield sse.DONE

    def failed(self, failure: Failure) -> bytes:
        return failed(failure, self.job)

    def tell(self, part: ChatDelta | ChatFinished | bytes) -> Iterator[bytes]:
        match part:
            case bytes():
                if data := self._audio.feed(part):
                    yield self._chunk(0, {"audio": self._voice(data=data)})
            case ChatFinished():
                yield from self._heard()
                yield self._chunk(part.choice, {}, reason=part.reason)
            case ChatDelta():
                delta: dict[str, Any] = {}
                if part.reasoning:
                    delta["reasoning_content"] = part.reasoning
                if part.text and "text" in (self._body.modalities or ["text"]):
                    delta["content"] = part.text
                if part.text and self._spoken:
                    delta["audio"] = self._voice(transcript=part.text)
                    self._said += part.text
                if delta or part.drawn:
                    yield self._chunk(part.choice, delta, drawn=part.drawn)
                yield from self._called(part)

    def _voice(self, **part: Any) -> dict[str, Any]:
        """A part of the audio. Its id comes once: some clients join whatever is repeated."""
        named, self._named = self._named, True
        return part if named else {"id": self._audio_id, **part}

    def _heard(self) -> Iterator[bytes]:
        """The end of the audio, if there was any."""
        if self._named:
            if data := self._audio.finish():
                yield self._chunk(0, {"audio": {"data": data}})
            expires = self._transcripts.keep(self._audio_id, self._said)
            yield self._chunk(0, {"audio": {"expires_at": expires}})

    def _called(self, part: ChatDelta) -> Iterator[bytes]:
        told = self._calls.setdefault(part.choice, [])
        for call in part.calls:
            if told and call.id not in told and not self._body.parallel_tool_calls:
                break
            if call.id not in told:
                told.append(call.id)
                # Id and name come once, ahead of the arguments: some clients join whatever is repeated.
                begin = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
                yield self._call(part.choice, len(told) - 1, begin)
            yield self._call(part.choice, told.index(call.id), {"function": {"arguments": call.arguments}})

    def _call(self, choice: int, index: int, told: dict[str, Any]) -> bytes:
        return self._chunk(choice, {"tool_calls": [{"index": index, **told}]})

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
            "created": self.job.created,
            "model": self._body.model or self.job.chat.model,
            "system_fingerprint": None,
        }

    def _totals(self) -> dict[str, Any]:
        """Usage and figures of a request that has come to a good end."""
        assert self.job.done is not None
        told = {"usage": usage(self.job.done), "timing": msgspec.to_builtins(self.job.figures())}
        if self._spoken and (frames := self._spoken.voice.ending.frames):
            told["usage"]["completion_tokens_details"]["audio_tokens"] = frames
            told["usage"]["completion_tokens"] += frames
            told["usage"]["total_tokens"] += frames
            told["timing"]["speech"] = msgspec.to_builtins(self._spoken.voice.figures())
        return told

    @property
    def _usage(self) -> bool:
        options = self._body.stream_options
        return options is not None and bool(options.include_usage)


def failed(failure: Failure, job: ChatJob) -> bytes:
    return sse.data(openai_shape(failure, job.chat.request))


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
