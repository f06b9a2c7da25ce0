"""What is refused, and how: the right status before the first byte, one shape of error, the field named."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import openai
import psutil
import pytest

from vivavoce.bus.running import Running

SPEECH = "/v1/audio/speech"
TEXT = {"model": "embedded", "voice": "ryan", "input": "Hi."}


def error_of(reply: httpx.Response) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    return body["error"]


async def steps_at_rest(running: Running) -> int:
    """What the device has done, once nothing is left of earlier requests."""
    with anyio.fail_after(60):
        while any(running.processes()[0].active.values()):
            await anyio.lowlevel.checkpoint()
    return running.processes()[0].device_steps


@pytest.mark.parametrize("form", [{}, {"stream": False}, {"stream": True}, {"stream_format": "sse"}])
async def test_nothing_to_say(http: httpx.AsyncClient, server: Any, form: dict[str, Any]) -> None:
    """O01."""
    before = await steps_at_rest(server.running)
    for text in ("", "  ", "\n\t", "\u200b\ufeff", None, 7, ["a"], "absent"):
        body: dict[str, Any] = {"model": "embedded", "voice": "ryan", "input": text, **form}
        if text == "absent":
            del body["input"]
        reply = await http.post(SPEECH, json=body)
        assert reply.status_code == 400
        assert error_of(reply)["param"] == "input"
        if isinstance(text, str) and text != "absent":
            assert error_of(reply)["code"] == "empty_input"
    assert server.running.processes()[0].device_steps == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speed", 0.2),
        ("speed", 4.1),
        ("speed", "fast"),
        ("response_format", "ogg"),
        ("stream_format", "events"),
        ("stream", "yes"),
        ("sample_rate", 11_000),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 10**30),
        ("seed", 1.5),
        ("stream", 1),
        ("seed", "7"),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_k", -1),
        ("repetition_penalty", 0),
        ("max_new_tokens", 1),
        ("voice", "no_such_voice"),
        ("voice", {"id": "no_such_voice"}),
        ("voice", {"name": "ryan"}),
        ("voice", 3),
        ("language", "klingon"),
        ("instructions", "x" * 5000),
        ("input", "x" * 20_001),
    ],
)
async def test_wrong_values_name_their_field(http: httpx.AsyncClient, field: str, value: Any) -> None:
    reply = await http.post(SPEECH, json={**TEXT, field: value})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == field


async def test_allowed_values_are_told(http: httpx.AsyncClient) -> None:
    message = error_of(await http.post(SPEECH, json={**TEXT, "response_format": "ogg"}))["message"]
    assert "mp3, opus, aac, flac, wav, pcm" in message
    assert "ryan" in error_of(await http.post(SPEECH, json={**TEXT, "voice": "nobody"}))["message"]


async def test_events_are_a_stream(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(SPEECH, json={**TEXT, "stream_format": "sse", "stream": False}))
    assert "`stream_format`" in error["message"]
    assert error["param"] == "stream"


async def test_opus_has_its_own_rates(http: httpx.AsyncClient) -> None:
    reply = await http.post(SPEECH, json={**TEXT, "response_format": "opus", "sample_rate": 44100})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "sample_rate"


@pytest.mark.parametrize("name", ["whisper-1", "no-such-org/no-such-model", "", "embedded/", "../x"])
async def test_unknown_models_are_no_downloads(http: httpx.AsyncClient, name: str) -> None:
    """O13: answered at once. That no socket is opened is seen to by the guard of the test session."""
    with anyio.fail_after(2):
        reply = await http.post(SPEECH, json={**TEXT, "model": name})
    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"


@pytest.mark.parametrize("name", ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "embedded", None])
async def test_known_models_answer(http: httpx.AsyncClient, name: str | None) -> None:
    reply = await http.post(SPEECH, json={**TEXT, "model": name, "response_format": "pcm"})
    assert reply.status_code == 200


async def test_a_refusal_is_the_same_in_every_form(http: httpx.AsyncClient) -> None:
    """O14, before the first byte. The language is refused by a stage, voice and model by the edge."""
    for wrong in ({"voice": "nobody"}, {"model": "nothing"}, {"language": "klingon"}):
        seen: set[tuple[int, str]] = set()
        for name in ("wav", "pcm", "mp3"):
            for form in ({"stream": False}, {"stream": True}, {"stream_format": "sse"}):
                reply = await http.post(SPEECH, json={**TEXT, **wrong, "response_format": name, **form})
                seen.add((reply.status_code, reply.text))
        assert len(seen) == 1
        assert seen.pop()[0] in (400, 404)


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b'{"input": "Hi.', "application/json", 400),
        (b'["Hi."]', "application/json", 400),
        (b'"Hi."', "application/json", 400),
        (b"", "application/json", 400),
        (b'{"input": "a\xffb"}', "application/json", 400),
        (b'{"input": "\\ud800"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"input": NaN}', "application/json", 400),
        (b"input=Hi.", "application/x-www-form-urlencoded", 415),
        (b'{"input": "Hi."}', "text/plain", 415),
    ],
)
async def test_bad_bodies(http: httpx.AsyncClient, body: bytes, content_type: str, status: int) -> None:
    """O18."""
    reply = await http.post(SPEECH, content=body, headers={"Content-Type": content_type})
    assert reply.status_code == status
    error_of(reply)


async def test_wrong_method_and_route(http: httpx.AsyncClient) -> None:
    """O17 and O18."""
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        reply = await http.request(method, SPEECH)
        assert reply.status_code == 405
        assert "POST" in reply.headers["allow"]
    for path in ("/v1/", "/v1/audio/models", "/v1/readyz", "/v1/nothing"):
        if (reply := await http.get(path)).status_code != 200:
            assert reply.status_code == 404
            assert error_of(reply)["code"] == "not_found"
    assert (await http.get("/v1/readyz")).status_code == 404


async def test_huge_bodies_are_not_read(connect: Callable[[], Any]) -> None:
    """O18: by their stated length, and in chunks without one."""
    async with connect() as connection:
        await connection.ask("POST", SPEECH, b"", {"Content-Length": str(300 * 1024 * 1024)})
        with anyio.fail_after(2):
            reply = await connection.reply()
        assert reply.status == 413
        assert json.loads(reply.body)["error"]["code"] == "body_too_large"
    async with connect() as connection:
        head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        await connection.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
        with anyio.fail_after(10):
            for _ in range(17):
                await connection.send(piece)
            assert (await connection.reply()).status == 413


@pytest.mark.parametrize("length", ["chunked", "false"])
async def test_a_huge_upload_is_cut_off_where_it_becomes_too_large(
    connect: Callable[[], Any], server: Any, length: str
) -> None:
    """O18: 300 MB with a length in pieces, and with one that says less than comes."""
    kinds = {"chunked": b"Transfer-Encoding: chunked", "false": b"Content-Length: 1000"}
    part = b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.wav"\r\n\r\n'
    memory = psutil.Process().memory_info().rss
    sent, replies = 0, list[Any]()
    async with connect() as connection, anyio.create_task_group() as tasks:

        async def reply() -> None:
            replies.append(await connection.reply())

        await connection.send(
            b"POST /v1/audio/voices HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            + kinds[length]
            + b"\r\n\r\n"
        )
        tasks.start_soon(reply)
        with anyio.fail_after(15), suppress(anyio.BrokenResourceError):
            while not replies and sent < 300:
                piece = (part if not sent else b"").ljust(1 << 20, b"\0")
                await connection.send(b"100000\r\n%b\r\n" % piece if length == "chunked" else piece)
                sent += 1
    assert 400 <= replies[0].status < 500
    assert sent < 2 * server.running.layout.api.max_body_bytes >> 20
    assert psutil.Process().memory_info().rss - memory < 50 << 20


async def test_long_text_is_refused_before_compute(http: httpx.AsyncClient, server: Any) -> None:
    before = await steps_at_rest(server.running)
    reply = await http.post(SPEECH, json={**TEXT, "input": "word " * 40_000})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "input"
    assert server.running.processes()[0].device_steps == before


async def test_half_a_header_holds_up_nobody_and_is_not_waited_for(
    connect: Callable[..., Any], serve_with: Callable[..., Any]
) -> None:
    """O18."""
    async with serve_with(idle_timeout_s=1) as server, connect(server.port) as connection:
        await connection.send(b"POST /v1/audio/speech HT")
        with anyio.fail_after(5):
            async with httpx.AsyncClient(base_url=server.url) as http:
                assert (await http.get("/health")).status_code == 200
            with pytest.raises(anyio.EndOfStream):
                await connection.stream.receive()


async def test_sdk_raises_its_own_errors(sdk: openai.AsyncOpenAI) -> None:
    create = sdk.audio.speech.create
    with pytest.raises(openai.BadRequestError, match="voice"):
        await create(model="tts-1", voice="nobody", input="Hi.")
    with pytest.raises(openai.NotFoundError, match="model"):
        await create(model="nothing", voice="alloy", input="Hi.")
    with pytest.raises(openai.BadRequestError, match="speed"):
        await create(model="tts-1", voice="alloy", input="Hi.", speed=9)
