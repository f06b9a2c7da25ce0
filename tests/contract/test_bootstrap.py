"""What apps ask before they speak: models, voices, health, and probes for what kind of server this is."""

from typing import Any

import httpx
import openai
import pytest

OPENAI = {
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
}
PRESETS = {"serena", "vivian", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan"}


async def test_models(http: httpx.AsyncClient, sdk: openai.AsyncOpenAI) -> None:
    listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["embedded"]
    assert {"id", "object", "created", "owned_by"} <= set(listed["data"][0])
    one = await sdk.models.retrieve("embedded")
    assert one.id == "embedded"
    shown = (await http.get("/v1/models/tts-1")).json()
    assert (shown["kind"], shown["size"]) == ("custom_voice", "12M")
    assert {voice["name"] for voice in shown["voices"]} >= PRESETS
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("org/name")


async def test_voices(http: httpx.AsyncClient) -> None:
    voices = (await http.get("/v1/audio/voices")).json()["voices"]
    ids = [voice["id"] for voice in voices]
    assert set(ids) == PRESETS | OPENAI
    assert len(ids) == len(set(ids))
    assert all(voice["name"] == voice["id"] for voice in voices)
    assert (await http.get("/v1/audio/voices", params={"legacy": "true"})).json()["voices"] == ids
    by_model = (await http.get("/v1/audio/speech/voices")).json()
    assert {entry["voice_id"] for entry in by_model} == set(ids)
    assert (await http.get("/v1/audio/voices", params={"model": "nothing"})).status_code == 404


async def test_every_listed_voice_speaks(http: httpx.AsyncClient) -> None:
    """O17: cut to two frames, to be quick."""
    for voice in (await http.get("/v1/audio/voices")).json()["voices"]:
        body = {"input": "Hi.", "voice": voice["id"], "response_format": "pcm", "max_new_tokens": 2}
        reply = await http.post("/v1/audio/speech", json=body)
        assert reply.status_code == 200
        assert len(reply.content) == 2 * 3840


async def test_probes(http: httpx.AsyncClient) -> None:
    assert (await http.get("/readyz")).status_code == 200
    assert (await http.get("/v1/test")).json() == {"status": "ok"}
    assert (await http.get("/health")).text != "OK"
    assert (await http.get("/v1/readyz")).status_code == 404
    assert (await http.get("/v1/audio/models")).status_code == 404
    assert (await http.get("/v1/")).status_code == 404
    assert (await http.get("/version")).json()["version"]


async def test_health_tells_of_each_process(http: httpx.AsyncClient) -> None:
    health: dict[str, Any] = (await http.get("/health")).json()
    assert health["status"] == "ok"
    (process,) = health["processes"]
    keys = {
        "name",
        "pid",
        "state",
        "restarts",
        "stages",
        "rss_bytes",
        "device_steps",
        "last_progress_s",
        "busy_s",
        "waiting_s",
    }
    assert keys <= set(process)
    assert process["state"] == "ready"
    assert process["device_steps"] > 0
    ready = (await http.get("/ready")).json()
    assert ready["ready"] is True
    assert ready["models"] == ["embedded"]


async def test_a_dead_pipeline_is_told(
    http: httpx.AsyncClient, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.running, "_failure", "the device thread ended")
    assert (await http.get("/health")).status_code == 503
    assert (await http.get("/ready")).json()["reason"] == "the device thread ended"
