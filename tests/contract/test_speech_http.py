"""What `POST /v1/audio/speech` answers to good requests."""

import base64
import io
import json
import os
import tempfile
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import av
import httpx
import numpy as np
import openai
import psutil
import pytest

from vivavoce.bus.messages import FAMILIES

SPEECH = "/v1/audio/speech"
TEXT = {"model": "embedded", "voice": "ryan", "input": "Hi.", "seed": 7}
LABELS = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def samples(data: bytes, name: str) -> np.ndarray:
    """Decoded, as float."""
    if name == "pcm":
        return np.frombuffer(data, "<i2") / 32768
    with av.open(io.BytesIO(data), "r") as file:
        return np.concatenate([f.to_ndarray().ravel().astype(float) for f in file.decode(audio=0)])


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_bare_request_streams_mp3(connect: Callable[[], Any]) -> None:
    async with connect() as connection:
        await connection.ask("POST", SPEECH, b'{"input": "Hi there.", "model": "tts-1", "voice": "alloy"}')
        reply = await connection.reply()
    assert reply.status == 200
    assert reply.complete
    assert reply.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in reply.headers
    assert reply.headers["content-type"] == "audio/mpeg"
    assert len(reply.chunks) > 3
    assert reply.body[:2] == b"\xff\xf3"
    assert {"x-request-id", "x-seed", "server-timing"} <= set(reply.headers)
    assert reply.headers["x-accel-buffering"] == "no"
    audio_format = ("x-sample-rate", "x-channels", "x-bit-depth")
    assert tuple(reply.headers[name] for name in audio_format) == ("24000", "1", "16")


@pytest.mark.parametrize("name", LABELS)
async def test_streamed_whole_and_events_are_the_same_audio(http: httpx.AsyncClient, name: str) -> None:
    """O05 over HTTP, for every format."""
    body = {**TEXT, "response_format": name}
    streamed = await http.post(SPEECH, json=body)
    whole = await http.post(SPEECH, json={**body, "stream": False})
    sent = await http.post(SPEECH, json={**body, "stream_format": "sse"})
    assert streamed.headers["content-type"] == whole.headers["content-type"] == LABELS[name]
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert whole.headers["x-finish-reason"] == "stop"
    assert sent.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(sent.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert done["type"] == "speech.audio.done"
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == streamed.content
    assert np.array_equal(samples(streamed.content, name), samples(whole.content, name))
    frames = done["usage"]["output_tokens"]
    assert done["finish_reason"] == "stop"
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + frames
    assert done["seed"] == 7
    assert done["timing"]["frames"] == frames == int(whole.headers["x-frames"])
    if name == "pcm":
        assert len(streamed.content) == frames * 3840


async def test_wav_and_pcm_are_true_to_the_byte(connect: Callable[[], Any], http: httpx.AsyncClient) -> None:
    """O04: exact sizes in the whole, all ones in the stream, whole samples in every chunk."""
    whole = (await http.post(SPEECH, json={**TEXT, "response_format": "wav", "stream": False})).content
    assert int.from_bytes(whole[4:8], "little") == len(whole) - 8
    assert int.from_bytes(whole[40:44], "little") == len(whole) - 44
    async with connect() as connection:
        await connection.speak(**TEXT, response_format="wav")
        streamed = await connection.reply()
        await connection.speak(**TEXT, response_format="pcm")
        pcm = await connection.reply()
    assert streamed.chunks[0][:44] == streamed.body[:44]
    assert streamed.body.count(b"RIFF") == 1
    assert streamed.body[4:8] == streamed.body[40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(streamed.body)) as file:
        assert file.readframes(10**7) == whole[44:]
    assert all(len(chunk) % 2 == 0 for chunk in pcm.chunks)
    assert pcm.body == whole[44:]
    assert len(pcm.chunks[0]) == 3840


async def test_same_seed_same_bytes(http: httpx.AsyncClient) -> None:
    """O11; and a seed that the server chose gives the same again."""
    body = {"model": "embedded", "voice": "vivian", "input": "One two.", "response_format": "pcm"}
    first = await http.post(SPEECH, json=body)
    again = await http.post(SPEECH, json={**body, "seed": int(first.headers["x-seed"])})
    other = await http.post(SPEECH, json={**body, "seed": int(first.headers["x-seed"]) + 1})
    largest = await http.post(SPEECH, json={**body, "seed": 2**63 - 1})
    assert first.content == again.content
    assert first.content != other.content
    assert largest.headers["x-seed"] == str(2**63 - 1)


async def test_speed_and_rate_are_heeded(http: httpx.AsyncClient) -> None:
    """O12."""
    body = {**TEXT, "response_format": "pcm", "stream": False}
    plain = await http.post(SPEECH, json=body)
    fast = await http.post(SPEECH, json={**body, "speed": 2.0})
    slow = await http.post(SPEECH, json={**body, "speed": 0.5})
    low = await http.post(SPEECH, json={**body, "sample_rate": 8000})
    assert len(fast.content) / len(plain.content) == pytest.approx(0.5, abs=0.06)
    assert len(slow.content) / len(plain.content) == pytest.approx(2.0, abs=0.2)
    assert len(low.content) / len(plain.content) == pytest.approx(1 / 3, abs=0.01)
    assert low.headers["x-sample-rate"] == "8000"


async def test_length_is_told(http: httpx.AsyncClient) -> None:
    """O03: a request that is cut off says so."""
    body = {**TEXT, "input": "A much longer sentence that cannot end so soon.", "response_format": "pcm"}
    whole = await http.post(SPEECH, json={**body, "stream": False, "max_new_tokens": 5})
    sent = await http.post(SPEECH, json={**body, "stream_format": "sse", "max_tokens": 5})
    assert whole.headers["x-finish-reason"] == "length"
    assert len(whole.content) == 5 * 3840
    assert events(sent.text)[-1]["finish_reason"] == "length"


async def test_tiny_texts_end_or_say_that_they_were_cut(http: httpx.AsyncClient) -> None:
    """O03 (a)."""
    for text in ("1次", "好", "No."):
        body = {**TEXT, "input": text, "response_format": "pcm", "stream": False}
        reply = await http.post(SPEECH, json=body)
        assert len(reply.content) / 48_000 < 4 or reply.headers["x-finish-reason"] == "length"


async def test_slow_speech_ends_by_itself_and_in_silence(http: httpx.AsyncClient, server: Any) -> None:
    """O03 (b): other seeds, other lengths, far below the most that is made of such a text."""
    asked = {
        **{"model": "gpt-4o-mini-tts", "voice": "ryan", "response_format": "pcm", "stream": False},
        **{"instructions": "Very slow, sad and low.", "max_tokens": 4096},
    }
    speech = server.running.layout.speech
    lengths: set[int] = set()
    for seed in range(3):
        body = {**asked, "input": "Please listen until the last word.", "seed": seed}
        reply = await http.post(SPEECH, json=body)
        assert reply.headers["x-finish-reason"] == "stop"
        frames, tokens = int(reply.headers["x-frames"]), int(reply.headers["x-input-tokens"])
        assert 2 * frames < speech.frames_floor + speech.frames_per_token * tokens
        sound = np.frombuffer(reply.content, "<i2").astype(float)
        assert np.abs(sound[-7200:]).max() < np.abs(sound).max() / 4
        lengths.add(frames)
    assert len(lengths) > 1


async def test_requests_of_every_kind_leave_nothing_behind(
    http: httpx.AsyncClient, connect: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O16: no open files, none in the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    short, process = {**TEXT, "max_new_tokens": 3}, psutil.Process()

    async def round_of_all() -> None:
        ways: list[dict[str, Any]] = [
            {"stream": False},
            {"stream_format": "sse", "timeline": True, "response_format": "pcm"},
            {"speed": 2, "response_format": "opus"},
            {"input": " "},
        ]
        for fields in ways:
            await http.post(SPEECH, json={**short, **fields})
        await http.post(SPEECH, data={key: str(value) for key, value in short.items()}, files={"x": b"x"})
        async with connect() as connection:
            await connection.speak(input="A longer text, of which only the beginning is read.")
            await connection.head()
        with anyio.fail_after(10):
            while (await http.get("/health")).json()["active_requests"]:
                pass

    await round_of_all()
    first = process.num_fds()
    await round_of_all()
    with anyio.fail_after(5):
        while process.num_fds() > first:  # connections are closed a little later
            await http.get("/health")
    assert os.listdir(tmp_path) == []


async def test_sdk_streams(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="nova", input="Hi there.", response_format="opus", instructions="Calm."
    ) as reply:
        pieces = [piece async for piece in reply.iter_bytes()]
    assert len(samples(b"".join(pieces), "opus")) > 4800


async def test_sdk_voice_forms(sdk: openai.AsyncOpenAI) -> None:
    def ask(voice: Any) -> Any:
        return sdk.audio.speech.create(
            model="tts-1", voice=voice, input="Hi.", response_format="pcm", extra_body={"seed": 1}
        )

    plain, upper, by_id, preset = [
        (await ask(v)).content for v in ("alloy", "Alloy", {"id": "ALLOY"}, "Vivian")
    ]
    assert plain == upper == by_id == preset


async def test_unknown_fields_and_nulls_are_taken(http: httpx.AsyncClient) -> None:
    body = {**TEXT, "backend": "x", "instructions": None, "speed": None, "seed": None, "stream": None}
    assert (await http.post(SPEECH, json=body)).status_code == 200


async def test_timing_is_plausible(http: httpx.AsyncClient) -> None:
    sent = await http.post(SPEECH, json={**TEXT, "stream_format": "sse", "response_format": "pcm"})
    timing = events(sent.text)[-1]["timing"]
    assert 0 <= timing["queue_s"] < timing["ttfa_s"] <= timing["ttfa_audible_s"]
    assert timing["audio_s"] == pytest.approx(timing["frames"] * 0.08)
    assert timing["rtf"] > 0
    assert timing["underrun_s"] >= 0
    assert list(timing["stages"]) == [*FAMILIES["speech"]]
    assert all(seconds > 0 for seconds in timing["stages"].values())
    whole = await http.post(SPEECH, json={**TEXT, "stream": False})
    assert all(f"{stage};dur=" in whole.headers["server-timing"] for stage in FAMILIES["speech"])


async def test_events_tell_when_stages_handed_on_frames_if_asked(http: httpx.AsyncClient) -> None:
    body = {**TEXT, "input": "Hello there.", "stream_format": "sse", "response_format": "pcm"}
    assert not any("timeline" in event for event in events((await http.post(SPEECH, json=body)).text))
    sent = events((await http.post(SPEECH, json={**body, "timeline": True})).text)
    told = [one for event in sent for one in event["timeline"]]
    assert told == sorted(told, key=lambda one: one["at_s"])
    # The first and the last ones may come before the tap listens, and after the client has had everything.
    assert {"talker", "code_predictor", "codec_decoder", "encoder"} <= {one["stage"] for one in told}
    frames = [one["frame"] for one in told if one["sent"] == "Codes"]
    assert frames == list(range(frames[0], frames[0] + len(frames)))
    assert all(0 < one["at_s"] < 20 for one in told)


async def test_request_id_is_honoured(http: httpx.AsyncClient) -> None:
    named = await http.post(SPEECH, json=TEXT, headers={"X-Request-Id": "mine-1"})
    unnamed = await http.get("/health")
    assert named.headers["x-request-id"] == "mine-1"
    assert unnamed.headers["x-request-id"].startswith("req-")
