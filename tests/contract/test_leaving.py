"""Clients that leave, stall or never come to an end, and requests that fail in the middle."""

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from vivavoce.stages.speech import encoder

from .conftest import Failing

LONG = "The quick brown fox jumps over the lazy dog, then rests a while in the warm sun. " * 30


async def freed(server: Any, http: httpx.AsyncClient) -> None:
    """Until no stage holds a request and no place is taken."""
    with anyio.fail_after(15):
        while True:
            active = server.running.processes()[0].active
            health = (await http.get("/health")).json()
            if not any(active.values()) and health["active_requests"] == health["queued_requests"] == 0:
                return
            await anyio.lowlevel.checkpoint()


def reset(connection: Any) -> None:
    """Close with a reset, as a killed client's kernel does."""
    raw = connection.stream.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("form", [{}, {"stream_format": "sse"}, {"stream": False}])
@pytest.mark.parametrize("after", ["request", "first piece", "a while"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_leaving_frees_everything(
    server: Any, http: httpx.AsyncClient, connect: Callable[[], Any], form: Any, after: str, how: str
) -> None:
    """O15, at each point of a request's life."""
    async with connect() as connection:
        await connection.speak(input=LONG, **form)
        if form != {"stream": False}:
            if after != "request":
                assert (await connection.head()).status == 200
                await connection.chunk()
            if after == "a while":
                for _ in range(4):
                    await connection.chunk()
        if how == "reset":
            reset(connection)
    await freed(server, http)
    reply = await http.post("/v1/audio/speech", json={"input": "Hi.", "voice": "ryan"})
    assert reply.status_code == 200


async def test_resets_in_a_burst(server: Any, http: httpx.AsyncClient, connect: Callable[[], Any]) -> None:
    """The cancellation that Quart loses now and then: the exchange's own watch ends those too."""

    async def one(pieces: int) -> None:
        async with connect() as connection:
            await connection.speak(input="Hello there, my friend.")
            if pieces:
                await connection.head()
            reset(connection)

    async with anyio.create_task_group() as tasks:
        for i in range(60):
            tasks.start_soon(one, i % 3 == 2)
    await freed(server, http)


async def test_health_answers_meanwhile(http: httpx.AsyncClient, connect: Callable[[], Any]) -> None:
    """O15: none of them waits for the device or the encoder."""
    async with connect() as connection:
        await connection.speak(input=LONG, stream=False, response_format="mp3")
        for path in ("/health", "/ready", "/v1/models", "/v1/audio/voices", "/metrics") * 5:
            with anyio.fail_after(2):
                assert (await http.get(path)).status_code == 200


async def test_a_stalled_client_parks_only_itself(
    server: Any, http: httpx.AsyncClient, connect: Callable[[], Any]
) -> None:
    """It stops getting frames after the lookahead and what the socket holds; others go on."""
    async with connect() as stalled:
        await stalled.speak(input=LONG, response_format="pcm")
        assert (await stalled.head()).status == 200
        reply = await http.post("/v1/audio/speech", json={"input": "Hi.", "voice": "ryan"})
        assert reply.status_code == 200
    await freed(server, http)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encoder.container
    monkeypatch.setattr(encoder, "container", lambda *a, **k: Failing(real(*a, **k)))  # type: ignore[misc]


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("name", ["mp3", "wav", "pcm"])
async def test_a_stream_that_fails_midway_does_not_end(connect: Callable[[], Any], name: str) -> None:
    """O14: 200 went out with the first audio; the missing last chunk tells the client."""
    async with connect() as connection:
        await connection.speak(input="Hello there.", response_format=name)
        reply = await connection.reply()
    assert reply.status == 200
    assert not reply.complete
    assert reply.body
    assert b'{"error"' not in reply.body


@pytest.mark.usefixtures("failing")
async def test_clients_see_that_it_failed(http: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await http.post("/v1/audio/speech", json={"input": "Hello there.", "voice": "ryan"})


@pytest.mark.usefixtures("failing")
async def test_events_tell_of_the_failure(http: httpx.AsyncClient, server: Any) -> None:
    body = {"input": "Hello there.", "voice": "ryan", "stream_format": "sse", "response_format": "pcm"}
    counted = 'vivavoce_requests_total{ending="error",route="speech"} '
    before = (await http.get("/metrics")).text.partition(counted)[2].partition("\n")[0]
    reply = await http.post("/v1/audio/speech", json=body)
    sent = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in sent] == ["speech.audio.delta"] * 2 + ["speech.audio.error"]
    assert sent[-1]["error"]["type"] == "server_error"
    assert "broke" in sent[-1]["error"]["message"]
    await freed(server, http)
    after = (await http.get("/metrics")).text.partition(counted)[2].partition("\n")[0]
    assert float(after) == float(before or 0) + 1


@pytest.mark.usefixtures("failing")
async def test_a_whole_reply_that_fails_has_its_status(http: httpx.AsyncClient) -> None:
    body = {"input": "Hello there.", "voice": "ryan", "stream": False}
    reply = await http.post("/v1/audio/speech", json=body)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
