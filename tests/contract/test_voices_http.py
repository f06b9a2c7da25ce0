"""Cloning and stored voices from outside: what is taken, what is refused, and what never leaves its folder."""

import base64
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import numpy as np
import pytest

from vivavoce.bus.running import Running

from .conftest import Server, serving
from .test_socket import Socket

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"


def wav(pitch: float = 120, seconds: float = 1.0, level: float = 6000) -> bytes:
    import wave

    time = np.arange(round(seconds * 24000)) / 24000
    tone = np.sum([np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 12)], axis=0)
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24000)
        file.writeframes(np.round(level * tone).astype("<i2").tobytes())
    return target.getvalue()


def uri(data: bytes) -> str:
    return f"data:audio/wav;base64,{base64.b64encode(data).decode()}"


def body(**fields: Any) -> dict[str, Any]:
    plain = {"input": "Hello, world!", "response_format": "pcm", "seed": 3, "max_new_tokens": 12}
    return {**plain, **fields}


CLONE = {"model": "base", "ref_audio": uri(wav()), "ref_text": "What the reference says."}


@pytest.fixture(scope="session")
async def house(family: Running) -> AsyncIterator[Server]:
    async with serving(family) as server:
        yield server


@pytest.fixture
async def http(house: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=house.url, timeout=60) as client:
        yield client


def folder(house: Server) -> Path:
    kept = house.running.layout.api.voices_folder
    assert kept is not None
    return Path(kept)


async def spoken(http: httpx.AsyncClient, **fields: Any) -> bytes:
    reply = await http.post(SPEECH, json=body(**fields))
    assert reply.status_code == 200, reply.text
    return reply.content


async def refused(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post(SPEECH, json=body(**fields))
    assert reply.status_code in (400, 404), reply.text[:300]
    return reply.json()["error"]


async def test_the_socket_takes_the_longest_reference(house: Server, connect: Callable[..., Any]) -> None:
    clone = {**CLONE, "ref_audio": uri(wav(seconds=30))}
    async with connect(house.port) as connection:
        socket = Socket(connection)
        await socket.open([])
        await socket.say("session.config", response_format="pcm", seed=3, max_new_tokens=12, **clone)
        await socket.say("input.text", text="Hello, world!")
        await socket.say("input.done")
        heard = await socket.until("session.done")
    assert any(isinstance(message, bytes) for message in heard)
    assert heard[-2]["error"] is False


@pytest.mark.parametrize("stream", [True, False])
async def test_every_way_over_http(http: httpx.AsyncClient, stream: bool) -> None:
    ways: list[dict[str, Any]] = [
        CLONE,
        {**CLONE, "x_vector_only_mode": True},
        {"model": "base", "ref_audio": base64.b64encode(wav()).decode()},
        {**CLONE, "non_streaming_mode": True},
        {"model": "base", "speaker_embedding": [0.1] * 32, "language": "de"},
        {"model": "design", "instructions": "A calm old man.", "voice": "alloy"},
        {"model": "custom", "voice": "eric", "instructions": "Sad.", "non_streaming_mode": False},
        {"model": "custom06", "voice": "ryan"},
    ]
    found = [await spoken(http, stream=stream, **way) for way in ways]
    assert all(found)
    assert found[1] == found[2]  # without a transcript, and with one that is not to be used
    assert len(set(found)) == len(found) - 1


async def test_task_type_chooses_and_is_checked(http: httpx.AsyncClient) -> None:
    assert await spoken(http, task_type="Base", **{**CLONE, "model": None}) == await spoken(http, **CLONE)
    assert await spoken(http, **{**CLONE, "model": None}) == await spoken(http, **CLONE)
    assert await spoken(http, task_type="VoiceDesign", instructions="A calm old man.")
    error = await refused(http, task_type="Base", model="custom", voice="ryan")
    assert error["param"] == "task_type"
    assert "base" in error["message"]
    assert (await refused(http, task_type="Clone", **CLONE))["param"] == "task_type"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "base", "voice": "Chelsie"}, "voice"),
        ({"model": "base", "voice": "alloy"}, "ref_audio"),
        ({"model": "custom", "voice": "ryan", "ref_audio": CLONE["ref_audio"]}, "ref_audio"),
        ({"model": "design", "voice": "alloy"}, "instructions"),
        ({"model": "custom06", "voice": "ryan", "instructions": "Sad."}, "instructions"),
        ({"model": "base", "ref_text": "Alone."}, "ref_audio"),
        ({"model": "base", "ref_audio": CLONE["ref_audio"], "x_vector_only_mode": False}, "ref_text"),
        ({"model": "custom", "voice": "ryan", "x_vector_only_mode": True}, "x_vector_only_mode"),
        ({**CLONE, "speaker_embedding": [0.1] * 32}, "speaker_embedding"),
        ({"model": "base", "speaker_embedding": [0.1] * 31}, "speaker_embedding"),
        ({"model": "base", "speaker_embedding": ["a"]}, "speaker_embedding"),
        ({"model": "base", "ref_audio": "https://example.org/a.wav"}, "ref_audio"),
        ({"model": "base", "ref_audio": uri(wav(seconds=0.2))}, "ref_audio"),
        ({"model": "base", "ref_audio": uri(wav(seconds=60))}, "ref_audio"),
        ({"model": "base", "ref_audio": uri(wav(level=0))}, "ref_audio"),
        ({"model": "base", "ref_audio": uri(b"")}, "ref_audio"),
        ({"model": "base", "ref_audio": uri(bytes(range(256)) * 9)}, "ref_audio"),
    ],
)
async def test_what_cannot_be_served_is_a_400_that_names_the_field(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    assert (await refused(http, **fields))["param"] == param


async def test_a_voice_without_description_is_refused_alike_in_every_form(http: httpx.AsyncClient) -> None:
    """O14."""
    errors: list[dict[str, Any]] = []
    for name in ("wav", "pcm", "mp3"):
        for form in ({"stream": False}, {"stream": True}, {"stream_format": "sse"}):
            reply = await http.post(SPEECH, json=body(model="design", **form, response_format=name))
            assert (reply.status_code, reply.headers["content-type"]) == (400, "application/json")
            errors.append(reply.json())
    assert errors == [errors[0]] * 9
    assert errors[0]["error"]["param"] == "instructions"


async def test_a_voice_is_stored_used_listed_and_forgotten(http: httpx.AsyncClient, house: Server) -> None:
    form = {"name": "Ada", "ref_text": CLONE["ref_text"], "consent": "mine", "description": "A test"}
    reply = await http.post(VOICES, data=form, files={"audio_sample": ("../x.wav", wav())})
    assert reply.status_code == 200, reply.text
    made = reply.json()
    assert made["models"] == ["base"]
    assert (made["object"], made["id"], made["name"]) == ("audio.voice", "Ada", "Ada")
    assert time.time() - 60 < made["created_at"] <= time.time()
    listed = (await http.get(VOICES)).json()["voices"]
    (ada,) = [voice for voice in listed if voice["type"] == "stored"]
    assert (ada["id"], ada["seconds"], ada["consent"]) == ("Ada", 1.0, "mine")
    assert "Ada" in (await http.get(VOICES, params={"legacy": "true"})).json()["voices"]
    want = await spoken(http, **CLONE)
    assert await spoken(http, model="base", voice="Ada") == want
    assert await spoken(http, voice="ada") == want  # the model that can is chosen
    assert "base" in (await refused(http, model="custom", voice="ada"))["message"]
    assert (await http.post(VOICES, data=form, files={"audio_sample": wav()})).status_code == 409
    await _a_changed_clip_is_another_speaker(http, want)
    assert (await http.delete(f"{VOICES}/ada")).json()["deleted"]
    assert (await http.delete(f"{VOICES}/ada")).status_code == 404
    assert (await refused(http, model="base", voice="Ada"))["param"] == "voice"
    assert list(folder(house).iterdir()) == []


async def _a_changed_clip_is_another_speaker(http: httpx.AsyncClient, before: bytes) -> None:
    await http.delete(f"{VOICES}/Ada")
    again = {"name": "Ada", "ref_audio": uri(wav(pitch=300)), "ref_text": CLONE["ref_text"]}
    assert (await http.post(VOICES, json=again)).status_code == 200
    assert await spoken(http, voice="Ada") != before


@pytest.mark.parametrize("name", ["ryan", "Alloy", "no/name", "../up", "a" * 65, ""])
async def test_names_that_are_taken_or_none(http: httpx.AsyncClient, name: str) -> None:
    reply = await http.post(VOICES, data={"name": name}, files={"audio_sample": wav()})
    assert reply.status_code in (400, 409)
    assert reply.json()["error"]["param"] == "name"


async def test_an_upload_that_nothing_can_use_is_refused(server: Server) -> None:
    """The embedded voice alone imitates nobody."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        reply = await client.post(VOICES, data={"name": "ada"}, files={"audio_sample": wav()})
        assert reply.status_code == 400
        assert "Base" in reply.json()["error"]["message"]


async def test_pages_from_elsewhere_store_nothing(http: httpx.AsyncClient) -> None:
    reply = await http.post(
        VOICES,
        data={"name": "eve"},
        files={"audio_sample": wav()},
        headers={"Origin": "https://evil.example"},
    )
    assert reply.status_code == 403


async def test_no_field_reaches_a_file(http: httpx.AsyncClient, house: Server) -> None:
    """O09: a canary beside the folder, and a neighbour that is not there, are told from one another nowhere."""
    canary = folder(house).parent / "canary.voice"
    canary.write_bytes(wav())
    before = sorted(folder(house).parent.rglob("*"))
    for made in _PATHS:
        answers: set[str] = set()
        for stem in ("canary", "absent"):
            path = made(folder(house).parent / f"{stem}.voice", stem)
            texts: list[str] = []
            for fields in ({"model": "base", "voice": path}, {"model": "base", "ref_audio": path}):
                reply = await http.post(SPEECH, json=body(**fields))
                assert reply.status_code in (400, 404)
                texts.append(reply.text.replace(json.dumps(path)[1:-1], "").replace(stem, ""))
            reply = await http.post(VOICES, json={"name": path, "ref_audio": uri(wav())})
            assert reply.status_code == 400
            texts.append(reply.text)
            reply = await http.delete(f"{VOICES}/{quote(path, safe='')}")
            assert reply.status_code in (308, 400, 404, 405)
            texts.append(str(reply.status_code))
            answers.add("|".join(texts).replace("canary", "").replace("absent", ""))
        assert len(answers) == 1, answers
        assert str(folder(house).parent) not in next(iter(answers))
    assert sorted(folder(house).parent.rglob("*")) == before
    assert canary.read_bytes() == wav()


_PATHS: list[Callable[[Path, str], str]] = [
    lambda path, stem: f"../{stem}",
    lambda path, stem: f"../{stem}.voice",
    lambda path, stem: str(path),
    lambda path, stem: path.as_uri(),
    lambda path, stem: f"..\\{stem}",
    lambda path, stem: f"%2e%2e%2f{stem}",
    lambda path, stem: f"{stem}\0.voice",
    lambda path, stem: f"{stem}{'a' * 5000}",
]


async def test_clones_side_by_side_over_http(http: httpx.AsyncClient) -> None:
    """O08: two references in turn, eight at once."""
    wanted = [{**CLONE, "ref_audio": uri(wav(pitch=(110, 290)[i % 2])), "seed": 5} for i in range(8)]
    alone = [await spoken(http, **one) for one in wanted[:2]]
    together: dict[int, bytes] = {}

    async def one(index: int) -> None:
        together[index] = await spoken(http, **wanted[index])

    async with anyio.create_task_group() as tasks:
        for index in range(8):
            tasks.start_soon(one, index)
    assert alone[0] != alone[1]
    assert [together[i] for i in range(8)] == alone * 4


async def test_a_batch_and_events_in_a_cloned_voice(http: httpx.AsyncClient) -> None:
    want = await spoken(http, **CLONE)
    reply = await http.post(
        f"{SPEECH}/batch", json={**CLONE, **body(), "input": None, "items": [{"input": "Hello, world!"}]}
    )
    assert base64.b64decode(reply.json()["results"][0]["audio_data"]) == want
    reply = await http.post(SPEECH, json=body(**CLONE, stream_format="sse"))
    pieces = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert b"".join(base64.b64decode(piece["audio"]) for piece in pieces if "audio" in piece) == want


async def test_a_form_is_as_good_as_json(http: httpx.AsyncClient) -> None:
    """Numbers and truth values are text in it; what is left empty is as if it were absent."""
    form = {**{name: str(value) for name, value in body().items()}, "model": "base", "speed": ""}
    clone = {"ref_text": str(CLONE["ref_text"]), "x_vector_only_mode": "false"}
    reply = await http.post(SPEECH, data={**form, **clone}, files={"ref_audio": ("a/b.wav", wav())})
    assert reply.content == await spoken(http, **CLONE), reply.text[:300]
    numbers = [0.1] * 32
    reply = await http.post(SPEECH, data=form, files={"speaker_embedding": (None, json.dumps(numbers))})
    assert reply.content == await spoken(http, model="base", speaker_embedding=numbers)
    long = {"ref_audio": uri(wav(seconds=30))}
    reply = await http.post(SPEECH, data={**form, **long}, files={"x": b""})
    assert reply.content == await spoken(http, model="base", **long), reply.text[:300]


@pytest.mark.parametrize(
    ("fields", "recording", "param"),
    [
        ({"input": ""}, wav(), "input"),
        ({"speed": "fast"}, wav(), "speed"),
        ({"seed": "1.5"}, wav(), "seed"),
        ({"stream": "maybe"}, wav(), "stream"),
        ({"speaker_embedding": "[1, "}, wav(), "speaker_embedding"),
        ({"speaker_embedding": "[" * 100_000}, wav(), "speaker_embedding"),
        ({"input": b"caf\xe9"}, wav(), "input"),
        ({}, b"", "ref_audio"),
        ({}, b"no sound", "ref_audio"),
        ({"voice": "ryan", "model": "custom"}, wav(), "ref_audio"),
    ],
)
async def test_a_wrong_form_is_refused_by_its_field(
    http: httpx.AsyncClient, fields: dict[str, Any], recording: bytes, param: str
) -> None:
    form = {"input": "Hi.", "model": "base", **fields}
    reply = await http.post(SPEECH, data=form, files={"ref_audio": recording})
    assert reply.status_code == 400, reply.text[:300]
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("given", ["", "; boundary=", "; boundary=y", "; boundary=\xfc"])
async def test_a_form_that_has_no_parts_is_told(http: httpx.AsyncClient, given: str) -> None:
    data = b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\nHi.\r\n--x--\r\n'
    headers = [(b"Content-Type", f"multipart/form-data{given}".encode("latin-1"))]
    reply = await http.post(SPEECH, content=data, headers=headers)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] == "invalid_form"
