"""Chat that speaks while it writes: SmolLM2, a tiny model and the embedded voice on one device thread."""

import base64
import io
import json
import re
import wave
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import numpy as np
import openai
import pytest

from vivavoce.api.spoken import Joined, Spoken
from vivavoce.bus.layout import Chat
from vivavoce.bus.running import Running
from vivavoce.stages.speech import encoder

from .conftest import Failing, Server, chat_layout, serving
from .test_metrics import read

CHAT = "/v1/chat/completions"
VOICE = {"voice": "ryan", "format": "pcm16", "seed": 5}
HELLO: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Say hello to me in one short sentence."}],
    "max_tokens": 8,
    "temperature": 0,
    "modalities": ["text", "audio"],
    "audio": VOICE,
}
SHORT: dict[str, Any] = {**HELLO, "model": "tiny", "audio": {**VOICE, "max_new_tokens": 6}}
LONG: dict[str, Any] = {**HELLO, "model": "tiny", "max_tokens": 2000}


@pytest.fixture(scope="session")
async def together(smollm2_folder: Path, tiny_folder: Path) -> AsyncIterator[Running]:
    both = (f"tiny={tiny_folder}", f"smollm2={smollm2_folder}")
    layout = chat_layout(tiny_folder, "together")
    async with Running(msgspec.structs.replace(layout, chat=Chat(models=both))) as running:
        yield running


@pytest.fixture(scope="session")
async def spoken_server(together: Running) -> AsyncIterator[Server]:
    async with serving(together) as made:
        yield made


@pytest.fixture
async def both(spoken_server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=spoken_server.url, timeout=60) as client:
        yield client


@pytest.fixture
def opened(together: Running, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that the pipelines get."""
    names: list[str] = []
    attach = together.client.attach

    def noted(name: str, request: Any) -> None:
        names.append(name)
        attach(name, request)

    monkeypatch.setattr(together.client, "attach", noted)
    return names


async def freed(running: Running, http: httpx.AsyncClient) -> None:
    """Until no stage holds a request and no place is taken."""
    with anyio.fail_after(15):
        while (
            any(running.processes()[0].active.values())
            or (await http.get("/health")).json()["active_requests"]
        ):
            await anyio.lowlevel.checkpoint()


async def counted(http: httpx.AsyncClient, before: dict[str, float]) -> dict[tuple[str, str], float]:
    """The requests since, by route and ending."""
    pattern = re.compile(r'vivavoce_requests_total{ending="(\w+)",route="(\w+)"}')
    grown = {name: value - before.get(name, 0.0) for name, value in (await read(http)).items()}
    found = {match: value for name, value in grown.items() if value and (match := pattern.fullmatch(name))}
    return {(match[2], match[1]): value for match, value in found.items()}


def parsed(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def deltas_of(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await http.post(CHAT, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    choices = [choice for chunk in parsed(answer.text) for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["delta"] == {}
    return [choice["delta"] for choice in choices]


def joined(deltas: list[dict[str, Any]], part: str) -> str:
    return "".join(delta["audio"].get(part, "") for delta in deltas if "audio" in delta)


def pcm_of(deltas: list[dict[str, Any]]) -> bytes:
    pieces = [delta["audio"]["data"] for delta in deltas if "data" in delta.get("audio", {})]
    audio = b"".join(map(base64.b64decode, pieces))
    assert base64.b64decode("".join(pieces), validate=True) == audio
    return audio


async def whole_of(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_one_stream_of_text_and_voice(
    both: httpx.AsyncClient, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Spoken] = []
    arrival = Spoken._arrival  # pyright: ignore[reportPrivateUsage]

    async def counted(spoken: Spoken) -> None:
        waits.append(spoken)
        await arrival(spoken)

    monkeypatch.setattr(Spoken, "_arrival", counted)
    deltas = await deltas_of(both, HELLO)
    assert len(waits) <= 2 * len(deltas)  # it waits for what comes, and does not poll
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == joined(deltas, "transcript") != ""
    named = [delta["audio"]["id"] for delta in deltas if "id" in delta.get("audio", {})]
    assert len(named) == 1
    assert deltas[-2]["audio"].keys() == {"expires_at"}
    assert sum(name.endswith("-voice") for name in opened) == 1

    plain = {
        "input": text,
        "voice": "ryan",
        "seed": 5,
        "response_format": "pcm",
        "non_streaming_mode": False,
        "stream": False,
    }
    whole = (await both.post("/v1/audio/speech", json=plain)).content
    # The same codes. Arriving text is decoded frame by frame, which may round a last bit differently.
    apart = np.frombuffer(pcm_of(deltas), "<i2").astype(int) - np.frombuffer(whole, "<i2")
    assert np.abs(apart).max() <= 1

    message = (await whole_of(both, HELLO))["choices"][0]["message"]
    assert message["content"] == message["audio"]["transcript"] == text
    assert base64.b64decode(message["audio"]["data"]) == pcm_of(deltas)


async def test_a_seed_below_zero_is_one(both: httpx.AsyncClient) -> None:
    ask: Any = {**HELLO, "seed": -7, "audio": {"voice": "ryan", "format": "pcm16"}}
    first, second = [(await whole_of(both, ask))["choices"][0]["message"]["audio"]["data"] for _ in range(2)]
    assert first == second


async def test_the_voice_begins_before_the_text_ends(both: httpx.AsyncClient) -> None:
    spoken = False
    async with both.stream("POST", CHAT, json={**LONG, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            spoken = spoken or '"data":' in line
            if spoken and '"transcript":' in line:
                return
    pytest.fail("no text came behind the first audio")


async def test_only_a_voice_where_text_is_not_asked_for(both: httpx.AsyncClient) -> None:
    body = {**SHORT, "modalities": ["audio"], "stream_options": {"include_usage": True}}
    deltas = await deltas_of(both, {**body, "stream_options": None})
    assert not any(delta.get("content") for delta in deltas)
    whole = await whole_of(both, body)
    message = whole["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"]["transcript"] == joined(deltas, "transcript")
    details = whole["usage"]["completion_tokens_details"]
    assert details["audio_tokens"] == len(base64.b64decode(message["audio"]["data"])) // 3840
    assert whole["usage"]["completion_tokens"] == 8 + details["audio_tokens"]


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "flac"])
async def test_formats(both: httpx.AsyncClient, kind: str) -> None:
    begin = {"wav": b"RIFF", "mp3": b"\xff", "opus": b"OggS", "flac": b"fLaC"}[kind]
    body = {**SHORT, "audio": {**SHORT["audio"], "format": kind}}
    audio = pcm_of(await deltas_of(both, body))
    assert audio.startswith(begin)
    data = base64.b64decode((await whole_of(both, body))["choices"][0]["message"]["audio"]["data"])
    assert data.startswith(begin)
    if kind == "wav":
        with wave.open(io.BytesIO(data)) as file:
            assert file.getnframes() * 2 == len(data) - 44
        assert audio[44:] == data[44:]


@pytest.mark.parametrize(
    ("named", "begin"),
    [
        ({}, b"RIFF"),
        ({"response_format": "flac"}, b"fLaC"),
        ({"format": "flac", "response_format": "flac"}, b"fLaC"),
        ({"format": None, "response_format": "opus"}, b"OggS"),
    ],
)
async def test_the_format_has_two_names(both: httpx.AsyncClient, named: Any, begin: bytes) -> None:
    body = {**SHORT, "audio": {"voice": "ryan", "max_new_tokens": 2, **named}}
    message = (await whole_of(both, body))["choices"][0]["message"]
    assert base64.b64decode(message["audio"]["data"]).startswith(begin)


async def test_the_sdk_reads_it(spoken_server: Server) -> None:
    url = spoken_server.url + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as sdk:
        ask: Any = {**HELLO, "stop": [","], "audio": {"voice": "alloy", "format": "pcm16"}, "seed": 1}
        whole = await sdk.chat.completions.create(**ask)
        spoken = whole.choices[0].message.audio
        assert spoken is not None
        assert base64.b64decode(spoken.data)
        assert spoken.transcript == whole.choices[0].message.content
        async with sdk.chat.completions.stream(**ask) as stream:
            async for _ in stream:
                pass
            final = (await stream.get_final_completion()).choices[0].message
        assert final.content == spoken.transcript
        assert final.audio is not None
        assert (final.audio.data, final.audio.transcript) == (spoken.data, spoken.transcript)
        # A conversation may go on from the audio's id alone.
        more: Any = [*SHORT["messages"], {"role": "assistant", "audio": {"id": final.audio.id}}]
        turn: Any = {"role": "user", "content": "And now?"}
        after = await sdk.chat.completions.create(model="tiny", messages=[*more, turn], max_tokens=1)
        spelt: Any = [*SHORT["messages"], {"role": "assistant", "content": spoken.transcript}, turn]
        told = await sdk.chat.completions.create(model="tiny", messages=spelt, max_tokens=1)
        assert after.usage is not None
        assert told.usage is not None
        assert after.usage.prompt_tokens == told.usage.prompt_tokens


async def test_calls_are_not_spoken(both: httpx.AsyncClient, opened: list[str], together: Running) -> None:
    before = await read(both)
    function = {"name": "go", "parameters": {"type": "object", "properties": {"to": {"enum": ["a", "b"]}}}}
    tool = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    whole = await whole_of(both, {**SHORT, **tool, "max_tokens": 40})
    message = whole["choices"][0]["message"]
    assert message["tool_calls"]
    assert "audio" not in message
    deltas = await deltas_of(both, {**SHORT, **tool, "max_tokens": 40})
    assert any("tool_calls" in delta for delta in deltas)
    assert not any("audio" in delta for delta in deltas)
    assert not any(name.endswith("-voice") for name in opened)
    await freed(together, both)
    assert await counted(both, before) == {("chat", "stop"): 2}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_without_words_is_the_chats_alone(
    both: httpx.AsyncClient, together: Running, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level("INFO", "vivavoce.api")
    before = await read(both)
    refused: Any = {**SHORT, "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}
    answer = await both.post(CHAT, json={**refused, "stream": stream})
    assert "messages[0].content[0]" in answer.text
    await freed(together, both)
    assert await counted(both, before) == {("chat", "error"): 1}
    stars = {**SHORT, "logit_bias": {"26": 100}, "stream": stream}
    answer = await both.post(CHAT, json=stars)
    assert answer.status_code == 200
    assert '"*' in answer.text
    await freed(together, both)
    assert await counted(both, before) == {("chat", "error"): 1, ("chat", "length"): 1}
    assert not any("chat_audio" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": None}, "audio"),
        ({"modalities": ["text"]}, "modalities"),
        ({"modalities": None}, "modalities"),
        ({"modalities": ["smell"]}, "modalities"),
        ({"n": 2}, "n"),
        ({"audio": {"voice": "nobody", "format": "pcm16"}}, "audio.voice"),
        ({"audio": {"voice": 3}}, "audio.voice"),
        ({"audio": {"voice": "ryan", "format": "au"}}, "audio.format"),
        ({"audio": {"format": "wav", "response_format": "mp3"}}, "audio.format"),
        ({"audio": {"voice": "ryan", "speed": 9}}, "audio.speed"),
        ({"audio": {"voice": "ryan", "ref_text": "Hi."}}, "audio.ref_audio"),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio_x"}}]}, "messages[0]"),
    ],
)
async def test_refusals(both: httpx.AsyncClient, together: Running, fields: Any, param: str) -> None:
    for stream in (False, True):
        answer = await both.post(CHAT, json={**SHORT, **fields, "stream": stream})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, answer.text
        if "'au'" in answer.text:
            assert "`audio.format`: Invalid enum value 'au'; allowed: wav, aac, mp3" in answer.text
    await freed(together, both)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_only_the_voice_can_refuse(
    both: httpx.AsyncClient, together: Running, stream: bool
) -> None:
    """The pipeline does, when the first word has been written."""
    body = {**SHORT, "audio": {**VOICE, "language": "klingon"}, "stream": stream}
    answer = await both.post(CHAT, json=body)
    assert answer.status_code == (200 if stream else 400)
    error = (parsed(answer.text) if stream else [answer.json()])[-1]["error"]
    assert error["param"] == "audio.language"
    await freed(together, both)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_voice_that_fails_ends_the_reply(
    both: httpx.AsyncClient, together: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    real = encoder.container
    monkeypatch.setattr(encoder, "container", lambda *a, **k: Failing(real(*a, **k)))  # type: ignore[misc]
    answer = await both.post(CHAT, json={**LONG, "stream": stream})
    assert answer.status_code == (200 if stream else 500)
    *told, last = parsed(answer.text) if stream else [answer.json()]
    assert "broke" in last["error"]["message"]
    assert last["error"]["type"] == "server_error"
    assert all("error" not in one for one in told)
    assert "[DONE]" not in answer.text
    await freed(together, both)


@pytest.mark.parametrize("after", ["nothing", '"content":"', '"data":"'])
@pytest.mark.parametrize("how", ["leaves", "deletes"])
async def test_barge_in_frees_both(both: httpx.AsyncClient, together: Running, after: str, how: str) -> None:
    heard: list[str] = []

    async def listen(reached: anyio.Event) -> None:
        headers = {"X-Request-Id": "mine"}
        async with both.stream("POST", CHAT, json={**LONG, "stream": True}, headers=headers) as answer:
            assert answer.headers["X-Request-Id"] == "mine"
            if after == "nothing":
                reached.set()
            if how == "leaves" and after == "nothing":
                return
            async for line in answer.aiter_lines():
                heard.append(line)
                if after in line:
                    reached.set()
                    if how == "leaves":
                        return

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            reached = anyio.Event()
            tasks.start_soon(listen, reached)
            await reached.wait()
            if how == "deletes":
                told = (await both.delete("/v1/requests/mine")).json()
                assert (told["id"], told["status"]) == ("mine", "cancelled")
                assert len(told["speech"]) == 1
                assert (told["speech"][0]["samples_sent"] > 0) == (after == '"data":"')
    if how == "deletes":
        assert parsed("\n".join(heard))[-1]["error"]["code"] == "cancelled"
        assert (await both.delete("/v1/requests/mine")).status_code == 404
    await freed(together, both)


async def test_a_voice_that_is_cancelled_behind_its_text(
    both: httpx.AsyncClient, together: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[Spoken] = []
    arrival, feed = Spoken._arrival, Joined.feed  # pyright: ignore[reportPrivateUsage]

    async def noted(spoken: Spoken) -> None:
        replies.append(spoken)
        await arrival(spoken)

    def cancelled(made: Joined, data: bytes) -> str:
        """While a piece is being sent, as a client's DELETE does."""
        if replies[-1].chat.over:
            exchange = replies[-1].voice._exchange  # pyright: ignore[reportPrivateUsage]
            exchange.close("The request was cancelled.", code="cancelled", status=499)
        return feed(made, data)

    monkeypatch.setattr(Spoken, "_arrival", noted)
    monkeypatch.setattr(Joined, "feed", cancelled)
    answer = await both.post(CHAT, json={**HELLO, "stream": True})
    *told, last = parsed(answer.text)
    assert last["error"]["code"] == "cancelled"
    assert "[DONE]" not in answer.text
    assert not any(
        "expires_at" in choice["delta"].get("audio", {}) for one in told for choice in one["choices"]
    )
    await freed(together, both)


async def test_a_reader_that_stands_still_holds_nobody_up(
    both: httpx.AsyncClient, together: Running, connect: Callable[..., Any], spoken_server: Server
) -> None:
    async with connect(spoken_server.port) as stalled:
        await stalled.ask("POST", CHAT, json.dumps({**LONG, "stream": True}).encode())
        assert (await stalled.head()).status == 200
        assert (await whole_of(both, SHORT))["choices"][0]["message"]["audio"]["data"]
    await freed(together, both)
