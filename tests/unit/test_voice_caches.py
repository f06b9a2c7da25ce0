"""What is kept of voices: bounded by bytes, found by the sound itself."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.bus.errors import RequestError
from vivavoce.bus.layout import Speech
from vivavoce.bus.messages import Speak
from vivavoce.configs.voice_files import VoiceFiles
from vivavoce.configs.voice_store import VoiceStore
from vivavoce.stages.cache import ByteCache
from vivavoce.stages.speech.kept import Kept
from vivavoce.stages.speech.prompt import PromptStage
from vivavoce.stages.speech.qwen3 import checkpoint
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.clone import Clone
from vivavoce.stages.speech.qwen3.code_predictor import CodePredictor
from vivavoce.stages.speech.qwen3.codec_encoder import CodecEncoder
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.reference import Listener
from vivavoce.stages.speech.qwen3.speaker_encoder import SpeakerEncoder
from vivavoce.stages.speech.qwen3.talker import Talker

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"


def test_the_longest_unused_makes_room() -> None:
    cache: ByteCache[str] = ByteCache(100)
    for name in "abcde":
        cache.put(name, name, 25)
        cache.get("a")
    assert [name for name in "abcde" if cache.get(name)] == ["a", "c", "d", "e"]
    cache.put("a", "A", 50)
    assert (cache.get("a"), cache.bytes, len(cache)) == ("A", 100, 3)
    cache.put("huge", "x", 101)
    assert cache.get("huge") is None
    assert len(cache) == 3


def test_a_bound_of_0_keeps_nothing() -> None:
    cache: ByteCache[str] = ByteCache(0)
    cache.put("a", "a", 1)
    assert (cache.get("a"), cache.bytes) == (None, 0)


@pytest.fixture(scope="module")
def model() -> Qwen3TTS:
    return load(CHECKPOINTS / "base", dtype="fp32")


def kept(files: VoiceFiles | None = None, bound: int = 1 << 20) -> Kept[Clone]:
    return PromptStage({}, nullcontext(), Speech(voice_cache_bytes=8 * bound), files=files).heard


def heard(listener: Listener, pcm: bytes, text: str | None, stored: str | None = None) -> tuple[Clone, int]:
    """The voice, and how many steps it took."""
    speak = Speak(request="r", model="base", text="", seed=0, reference=pcm, stored=stored)
    steps, count = listener.hear(speak, listener.key(pcm), text), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as done:
            return done.value, count


def noise(seed: int, samples: int = 24000) -> bytes:
    return np.random.default_rng(seed).integers(-9000, 9000, samples).astype("<i2").tobytes()


def test_a_reference_is_heard_once_and_another_clip_is_another_voice(model: Qwen3TTS) -> None:
    listener = Listener(model, 0.5, kept())
    first, steps = heard(listener, noise(1), "Said.")
    assert steps > 1
    again, none = heard(listener, noise(1), "Said otherwise.")
    assert none == 0
    assert again.codes is first.codes
    assert again.text == "Said otherwise."
    other, _ = heard(listener, noise(2), "Said.")
    assert not np.array_equal(np.array(other.x_vector), np.array(first.x_vector))
    alone, _ = heard(listener, noise(1), None)
    assert alone.codes is None
    assert np.array_equal(np.array(alone.x_vector), np.array(first.x_vector))


@pytest.mark.parametrize(("silence_s", "frames"), [(0.0, 13), (0.5, 19)])
def test_silence_follows_the_reference(model: Qwen3TTS, silence_s: float, frames: int) -> None:
    """O06: against the reference's last words in the new audio. The x-vector does not hear it."""
    voice, _ = heard(Listener(model, silence_s, kept()), noise(3), "Said.")
    assert voice.codes is not None
    assert voice.codes.shape == (frames, 16)
    plain, _ = heard(Listener(model, 0.0, kept()), noise(3), "Said.")
    assert plain.codes is not None
    assert np.array_equal(np.array(voice.codes[:12]), np.array(plain.codes[:12]))
    assert np.array_equal(np.array(voice.x_vector), np.array(plain.x_vector))


def test_an_embedding_of_another_size_is_refused(model: Qwen3TTS) -> None:
    with pytest.raises(RequestError, match="31 numbers, but this model's have 32"):
        Listener(model, 0.5, kept()).given(np.ones(31, "<f4").tobytes())


def test_what_was_heard_of_a_stored_voice_is_there_after_a_restart(model: Qwen3TTS, tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.add("Ada", noise(1))
    for text in ("Said.", None):
        first, steps = heard(Listener(model, 0.5, kept(store.files)), noise(1), text, "Ada")
        again, none = heard(Listener(model, 0.5, kept(store.files)), noise(1), text, "Ada")
        assert steps > none == 0
        assert [np.array(part).tobytes() for part in first if isinstance(part, mx.array)] == [
            np.array(part).tobytes() for part in again if isinstance(part, mx.array)
        ]
    for listener, pcm, stored in (
        (Listener(model, 0.5, kept(store.files)), noise(2), "Ada"),  # the clip has changed
        (Listener(model, 0.4, kept(store.files)), noise(1), "Ada"),
        (Listener(model, 0.5, kept(store.files, bound=0)), noise(1), "Ada"),
        (Listener(model, 0.5, kept(store.files)), noise(1), None),  # a client's own
    ):
        assert heard(listener, pcm, "Said.", stored)[1] > 0


def test_a_clip_that_was_heard_before_it_was_stored_is_kept_too(model: Qwen3TTS, tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    listener = Listener(model, 0.5, kept(store.files))
    heard(listener, noise(1), "Said.")
    store.add("Ada", noise(1))
    assert heard(listener, noise(1), "Said.", "Ada")[1] == 0
    assert heard(Listener(model, 0.5, kept(store.files)), noise(1), "Said.", "Ada")[1] == 0


def test_a_start_takes_up_what_was_kept(model: Qwen3TTS, tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.add("Ada", noise(1))
    heard(Listener(model, 0.5, kept(store.files)), noise(1), "Said.", "Ada")
    started = kept(store.files)
    started.load({"base": model})
    store.remove("Ada")
    assert heard(Listener(model, 0.5, started), noise(1), "Said.", "Ada")[1] == 0
    assert heard(Listener(model, 0.5, kept(store.files)), noise(1), "Said.", "Ada")[1] > 0


def test_a_model_never_reads_what_another_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint follows every file, a large one by a sample and its time, the dtypes and the code."""
    for file in (CHECKPOINTS / "base").rglob("*"):
        if file.is_file():
            target = tmp_path / file.relative_to(CHECKPOINTS / "base")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    found = [checkpoint.fingerprint(tmp_path, "a")]

    def change(do: Callable[[], Any]) -> None:
        do()
        found.append(checkpoint.fingerprint(tmp_path, "a"))

    assert checkpoint.fingerprint(tmp_path, "a") == found[0] != checkpoint.fingerprint(tmp_path, "b")
    change(lambda: weights.write_bytes(weights.read_bytes()[:-1] + b"\1"))
    change(lambda: (tmp_path / "config.json").write_text("{}"))
    change(lambda: monkeypatch.setattr(checkpoint, "WHOLE", 1000))
    change(lambda: os.utime(weights, ns=(1, 1)))
    change(lambda: monkeypatch.setattr(checkpoint, "__file__", str(tmp_path / "code" / "x.py")))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("length", [40, 64, 70])
def test_resuming_differs_from_one_pass_by_rounding_only(model: Qwen3TTS, length: int) -> None:
    rows = mx.array(np.random.default_rng(4).normal(size=(1, 90, 32)).astype(np.float32))
    state, _, hidden = model.talker.start(rows, model.sampling, 5)
    prefix = model.talker.prefix(rows[:, :length])
    found = [model.talker.resume(prefix, rows[:, length:], model.sampling, 5) for _ in range(2)]
    for resumed, _, other in found:
        np.testing.assert_allclose(np.array(other), np.array(hidden), atol=1e-4)
        assert resumed.filled == state.filled == 90
        for one, two in zip(resumed.cache, state.cache, strict=True):
            np.testing.assert_allclose(_filled(one), _filled(two), atol=1e-4)
    assert np.array_equal(np.array(found[0][2]), np.array(found[1][2]))


def _filled(cache: mx.array) -> Any:
    return np.array(cache[:, :, :90])


def test_a_base_model_starts_with_everything_warm_that_a_clone_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first clone compiles nothing: each of its functions has run before."""
    ran: set[str] = set()
    needed = [
        (SpeakerEncoder, "embed"),
        (CodecEncoder, "encode"),
        (CodePredictor, "embed"),
        (Talker, "prefix"),
        (Talker, "resume"),
    ]
    for owner, name in needed:
        original, label = getattr(owner, name), f"{owner.__name__}.{name}"

        def noted(*given: Any, _original: Any = original, _label: str = label, **named: Any) -> Any:
            ran.add(_label)
            return _original(*given, **named)

        monkeypatch.setattr(owner, name, noted)
    load(CHECKPOINTS / "base", dtype="fp32").warm_up()
    assert ran == {f"{owner.__name__}.{name}" for owner, name in needed}
