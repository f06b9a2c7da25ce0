"""`/v1/responses` with OpenAI's own package and by its bytes."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Paris"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": PLACE, "strict": True}
GREEDY: dict[str, Any] = {"model": "tiny", "input": "Say hi.", "max_output_tokens": 5, "temperature": 0}


@pytest.fixture
async def sdk(chat_server: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    url = chat_server.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


async def test_streamed_equals_whole(chat_http: Any) -> None:
    whole = (await chat_http.post("/v1/responses", json=GREEDY)).json()
    text = (await chat_http.post("/v1/responses", json={**GREEDY, "stream": True})).text
    events: list[dict[str, Any]] = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    deltas = kinds.count("response.output_text.delta")
    item = ["response.output_item.added", "response.content_part.added"]
    item += ["response.output_text.delta"] * deltas
    item += ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds == ["response.created", "response.in_progress", *item, "response.completed"]
    final = events[-1]["response"]
    joined = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert joined == final["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]
    assert final["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 5
    assert final["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_sdk_tools_structure_and_chains(sdk: openai.AsyncOpenAI) -> None:
    make = sdk.responses
    ask: Any = [{"role": "user", "content": "What is the weather?"}]
    pick: Any = {"type": "function", "name": "get_weather"}
    first = await make.create(model="tiny", input=ask, tools=[TOOL], tool_choice=pick, max_output_tokens=64)
    (call,) = first.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    back: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}]
    fields: Any = {"tools": [TOOL], "tool_choice": "none", "max_output_tokens": 4}
    after = await make.create(model="tiny", input=back, previous_response_id=first.id, **fields)
    assert after.output[0].type == "message"
    both: Any = [*ask, call.model_dump(exclude_none=True), *back]
    said = await make.create(model="tiny", input=both, **fields)
    assert said.usage is not None
    assert after.usage is not None
    assert said.usage.input_tokens == after.usage.input_tokens
    async with make.stream(
        model="tiny", input=ask, tools=[TOOL], tool_choice="required", max_output_tokens=64
    ) as stream:
        told: Any = [event async for event in stream if event.type.endswith("arguments.delta")]
        final: Any = await stream.get_final_response()
    assert len(told) > 5
    assert "".join(event.delta for event in told) == final.output[0].arguments
    assert set(json.loads(final.output[0].arguments)) == {"city", "unit"}
    assert final.output[0].status == "completed"
    schema: Any = {"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}}
    held = await make.create(model="tiny", input="Where?", text=schema, max_output_tokens=64)
    assert set(json.loads(held.output_text)) == {"city", "unit"}


async def test_a_call_that_is_cut_is_an_incomplete_item(chat_http: Any) -> None:
    """O24; a later response does not see it."""
    long = {
        "type": "object",
        "properties": {"body": {"type": "string", "minLength": 200}},
        "required": ["body"],
    }
    tool = {"type": "function", "name": "save", "parameters": long}
    fields = {**GREEDY, "tools": [tool], "tool_choice": "required", "max_output_tokens": 40}
    whole = (await chat_http.post("/v1/responses", json=fields)).json()
    events = [
        json.loads(event.split("\ndata: ")[1])
        for event in (await chat_http.post("/v1/responses", json={**fields, "stream": True})).text.split(
            "\n\n"
        )
        if event
    ]
    final = events[-1]["response"]
    for response in (whole, final):
        assert response["status"] == "incomplete"
        (item,) = response["output"]
        assert (item["type"], item["status"]) == ("function_call", "incomplete")
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == final["output"][0]["arguments"] == whole["output"][0]["arguments"]
    more = {**GREEDY, "input": "Go on.", "previous_response_id": whole["id"]}
    assert (await chat_http.post("/v1/responses", json=more)).status_code == 200


async def test_what_is_stored_can_be_asked_for_and_forgotten(chat_http: Any) -> None:
    made = (await chat_http.post("/v1/responses", json=GREEDY)).json()
    path = f"/v1/responses/{made['id']}"
    assert (await chat_http.get(path)).json() == made
    (item,) = (await chat_http.get(path + "/input_items")).json()["data"]
    assert item["content"][0]["text"] == "Say hi."
    counted = await chat_http.post("/v1/responses/input_tokens", json=GREEDY)
    assert counted.json()["input_tokens"] == made["usage"]["input_tokens"]
    assert (await chat_http.delete(path)).json()["deleted"]
    assert (await chat_http.get(path)).status_code == 404
    unstored = (await chat_http.post("/v1/responses", json={**GREEDY, "store": False})).json()
    lost = await chat_http.post("/v1/responses", json={**GREEDY, "previous_response_id": unstored["id"]})
    assert lost.status_code == 400
    assert lost.json()["error"]["param"] == "previous_response_id"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "none"}, 404, "model"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools"),
        ({"background": True}, 400, "background"),
        ({"conversation": "c"}, 400, "conversation"),
        ({"truncation": "auto"}, 400, "truncation"),
        ({"input": ""}, 400, "messages"),
    ],
)
async def test_refusals(chat_http: Any, fields: dict[str, Any], status: int, param: str) -> None:
    for stream in (False, True):
        answer = await chat_http.post("/v1/responses", json={**GREEDY, **fields, "stream": stream})
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == param
