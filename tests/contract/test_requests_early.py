"""`DELETE /v1/requests/{id}` on what waits for its turn, or whose prompt is being read, and what it counted."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import httpx
import pytest

from .test_metrics import read


async def cancelled(http: httpx.AsyncClient, path: str, body: dict[str, Any], stage: str = "") -> None:
    """Ask, and cancel as soon as the server, or that stage, knows of it."""
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await http.post(path, json=body, headers={"X-Request-Id": "early"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        with anyio.fail_after(15):
            while stage and not (await http.get("/health")).json()["processes"][0]["active"][stage]:
                pass
            while (await http.delete("/v1/requests/early")).status_code == 404:
                pass
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (499, "cancelled")
    assert "Retry-After" not in answers[0].headers


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(chat_http: httpx.AsyncClient, stream: bool) -> None:
    messages = [{"role": "user", "content": "Tell me of the sea. " * 900}]
    await cancelled(chat_http, "/v1/chat/completions", {"messages": messages, "stream": stream}, "chat")


async def test_the_tokens_that_were_taken_count(chat_http: httpx.AsyncClient) -> None:
    async def counted() -> list[float]:
        samples = await read(chat_http)
        kinds = ("chat_prompt", "chat_completion")
        return [samples.get(f'vivavoce_tokens_total{{kind="{kind}"}}', 0.0) for kind in kinds]

    before = await counted()
    body = {"messages": [{"role": "user", "content": "Tell me of the sea."}], "stream": True}
    async with chat_http.stream("POST", "/v1/chat/completions", json=body) as answer:
        events = [""]
        async for line in answer.aiter_lines():
            events.append(line)
            if sum('"content"' in event for event in events) == 4:
                await chat_http.delete(f"/v1/requests/{answer.headers['X-Request-Id']}")
                break
    after = await counted()
    assert all(now > former for now, former in zip(after, before, strict=True))


async def test_what_waits_for_a_place(serve_with: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
    speech = {"input": "The quick brown fox. " * 50, "voice": "ryan", "response_format": "pcm"}
    async with (
        serve_with(max_concurrent=1) as server,
        httpx.AsyncClient(base_url=server.url) as http,
        http.stream("POST", "/v1/audio/speech", json=speech) as first,
    ):
        await anext(first.aiter_bytes())
        await cancelled(http, "/v1/audio/speech", {**speech, "stream": False})
