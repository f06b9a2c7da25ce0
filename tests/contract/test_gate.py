"""Who may come in and how many: key, origins, places, queue, drain."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import openai
import pytest

SPEECH = "/v1/audio/speech"
TEXT = {"input": "Hi.", "voice": "ryan"}
LONG = {"input": "The quick brown fox jumps over the lazy dog. " * 40, "voice": "ryan"}


async def test_the_key_is_asked_of_everything_that_works(serve_with: Callable[..., Any]) -> None:
    async with serve_with(api_key="sésame") as server, httpx.AsyncClient(base_url=server.url) as http:
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Bearer"}, {"x-api-key": ""}):
            reply = await http.post(SPEECH, json=TEXT, headers=headers)
            assert reply.status_code == 401
            assert reply.json()["error"]["type"] == "authentication_error"
            assert reply.headers["www-authenticate"] == "Bearer"
        key = "sésame".encode()
        for good in (
            {b"Authorization": b"Bearer " + key},
            {b"Authorization": b"bearer " + key},
            {b"x-api-key": key},
        ):
            assert (await http.post(SPEECH, json=TEXT, headers=good, timeout=20)).status_code == 200
        for path in ("/health", "/ready", "/v1/models", "/v1/audio/voices", "/metrics"):
            assert (await http.get(path)).status_code == 200


async def test_the_sdk_sends_the_key(serve_with: Callable[..., Any]) -> None:
    async with serve_with(api_key="k") as server:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k") as sdk:
            assert (await sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")).content
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")


@pytest.mark.parametrize("path", [SPEECH, "/v1/chat/completions", "/v1/messages"])
async def test_preflight(serve_with: Callable[..., Any], path: str) -> None:
    """O17."""
    asking = {
        "Origin": "http://app.test",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-api-key, anthropic-version",
    }
    settings = {"cors_origins": ("http://app.test",), "api_key": "k"}
    async with serve_with(**settings) as server, httpx.AsyncClient(base_url=server.url) as http:
        reply = await http.options(path, headers=asking)
        assert reply.is_success
        assert reply.headers["access-control-allow-origin"] == "http://app.test"
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == asking["Access-Control-Request-Headers"]
        assert "access-control-allow-credentials" not in reply.headers
        foreign = await http.options(path, headers={**asking, "Origin": "http://evil.test"})
        assert "access-control-allow-origin" not in foreign.headers


async def test_errors_are_readable_across_origins(serve_with: Callable[..., Any]) -> None:
    async with serve_with(cors_origins=("*",)) as server, httpx.AsyncClient(base_url=server.url) as http:
        for reply in (
            await http.post(SPEECH, json={}, headers={"Origin": "http://app.test"}),
            await http.get("/nothing", headers={"Origin": "http://app.test"}),
            await http.get(SPEECH, headers={"Origin": "http://app.test"}),
        ):
            assert reply.status_code in (400, 404, 405)
            assert reply.headers["access-control-allow-origin"] == "*"


async def test_without_setting_no_origin_is_allowed(http: httpx.AsyncClient) -> None:
    reply = await http.get("/v1/models", headers={"Origin": "http://app.test"})
    assert "access-control-allow-origin" not in reply.headers
    unasked = await http.post(SPEECH, content=b'{"input": "Hi."}', headers={"Origin": "http://app.test"})
    assert unasked.status_code == 415


async def test_the_queue_is_bounded(serve_with: Callable[..., Any], connect: Callable[..., Any]) -> None:
    async with (
        serve_with(max_concurrent=1, max_queued=1) as server,
        httpx.AsyncClient(base_url=server.url, timeout=20) as http,
        connect(server.port) as first,
        connect(server.port) as second,
    ):
        await first.speak(**LONG)
        await first.head()
        await second.speak(**TEXT, stream_format="sse")
        await health(http, "queued_requests", 1)
        full = await http.post(SPEECH, json=TEXT)
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        assert full.json()["error"]["code"] == "queue_full"
        await first.stream.aclose()
        reply = await second.reply()
        assert reply.status == 200
        *_, done = [json.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: ")]
        assert done["timing"]["queue_s"] > 0
        assert done["timing"]["ttfa_s"] > done["timing"]["queue_s"]
        await health(http, "active_requests", 0)


async def health(http: httpx.AsyncClient, name: str, wanted: int) -> None:
    """Until this number of /health has come to what is wanted."""
    with anyio.fail_after(15):
        while (await http.get("/health")).json()[name] != wanted:
            await anyio.lowlevel.checkpoint()


async def test_waiting_events_are_kept_alive(
    serve_with: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    async with serve_with(max_concurrent=1, keep_alive_s=0.2) as server:
        async with connect(server.port) as first, connect(server.port) as second:
            await first.speak(**LONG)
            await first.head()
            await second.speak(**TEXT, stream_format="sse")
            assert (await second.head()).status == 200
            assert await second.chunk() == b": keep-alive\n\n"
            await first.stream.aclose()
            pieces = [piece async for piece in _rest(second)]
        assert b"speech.audio.done" in pieces[-1]


async def _rest(connection: Any) -> AsyncIterator[bytes]:
    while piece := await connection.chunk():
        yield piece


async def test_no_audio_in_time_is_an_error(serve_with: Callable[..., Any]) -> None:
    async with (
        serve_with(first_audio_timeout_s=0.001) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        reply = await http.post(SPEECH, json=TEXT)
        assert reply.status_code == 504
        assert reply.json()["error"]["code"] == "stalled"


async def test_a_client_that_takes_nothing_is_let_go(
    serve_with: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    async with (
        serve_with(stall_timeout_s=0.5) as server,
        httpx.AsyncClient(base_url=server.url) as http,
        connect(server.port) as stalled,
    ):
        # Bytes enough to fill the socket: they, not frames, are what the client does not take.
        await stalled.speak(**LONG, response_format="wav", sample_rate=48000, speed=0.25, max_new_tokens=100)
        await health(http, "active_requests", 1)
        await health(http, "active_requests", 0)
        assert not (await stalled.reply()).complete


async def test_drain_lets_streams_finish(serve_with: Callable[..., Any], connect: Callable[..., Any]) -> None:
    async with (
        serve_with() as server,
        httpx.AsyncClient(base_url=server.url) as http,
        connect(server.port) as running,
    ):
        await running.speak(**TEXT)
        await running.head()
        server.stop.set()
        while (ready := await http.get("/ready")).status_code == 200:
            await anyio.lowlevel.checkpoint()
        assert ready.json()["reason"] == "shutting down"
        refused = await http.post(SPEECH, json=TEXT)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert [piece async for piece in _rest(running)]


@pytest.mark.parametrize("form", [{}, {"stream_format": "sse"}])
async def test_streams_end_by_the_deadline(
    serve_with: Callable[..., Any], connect: Callable[..., Any], form: dict[str, str]
) -> None:
    with anyio.fail_after(18):
        async with serve_with(drain_s=0.3) as server, connect(server.port) as running:
            await running.speak(**LONG, **form)
            await running.head()
            await running.chunk()
            server.stop.set()
            if form:
                pieces = [piece async for piece in _rest(running)]
                assert b"speech.audio.error" in pieces[-1]
            else:
                with pytest.raises(anyio.EndOfStream):
                    assert [piece async for piece in _rest(running)]


async def test_aliases_that_mean_nothing_are_told_at_the_start(
    serve_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    models, voices = {"ours": "embedded", "gone": "nobody"}, {"ours": "Ryan", "gone": "nobody"}
    async with serve_with(model_aliases=models, voice_aliases=voices):
        told = [record.message for record in caplog.records if "means nothing" in record.message]
    assert told == [
        "api.model_aliases: 'gone' means nothing. There is no model 'nobody' here; served: embedded.",
        "api.voice_aliases: 'gone' means nothing: no model here has a voice 'nobody'.",
    ]
