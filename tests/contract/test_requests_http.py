"""`DELETE /v1/requests/{id}` on speech: it ends at once, says how far it came, and frees everything."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

TEXT = "The quick brown fox jumps over the lazy dog, then rests a while in the warm sun. " * 10
SPEECH = {"input": TEXT, "voice": "ryan", "response_format": "pcm"}


async def freed(http: httpx.AsyncClient) -> None:
    with anyio.fail_after(10):
        while (await http.get("/health")).json()["active_requests"]:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("heard", [None, 0])
async def test_events_end_with_cancelled(http: httpx.AsyncClient, heard: int | None) -> None:
    events: list[dict[str, Any]] = []
    body = {**SPEECH, "stream_format": "sse"}
    query = {} if heard is None else {"samples_heard": heard}
    told: dict[str, Any] = {}
    async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
        name = answer.headers["X-Request-Id"]
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
            if len(events) == 3 and not told:
                deleted = await http.delete(f"/v1/requests/{name}", params=query)
                assert deleted.status_code == 200
                told = deleted.json()
    assert events[-1]["error"]["code"] == "cancelled"
    assert told == {"id": name, "object": "request", "status": "cancelled", "speech": told["speech"]}
    (speech,) = told["speech"]
    assert set(speech) == {"samples_sent", "samples_heard", "sample_rate", "text"}
    assert speech["samples_sent"] >= 3 * 1920
    assert speech["samples_heard"] == heard
    assert TEXT.startswith(speech["text"])
    assert (speech["text"] == "") == (heard == 0)
    await freed(http)


async def test_a_whole_reply_ends_with_its_status(http: httpx.AsyncClient) -> None:
    answers: list[httpx.Response] = []

    async def speak() -> None:
        headers = {"X-Request-Id": "whole"}
        body = {**SPEECH, "stream": False}
        answers.append(await http.post("/v1/audio/speech", json=body, headers=headers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(speak)
        with anyio.fail_after(15):
            deleted = await http.delete("/v1/requests/whole")
            while deleted.status_code == 404:
                deleted = await http.delete("/v1/requests/whole")
            assert deleted.json()["speech"][0]["samples_sent"] == 0
    assert answers[0].status_code == 499
    assert answers[0].json()["error"]["code"] == "cancelled"
    await freed(http)


async def test_refusals(
    http: httpx.AsyncClient, serve_with: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    assert (await http.delete("/v1/requests/none")).json()["error"]["code"] == "request_not_found"
    for samples in ("-1", "9" * 5000):
        answer = await http.delete("/v1/requests/none", params={"samples_heard": samples})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "samples_heard")
    async with serve_with(api_key="k") as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.delete("/v1/requests/none")).status_code == 401
