"""`POST /v1/messages` with Anthropic's own package and by its bytes, and `/v1/completions`."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import anyio.to_thread
import pytest

ASK: list[Any] = [{"role": "user", "content": "Say hi."}]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Paris"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "get_weather", "description": "Weather.", "input_schema": PLACE}
GREEDY: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 6, "temperature": 0}


@pytest.fixture
async def claude(chat_server: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=chat_server.url, api_key="any", max_retries=0, timeout=20
    ) as client:
        yield client


def events_of(text: str) -> list[dict[str, Any]]:
    """Parsed events, whose names are also in their data and whose order is Anthropic's."""
    events: list[dict[str, Any]] = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    open_, count = False, 0
    for event in events[1:-2]:
        if event["type"] == "ping":
            continue
        assert (event["type"] == "content_block_start") != open_
        assert event["index"] == count
        open_ = event["type"] != "content_block_stop"
        count += not open_
    assert count >= 1
    return events


async def test_streamed_equals_whole(chat_http: Any) -> None:
    for fields in ({}, {"stop_sequences": ["zzz"]}, {"system": [{"type": "text", "text": "Be brief."}]}):
        whole = (await chat_http.post("/v1/messages", json={**GREEDY, **fields})).json()
        answer = await chat_http.post("/v1/messages", json={**GREEDY, **fields, "stream": True})
        events = events_of(answer.text)
        text = "".join(
            event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"
        )
        assert text == whole["content"][0]["text"]
        assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
        usage = events[-2]["usage"]
        assert usage["output_tokens"] == whole["usage"]["output_tokens"] == 6
        assert sum(v for k, v in usage.items() if "input" in k) == sum(
            v for k, v in whole["usage"].items() if "input" in k
        )


async def test_sdk_streams_tools_and_counts(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(
        model="tiny", max_tokens=64, messages=ASK, tools=[TOOL], tool_choice={"type": "any"}
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds.count("input_json") > 5
    (use,) = final.content
    assert use.type == "tool_use"
    assert final.stop_reason == "tool_use"
    back: Any = [
        *ASK,
        {"role": "assistant", "content": [use.model_dump(exclude_none=True)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "7 degrees"}]},
    ]
    wanted: Any = {"model": "tiny", "messages": back, "tools": [TOOL], "tool_choice": {"type": "none"}}
    made = await claude.messages.create(**wanted, max_tokens=4)
    counted = await claude.messages.count_tokens(**wanted)
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_a_call_is_the_same_streamed_and_whole(claude: anthropic.AsyncAnthropic) -> None:
    fields: Any = {"model": "tiny", "messages": ASK, "tools": [TOOL], "tool_choice": {"type": "any"}}
    fields |= {"extra_body": {"seed": 5}, "max_tokens": 64}
    whole = await claude.messages.create(**fields)
    async with claude.messages.stream(**fields) as stream:
        final = await stream.get_final_message()
    one: Any
    other: Any
    (one,), (other,) = whole.content, final.content
    assert one.type == other.type == "tool_use"
    assert (one.name, one.input) == (other.name, other.input)
    assert set(one.input) == {"city", "unit"}
    assert whole.stop_reason == final.stop_reason == "tool_use"


async def test_a_call_that_is_cut_is_no_call(chat_http: Any, claude: anthropic.AsyncAnthropic) -> None:
    """O24."""
    long = {
        "type": "object",
        "properties": {"body": {"type": "string", "minLength": 200}},
        "required": ["body"],
    }
    fields: Any = {"tools": [{"name": "save", "input_schema": long}], "tool_choice": {"type": "any"}}
    fields |= {"model": "tiny", "messages": ASK, "max_tokens": 40, "extra_body": {"temperature": 0}}
    whole = await claude.messages.create(**fields)
    assert whole.stop_reason == "max_tokens"
    assert [block.type for block in whole.content] == ["text"]
    async with claude.messages.stream(**fields) as stream:
        final = await stream.get_final_message()
    assert final.stop_reason == "max_tokens"
    assert [block.type for block in final.content] == ["tool_use"]
    answer = await chat_http.post("/v1/messages", json={**GREEDY, **fields, "stream": True})
    events_of(answer.text)


async def test_sync_sdk(chat_server: Any) -> None:
    def ask() -> tuple[str, str]:
        with anthropic.Anthropic(
            base_url=chat_server.url, api_key="any", max_retries=0, timeout=20
        ) as client:
            fields: Any = {
                "model": "tiny",
                "max_tokens": 5,
                "messages": ASK,
                "extra_body": {"temperature": 0},
            }
            block = client.messages.create(**fields).content[0]
            with client.messages.stream(**fields) as stream:
                return block.text if block.type == "text" else "", "".join(stream.text_stream)

    whole, streamed = await anyio.to_thread.run_sync(ask)
    assert whole == streamed != ""


async def test_a_limit_beyond_the_context_means_as_many_as_fit(chat_http: Any) -> None:
    long = [{"role": "user", "content": "one two three four " * 1900}]
    body = {**GREEDY, "messages": long, "max_tokens": 1_000_000}
    counted = (await chat_http.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    assert counted < 8192
    answer = await chat_http.post(
        "/v1/messages", json={**GREEDY, "max_tokens": 1_000_000, "stop_sequences": [" "]}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "kind", "word"),
    [
        ({"model": "none"}, 404, "not_found_error", "none"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "image",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, 400, "invalid_request_error", "1024"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}]},
            400,
            "invalid_request_error",
            "web_search",
        ),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice"),
        ({"container": "c"}, 400, "invalid_request_error", "container"),
    ],
)
async def test_refusals(chat_http: Any, fields: Any, status: int, kind: str, word: str) -> None:
    answer = await chat_http.post("/v1/messages", json={**GREEDY, **fields})
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert word in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"]


NO_PROMPTS: list[Any] = ["", [], [""], [[]], ["a", ""], [99999], [1, "a"]]


async def test_completions(chat_http: Any) -> None:
    body = {"model": "tiny", "prompt": ["Once", [1, 2, 3]], "max_tokens": 4, "temperature": 0, "logprobs": 1}
    whole = (await chat_http.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert whole["usage"]["completion_tokens"] == 8
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == 4
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = (await chat_http.post("/v1/completions", json={**body, **options})).text
    *events, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for choice in whole["choices"]:
        told = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in told) == choice["text"]
        assert told[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    for wrong in ({"suffix": "x"}, {"echo": True}, {"best_of": 3}, *({"prompt": p} for p in NO_PROMPTS)):
        for stream in (False, True):
            answer = await chat_http.post("/v1/completions", json={**body, **wrong, "stream": stream})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] in wrong
