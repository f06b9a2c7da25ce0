"""`POST /v1/chat/completions`: the order of events, endings, fields, refusals. A tiny random model answers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

ASK: list[Any] = [{"role": "user", "content": "Say hi."}]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Paris"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PLACE}}
GREEDY = {"model": "tiny", "messages": ASK, "max_tokens": 6, "temperature": 0}


@pytest.fixture
async def chat_sdk(chat_server: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    url = chat_server.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


async def chunks_of(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, whose form is checked: one id, roles first, one reason each, usage last, [DONE]."""
    answer = await http.post("/v1/chat/completions", json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = answer.content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    asked = bool((body.get("stream_options") or {}).get("include_usage"))
    last = chunks.pop() if asked else {}
    if asked:
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for index in range(body.get("n", 1)):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        reasons = [one["finish_reason"] for one in mine]
        assert reasons[-1] in ("stop", "length", "tool_calls")
        assert not any(reasons[:-1])
    return [*chunks, last] if asked else chunks


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def whole_of(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("usage", [None, False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 2, "seed": 3, "temperature": 1}, {"max_completion_tokens": 3}])
async def test_streamed_equals_whole(chat_http: Any, usage: bool | None, fields: dict[str, Any]) -> None:
    body = {**GREEDY, **fields, "stream_options": {"include_usage": usage}}
    chunks = await chunks_of(chat_http, body)
    whole = await whole_of(chat_http, {**GREEDY, **fields})
    for choice in whole["choices"]:
        assert choice["message"]["content"] == text_of(chunks, choice["index"])
        assert choice["finish_reason"] == "length"
    if usage:
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


async def test_the_prompt_cache_shows_in_the_usage_and_not_in_the_answer(chat_http: Any) -> None:
    body = {**GREEDY, "messages": [{"role": "user", "content": "one two three " * 60}]}
    cold, warm = await whole_of(chat_http, body), await whole_of(chat_http, body)
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (cold, warm)]
    assert cached[0] < 64 <= cached[1] < warm["usage"]["prompt_tokens"]
    assert cold["choices"] == warm["choices"]
    assert warm["timing"]["tokens_per_s"] > 0


async def test_logprobs(chat_http: Any) -> None:
    body = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    whole = await whole_of(chat_http, body)
    told = whole["choices"][0]["logprobs"]["content"]
    assert len(told) == 6
    assert all(one["token"] == one["top_logprobs"][0]["token"] for one in told)
    joined = b"".join(bytes(one["bytes"]) for one in told).decode(errors="replace")
    assert joined.startswith(whole["choices"][0]["message"]["content"].rstrip("\ufffd"))
    streamed = [
        one
        for chunk in await chunks_of(chat_http, body)
        for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == told


@pytest.mark.parametrize("seed", range(3))
async def test_stop_strings_across_tokens(chat_http: Any, seed: int) -> None:
    """O20: cut exactly before the text, and what only begins like it is told."""
    body = {**GREEDY, "temperature": 1, "seed": seed, "max_tokens": 16}
    text = (await whole_of(chat_http, body))["choices"][0]["message"]["content"]
    at = next(n for n in range(8, len(text)) if "\ufffd" not in text[n : n + 5])
    stop = text[at : at + 5]
    for stops, wanted, reason in (
        ([stop, "never"], text[: text.index(stop)], "stop"),
        ([stop + "\x01"], text, "length"),
        ("", text, "length"),
    ):
        choice = (await whole_of(chat_http, {**body, "stop": stops}))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (wanted, reason)
        assert text_of(await chunks_of(chat_http, {**body, "stop": stops})) == wanted


async def test_sdk_tools_and_structure(chat_sdk: openai.AsyncOpenAI) -> None:
    make = chat_sdk.chat.completions
    pick: Any = {"type": "function", "function": {"name": "get_weather"}}
    fields: Any = {"model": "tiny", "messages": ASK, "tools": [TOOL], "max_tokens": 64, "seed": 5}
    whole = await make.create(**fields, tool_choice=pick)
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    back: Any = [*ASK, whole.choices[0].message.model_dump(exclude_none=True)]
    back.append({"role": "tool", "tool_call_id": call.id, "content": "7 degrees"})
    after = await make.create(model="tiny", messages=back, tools=[TOOL], tool_choice="none", max_tokens=4)
    assert after.choices[0].message.tool_calls is None
    async with make.stream(**fields, tool_choice="required") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 5
    (streamed,) = final.choices[0].message.tool_calls or []
    assert streamed.function.name == "get_weather"
    assert streamed.function.arguments == call.function.arguments
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    held = await make.create(model="tiny", messages=ASK, response_format=wanted, max_tokens=64)
    assert set(json.loads(held.choices[0].message.content or "")) == {"city", "unit"}


LONG = {"type": "object", "properties": {"body": {"type": "string", "minLength": 200}}, "required": ["body"]}
SAVE: Any = {"tools": [{"type": "function", "function": {"name": "save", "parameters": LONG}}]}


def calls_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The calls that a stream's pieces join to; id and name come first, once, with no arguments."""
    calls: list[dict[str, Any]] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        for piece in choice["delta"].get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece["function"] == {"name": piece["function"]["name"], "arguments": ""}
                calls.append({**piece, "function": {**piece["function"]}})
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


async def test_arguments_are_streamed_as_they_are_written(chat_http: Any) -> None:
    body = {**GREEDY, "tools": [TOOL], "tool_choice": "required", "max_tokens": 64, "n": 2, "seed": 1}
    chunks = await chunks_of(chat_http, body)
    whole = await whole_of(chat_http, body)
    for choice in whole["choices"]:
        (call,) = choice["message"]["tool_calls"]
        (streamed,) = calls_of(chunks, choice["index"])
        assert streamed["function"] == call["function"]
        assert set(json.loads(call["function"]["arguments"])) == {"city", "unit"}
    assert sum("tool_calls" in one["delta"] for chunk in chunks for one in chunk["choices"]) > 10


async def test_a_call_that_is_cut_is_no_call(chat_http: Any) -> None:
    """O24: the limit falls into a call. What was streamed of it stays a beginning; what is whole leaves it out."""
    for limit in (2, 5, 40):
        body = {**GREEDY, **SAVE, "tool_choice": "required", "max_tokens": limit}
        whole = await whole_of(chat_http, body)
        assert whole["choices"][0]["finish_reason"] == "length"
        assert "tool_calls" not in whole["choices"][0]["message"]
        chunks = await chunks_of(chat_http, body)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        for call in calls_of(chunks):
            assert call["function"]["arguments"].startswith('{"body"')
            with pytest.raises(json.JSONDecodeError):
                json.loads(call["function"]["arguments"])
    assert calls_of(chunks)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "Be brief."}, *ASK],
        [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, *ASK],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [*ASK, {"role": "assistant", "content": "It is"}],
        *(
            [
                *ASK,
                {
                    "role": "assistant",
                    **content,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "7 degrees", "name": "get_weather"},
            ]
            for content in ({"content": None}, {}, {"content": []})
        ),
    ],
)
async def test_message_shapes(chat_http: Any, messages: Any) -> None:
    """O23."""
    empty = {
        "stop": [],
        "logit_bias": {},
        "tools": [],
        "user": "u",
        "metadata": {},
        "store": True,
        "seed": None,
    }
    whole = await whole_of(chat_http, {**GREEDY, **empty, "messages": messages, "unheard_of": 1})
    assert whole["usage"]["completion_tokens"] <= 6


REFUSED: list[tuple[dict[str, Any], int, str | None]] = [
    ({"model": "none/such"}, 404, "model"),
    ({"temperature": -3}, 400, "temperature"),
    ({"top_p": 7}, 400, "top_p"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"n": 0}, 400, "n"),
    ({"n": 100}, 400, "n"),
    ({"messages": []}, 400, "messages"),
    ({"messages": None}, 400, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x" * 200_000}]}, 400, "messages"),
    ({"modalities": ["text", "audio"]}, 400, "modalities"),
    ({"functions": [{"name": "f"}]}, 400, "functions"),
    ({"web_search_options": {"a": 1}}, 400, "web_search_options"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"60000": 1}}, 400, "logit_bias"),
    ({"stop": ["x"] * 17}, 400, "stop"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, 400, "tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, "tool_choice"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        400,
        "response_format",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
        400,
        "response_format",
    ),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, 400, "chat_template_kwargs"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals(chat_http: Any, stream: bool) -> None:
    for fields, status, param in REFUSED:
        answer = await chat_http.post("/v1/chat/completions", json={**GREEDY, **fields, "stream": stream})
        assert answer.status_code == status, (fields, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, error


async def test_a_leaving_client_frees_the_row(chat_http: Any, chatting: Any) -> None:
    async with chat_http.stream(
        "POST", "/v1/chat/completions", json={**GREEDY, "max_tokens": 8000, "stream": True}
    ) as answer:
        async for line in answer.aiter_lines():
            if '"content":' in line:
                break
    while any(process.active.get("chat") for process in chatting.processes()):
        await whole_of(chat_http, {**GREEDY, "max_tokens": 1})
    assert chatting.client.active() == 0


async def test_percent_encoded_model_ids(serve_chat: Any) -> None:
    async with serve_chat(model_aliases={"org/name": "tiny"}) as server, httpx.AsyncClient() as http:
        model = (await http.get(f"{server.url}/v1/models/org%2Fname")).json()
        assert (model["id"], model["context_length"]) == ("org/name", 8192)
