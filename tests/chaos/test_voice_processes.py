"""The embedded voice in several processes: the same bytes, also after one of them was killed in mid-sentence."""

import os
import signal
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import anyio
import pytest

from vivavoce.bus.layout import load
from vivavoce.bus.messages import Ending, Speak
from vivavoce.bus.running import Running

_ids = count()

OWN = """
name = "own"
[[process]]
name = "front"
loop = ["api"]
[[process]]
name = "containers"
loop = ["encoder"]
[[process]]
name = "prompts"
device = ["prompt"]
[[process]]
name = "talking"
device = ["talker"]
[[process]]
name = "codes"
device = ["code_predictor"]
[[process]]
name = "codec"
device = ["codec_decoder"]
"""


async def _listen(running: Running, text: str = "Yes.") -> tuple[bytes, Ending]:
    speak = Speak(request=f"voice-{next(_ids)}", model="embedded", text=text, voice="ryan", seed=3)
    async with running.client.speak(speak) as request:
        data = b"".join([audio.data async for audio in request])
        assert request.ending is not None
        return data, request.ending


@pytest.fixture(scope="module")
async def split() -> AsyncGenerator[Running]:
    async with Running(load("split")) as running:
        yield running


async def test_split_gives_the_same_bytes(speech: Running, split: Running) -> None:
    with anyio.fail_after(60):
        data, ending = await _listen(split)
        assert ending.reason == "stop"
        assert data == (await _listen(speech))[0]


async def test_killing_the_codec_decoder(speech: Running, split: Running) -> None:
    with anyio.fail_after(120):
        expected, _ = await _listen(speech)
        codec = next(status for status in split.processes() if status.name == "codec")
        speak = Speak(
            request="killed", model="embedded", text="One two three four.", voice="ryan", seed=3, lookahead=9
        )
        async with split.client.speak(speak) as request:
            await anext(request)
            os.kill(codec.pid, signal.SIGKILL)
            assert len([audio async for audio in request]) < 16
        assert request.ending is not None
        assert request.ending.reason == "error"
        assert request.ending.failure is not None
        assert (request.ending.failure.status, request.ending.failure.code) == (503, "stage_down")
        await split.wait_served()
        assert (await _listen(split))[0] == expected


async def test_every_stage_in_a_process_of_its_own(speech: Running, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    async with Running(load(file)) as running:
        with anyio.fail_after(60):
            assert (await _listen(running))[0] == (await _listen(speech))[0]
        states = {status.name: status.state for status in running.processes()}
        assert states == dict.fromkeys(
            ("front", "containers", "prompts", "talking", "codes", "codec"), "ready"
        )
        assert all(status.rss_bytes > 0 for status in running.processes())
