"""Answers with calls, told in pieces and whole: the SDKs make the same of both, whatever the model wrote."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import httpx2
import openai
import pytest

from vivavoce.api.chat import ChatTalk
from vivavoce.api.chat_job import ChatFigures, ChatJob, Choice
from vivavoce.api.chat_schema import ChatBody
from vivavoce.api.messages import MessagesTalk
from vivavoce.api.messages_schema import MessagesBody
from vivavoce.api.response_store import ResponseStore
from vivavoce.api.responses import ResponseTalk
from vivavoce.api.responses_schema import ResponseBody
from vivavoce.api.spoken import Transcripts
from vivavoce.bus.messages import (
    Call,
    Chat,
    ChatAccepted,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    FinishReason,
)
from vivavoce.stages.chat.calls import HERMES
from vivavoce.stages.chat.reply import Reply, Style

Parts = list[ChatDelta | ChatFinished]
MODEL = "m"
ASK: Any = [{"role": "user", "content": "x"}]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


TOLD = {
    "one call": call("f", a="é👩‍🚀", b=[1, {"c": None}]),
    "two calls in two bodies": call("f", a=1) + "\n" + call("g"),
    "two calls in one body": call("f").replace("\n</tool_call>", ";")
    + call("g", a="}")[len("<tool_call>") :],
    "text around calls": "First this. " + call("f", a=1) + "\nThen that. " + call("g", b=2) + " Done.",
    "reasoning, then a call": "<think>Hm.</think>" + call("f", a=1),
    "a call that comes whole": '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
    "no call": "<tool_call>nothing</tool_call> but text.",
}


def parts_of(text: str, reason: FinishReason = "tool_calls") -> Parts:
    """What the stage tells of an answer, a letter a token."""

    def decode(tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    reply = Reply(Style(decode, think=("<think>", "</think>"), calls=HERMES))
    pieces = [*(reply.push(ord(letter)) for letter in text), reply.finish(cut=reason == "length")]
    told: Parts = [
        ChatDelta(
            request="r",
            choice=0,
            text=piece.text,
            reasoning=piece.reasoning,
            calls=tuple(Call(f"call_{part.number}", part.name, part.arguments) for part in piece.calls),
        )
        for piece in pieces
    ]
    return [*told, ChatFinished(request="r", choice=0, reason=reason)]


def job() -> ChatJob:
    """What a talk asks of its job when all is over."""
    counts = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1, "reasoning_tokens": 0}
    counts |= {"accepted_tokens": 0, "rejected_tokens": 0}
    figures = ChatFigures(
        queue_s=0, ttft_s=0, prompt_s=0, prompt_tokens_per_s=None, generation_s=0, tokens_per_s=None
    )
    made = SimpleNamespace(
        name="req-1",
        chat=Chat(request="req-1", model=MODEL),
        created=0,
        accepted=ChatAccepted(request="r", prompt_tokens=1),
        started=ChatStarted(request="r", cached_tokens=0, prompt_s=0.0),
        done=ChatDone(request="r", **counts, prompt_s=0.0, generation_s=0.0),
        figures=lambda: figures,
    )
    return cast(ChatJob, made)


def answering(make: Callable[[], Any], parts: Parts) -> httpx2.Client:
    """A client whose server tells these parts, streamed or whole as it is asked."""

    def told() -> Iterator[bytes]:
        talk = make()
        yield from talk.begin()
        for part in parts:
            yield from talk.tell(part)
        yield from talk.end()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if json.loads(request.content).get("stream"):
            return httpx2.Response(
                200, headers={"content-type": "text/event-stream"}, content=b"".join(told())
            )
        choice = Choice()
        for part in parts:
            choice.take(part)
        return httpx2.Response(200, json=make().whole([choice]))

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def openai_of(make: Callable[[], Any], parts: Parts) -> openai.OpenAI:
    return openai.OpenAI(api_key="any", base_url="http://test/v1", http_client=answering(make, parts))


@pytest.mark.parametrize("said", list(TOLD))
def test_chat_completions(said: str) -> None:
    def talk() -> ChatTalk:
        return ChatTalk(job(), ChatBody(model=MODEL, messages=ASK), None, Transcripts())

    make = openai_of(talk, parts_of(TOLD[said])).chat.completions
    whole = make.create(model=MODEL, messages=ASK).choices[0]
    with make.stream(model=MODEL, messages=ASK) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason
    one, other = final.message.model_dump(), whole.message.model_dump()
    assert (one["content"] or "").strip() == (other["content"] or "").strip()
    calls = [[one_call["function"] for one_call in message["tool_calls"] or []] for message in (one, other)]
    assert [(c["name"], c["arguments"]) for c in calls[0]] == [(c["name"], c["arguments"]) for c in calls[1]]
    assert len(calls[0]) == TOLD[said].count('"name"')


@pytest.mark.parametrize("said", list(TOLD))
def test_messages(said: str) -> None:
    def talk() -> MessagesTalk:
        return MessagesTalk(job(), MessagesBody(model=MODEL, messages=ASK, max_tokens=9))

    http = answering(talk, parts_of(TOLD[said]))
    make = anthropic.Anthropic(api_key="any", base_url="http://test", http_client=http).messages
    whole = make.create(model=MODEL, messages=ASK, max_tokens=9)
    with make.stream(model=MODEL, messages=ASK, max_tokens=9) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]


@pytest.mark.parametrize("said", list(TOLD))
@pytest.mark.parametrize("cut", [False, True])
def test_responses(said: str, cut: bool) -> None:
    text = TOLD[said][: -len("</tool_call>") - 4] if cut else TOLD[said]

    def talk() -> ResponseTalk:
        return ResponseTalk(job(), ResponseBody(model=MODEL, input="x"), ASK, ResponseStore(9, 99_999))

    make = openai_of(talk, parts_of(text, "length" if cut else "tool_calls")).responses
    whole = make.create(model=MODEL, input="x")
    with make.stream(model=MODEL, input="x") as stream:
        done = [event.item for event in stream if event.type == "response.output_item.done"]
        final = stream.get_final_response()
    outputs = [[item.to_dict() for item in items] for items in (whole.output, final.output, done)]
    for output in outputs:
        for item in output:
            item.pop("parsed_arguments", None)
    assert json.dumps(outputs[0]) == json.dumps(outputs[2])
    assert [item["type"] for item in outputs[0]] == [item["type"] for item in outputs[1]]


@pytest.mark.parametrize("length", range(1, len(TOLD["one call"])))
def test_a_call_that_is_cut_anywhere(length: int) -> None:
    """O24: whole answers have calls that are JSON, or none; streams end well."""
    parts = parts_of(TOLD["one call"][:length], "length")

    def chat() -> ChatTalk:
        return ChatTalk(job(), ChatBody(model=MODEL, messages=ASK), None, Transcripts())

    choice = openai_of(chat, parts).chat.completions.create(model=MODEL, messages=ASK).choices[0]
    assert choice.finish_reason == "length"
    for one in choice.message.tool_calls or []:
        assert one.type == "function"
        assert json.loads(one.function.arguments) == {"a": "é👩‍🚀", "b": [1, {"c": None}]}

    def messages() -> MessagesTalk:
        return MessagesTalk(job(), MessagesBody(model=MODEL, messages=ASK, max_tokens=1))

    make = anthropic.Anthropic(
        api_key="any", base_url="http://test", http_client=answering(messages, parts)
    ).messages
    whole = make.create(model=MODEL, messages=ASK, max_tokens=1)
    assert whole.stop_reason == "max_tokens"
    assert len([block for block in whole.content if block.type == "tool_use"]) == len(
        choice.message.tool_calls or []
    )
    with make.stream(model=MODEL, messages=ASK, max_tokens=1) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"
