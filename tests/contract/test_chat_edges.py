"""Chat at its edges: waiting, standing still, full queues, other people's bodies."""

import copy
import json
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from vivavoce.api.chat_job import ChatJob
from vivavoce.api.edge import Edge
from vivavoce.api.exchange import Exchange
from vivavoce.bus.errors import RequestError
from vivavoce.bus.messages import Chat

ASK = [{"role": "user", "content": "Say hi."}]
GREEDY: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 6, "temperature": 0, "stream": True}


@asynccontextmanager
async def full(url: str) -> AsyncGenerator[None]:
    """All rows are taken, by a client that reads, for as long as this is open."""
    body = {**GREEDY, "n": 8, "max_tokens": 8000, "logit_bias": {"2": -100, "0": -100}, "temperature": 1}
    begun = anyio.Event()

    async def read() -> None:
        async with (
            httpx.AsyncClient(timeout=20) as http,
            http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    begun.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        with anyio.fail_after(15):
            await begun.wait()
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("path", "silence"), [("/v1/chat/completions", ": keep-alive"), ("/v1/messages", "event: ping")]
)
async def test_a_stream_that_waits_says_that_it_lives(serve_chat: Any, path: str, silence: str) -> None:
    """O22."""
    async with serve_chat(keep_alive_s=0.05) as server, httpx.AsyncClient(timeout=20) as http:
        lines: list[str] = []
        async with full(server.url), http.stream("POST", server.url + path, json=GREEDY) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                lines.append(line)
                if lines.count(silence) == 3:
                    break
        async with http.stream("POST", server.url + path, json=GREEDY) as answer:
            text = (await answer.aread()).decode()
        assert "[DONE]" in text or "message_stop" in text


async def test_a_pipeline_that_stands_still_ends_the_stream(serve_chat: Any, chatting: Any) -> None:
    async with (
        serve_chat(chat={"token_timeout_s": 2}, keep_alive_s=0.5) as server,
        httpx.AsyncClient(timeout=20) as http,
        full(server.url),
    ):
        answer = await http.post(f"{server.url}/v1/chat/completions", json=GREEDY)
        told = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
        assert json.loads(told[-1].removeprefix("data: "))["error"]["code"] == "stalled"
        whole = await http.post(f"{server.url}/v1/messages", json={**GREEDY, "stream": False})
        assert whole.status_code == 504
        assert whole.json()["error"]["type"] == "timeout_error"


async def test_a_full_queue_says_when_to_come_back(serve_chat: Any) -> None:
    async with (
        serve_chat(chat={"max_concurrent": 1, "max_queued": 0}) as server,
        httpx.AsyncClient(timeout=20) as http,
        full(server.url),
    ):
        for path, kind in (
            ("/v1/chat/completions", "rate_limit_error"),
            ("/v1/messages", "rate_limit_error"),
        ):
            answer = await http.post(server.url + path, json=GREEDY)
            assert answer.status_code == 429
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["error"]["type"] == kind


async def test_a_client_that_left_before_its_job_began(chatting: Any) -> None:
    edge, exchange = Edge(chatting), Exchange([])
    exchange.close()
    job = ChatJob(edge, exchange, Chat(request=exchange.id, model="tiny"), "chat")
    assert job.over
    assert job.ending.reason == "cancelled"
    assert chatting.client.active() == 0
    with pytest.raises(RequestError):
        await job.start()


async def test_a_key_is_asked_for_in_the_words_of_each_family(serve_chat: Any) -> None:
    async with serve_chat(api_key="k") as server, httpx.AsyncClient(timeout=20) as http:
        answer = await http.post(server.url + "/v1/messages", json=GREEDY)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        headers = {"x-api-key": "k"}
        body = {**GREEDY, "stream": False}
        assert (await http.post(server.url + "/v1/messages", json=body, headers=headers)).status_code == 200


async def test_no_words_of_an_earlier_conversation(chat_http: Any) -> None:
    """O26: what B is told does not depend on A before it, cold, warm, or after A was broken off."""
    system = {"role": "system", "content": "You remember words well. " * 30}
    a = {**GREEDY, "messages": [system, {"role": "user", "content": "Remember zebra-91."}], "stream": False}
    b = {**a, "messages": [system, {"role": "user", "content": "Which word?"}], "max_tokens": 12}
    first = (await chat_http.post("/v1/chat/completions", json=b)).json()
    for broken_off in (False, True):
        if broken_off:
            long = {**a, "stream": True, "max_tokens": 4000}
            async with chat_http.stream("POST", "/v1/chat/completions", json=long) as answer:
                async for _ in answer.aiter_lines():
                    break
        else:
            await chat_http.post("/v1/chat/completions", json=a)
        again = (await chat_http.post("/v1/chat/completions", json=b)).json()
        assert again["choices"] == first["choices"]
        details = again["usage"]["prompt_tokens_details"]
        assert 0 < details["cached_tokens"] < again["usage"]["prompt_tokens"]


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "max_tokens": 1,
        "temperature": 1,
        "top_p": 0.5,
        "n": 1,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}},
        },
        "stream": False,
        "stream_options": {"include_usage": True},
        "seed": 1,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
        ],
        "max_tokens": 1,
        "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    "/v1/completions": {"prompt": ["a", [1, 2]], "max_tokens": 1, "logprobs": 1, "stop": "x", "n": 1},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "max_output_tokens": 1,
        "instructions": "i",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
    },
}
ODD: list[Any] = [
    *(None, True, -1, 0, 2.5, 1e308, 2**70, "", "x", "{", "\x00\ud7ff\uffff"),
    *([], [None], [[]], [{"type": "text"}], {}, {"type": 1}, {"name": None}, {"a": {"b": [{}]}}),
    {"type": "object", "properties": 5},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


@pytest.mark.parametrize("path", BODIES)
async def test_odd_bodies_are_answered_and_never_fail(chat_http: Any, path: str) -> None:
    """Every place of a good body, with odd values in it."""
    chosen = random.Random(path)
    good = {"model": "tiny", **BODIES[path]}
    assert (await chat_http.post(path, json=good)).status_code == 200
    for place in places(BODIES[path]):
        if "max_" in str(place[-1]):
            continue  # without its limit an answer would fill the whole context
        for odd in chosen.sample(ODD, 5):
            body = copy.deepcopy(good)
            inner: Any = body
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = odd
            answer = await chat_http.post(
                path, content=json.dumps(body), headers={"Content-Type": "application/json"}
            )
            assert answer.status_code < 500, (place, odd, answer.text)
