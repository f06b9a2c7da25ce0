"""One test for each way in which another port departs from the official code; ours must not.

Where a row is held by golden numbers already, the test here is the shortest that would fail.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from vivavoce.bus.errors import RequestError
from vivavoce.bus.messages import Speak
from vivavoce.stages.speech.family import check
from vivavoce.stages.speech.prompt import PromptStage
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.clone import Clone, build_clone
from vivavoce.stages.speech.qwen3.codec_encoder import CodecEncoder
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.ops import gelu, rotary
from vivavoce.stages.speech.qwen3.prompt import build, resolve_language
from vivavoce.stages.speech.qwen3.sampling import Sampling, choose, controls, kept
from vivavoce.stages.speech.qwen3.speaker_encoder import SpeakerEncoder

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
TEXT = "Hello, world!"


@pytest.fixture(scope="module")
def custom(checkpoint: Checkpoint) -> Qwen3TTS:
    return load(checkpoint("custom"), dtype="fp32")


@pytest.fixture(scope="module")
def base(checkpoint: Checkpoint) -> Qwen3TTS:
    return load(checkpoint("base"), dtype="fp32")


def _encoders(base: Qwen3TTS) -> tuple[SpeakerEncoder, CodecEncoder]:
    assert base.speaker_encoder is not None
    assert base.codec_encoder is not None
    return base.speaker_encoder, base.codec_encoder


def _tail(base: Qwen3TTS, codes: Any) -> Any:
    return np.array(base.codec.decode(mx.array(codes.astype(np.int32))[None]))[0, -1920:]


def test_the_decoder_sees_72_frames(base: Qwen3TTS) -> None:
    """What is further back than 2 layers of 71 frames and the convolutions' 12 cannot be heard."""
    codes = np.random.default_rng(0).integers(0, 2048, (200, 16))
    other = codes.copy()
    other[:30] = 0
    np.testing.assert_allclose(_tail(base, codes), _tail(base, other), atol=1e-6)
    other[100:150] = 0
    assert np.abs(_tail(base, codes) - _tail(base, other)).max() > 1e-6


def test_no_seam_every_15_frames(base: Qwen3TTS) -> None:
    codes = mx.array(np.random.default_rng(1).integers(0, 2048, (1, 40, 16)), mx.int32)
    whole, _ = base.codec.step(codes, base.codec.start())
    # To the last bit of a sample; how products of other shapes round depends on the machine's BLAS and threads.
    np.testing.assert_allclose(np.array(base.codec.decode(codes)), np.array(whole), rtol=0, atol=2**-15)


def test_a_clone_does_not_start_cold(base: Qwen3TTS, golden: Golden) -> None:
    reference = mx.array(golden("base", "encoders")["three.codes"].astype(np.int32))
    new = mx.array(np.random.default_rng(2).integers(0, 2048, (1, 4, 16)), mx.int32)
    whole = base.codec.decode(mx.concatenate([reference[None], new], axis=1))[:, -4 * 1920 :]
    warm, _ = base.codec.step(new, base.codec.after(reference))
    cold, _ = base.codec.step(new, base.codec.start())
    np.testing.assert_allclose(np.array(warm), np.array(whole), atol=1e-5)
    assert np.abs(np.array(cold) - np.array(whole)).max() > 1e-4


def test_code_0_is_a_frame_like_any_other(base: Qwen3TTS) -> None:
    assert base.codec.decode(mx.zeros((1, 5, 16), mx.int32)).shape == (1, 5 * 1920)


@pytest.mark.parametrize(("frame", "allowed"), [(0, False), (1, False), (2, True)])
def test_two_frames_at_least(custom: Qwen3TTS, frame: int, allowed: bool) -> None:
    row = _admissible(custom, mx.zeros((1, 3072)), [], frame)
    assert np.isfinite(row[2150]) == allowed
    assert not np.isfinite(np.delete(row[2048:], 2150 - 2048)).any()


def test_the_penalty_remembers_everything(custom: Qwen3TTS) -> None:
    """Far more than 64 codes back."""
    row = _admissible(custom, mx.ones((1, 3072)), list(range(200)), 300)
    assert np.allclose(row[:200], 1 / 1.05)
    assert row[200] == 1


def test_clones_have_no_penalty_of_their_own(base: Qwen3TTS) -> None:
    assert base.sampling.repetition_penalty == pytest.approx(1.05)


def test_the_predictor_has_its_own_settings(custom: Qwen3TTS) -> None:
    assert custom.sub_sampling.repetition_penalty == 1.0
    assert (custom.sub_sampling.do_sample, custom.sub_sampling.top_k) == (True, 50)


def test_sampling_is_in_float32(checkpoint: Checkpoint) -> None:
    model = load(checkpoint("custom06"), dtype="bf16")
    assert model.talker.first.logits(mx.zeros((1, 32), mx.bfloat16)).dtype == mx.float32


def test_top_k_keeps_ties() -> None:
    logits, control = mx.array([[3.0, 2.0, 2.0, 2.0, 1.0]]), controls(Sampling(temperature=1.0, top_k=2), 5)
    noise = np.eye(5, dtype=np.float32) * 10
    drawn = [choose(logits, mx.array(row), control, False).item() for row in noise]
    assert drawn == [0, 1, 2, 3, 0]


def test_the_processors_come_in_the_official_order(custom: Qwen3TTS) -> None:
    """Penalty and suppression before top-k, the temperature before top-p."""
    logits = np.full((1, 3072), -9.0, np.float32)
    logits[0, [5, 6, 2500]] = 3.0, 2.9, 9.0
    row = _admissible(custom, mx.array(logits), [5], 3)
    one = controls(Sampling(top_k=1), 3072)
    assert np.isfinite(np.array(kept(mx.array(row[None]), one, False))[0]).nonzero()[0].tolist() == [6]
    three = mx.log(mx.array([[0.6, 0.3, 0.1]]))
    for temperature, left in ((1.0, 2), (0.5, 1)):
        control = controls(Sampling(temperature=temperature, top_k=0, top_p=0.7), 3)
        assert np.isfinite(np.array(kept(three, control, True))).sum() == left


def test_three_equal_position_axes_are_one_plain_rotation() -> None:
    """Sections of 24, 20 and 20 frequencies, interleaved, each turned by its own axis."""
    frequencies = 1e6 ** -(np.arange(0, 128, 2) / 128)
    angles = np.stack([np.arange(40)[:, None] * frequencies] * 3)
    mixed = angles[0].copy()
    for axis in (1, 2):
        mixed[:, axis : 3 * 20 : 3] = angles[axis][:, axis : 3 * 20 : 3]
    cos, sin = rotary(mx.arange(40), 128, 1e6)
    np.testing.assert_allclose(np.array(cos)[:, 0, 0], np.cos(mixed), atol=1e-5)
    np.testing.assert_allclose(np.array(sin)[:, 0, 1], np.sin(mixed), atol=1e-5)


def test_nothing_is_padded_so_fp16_gives_numbers(checkpoint: Checkpoint) -> None:
    model = load(checkpoint("custom06"), dtype="fp16")
    prompts = [
        build(model, text, voice="ryan", language=None, instructions=None) for text in ("Hi.", TEXT * 3)
    ]
    started = [model.talker.start(prompt.prefill, model.sampling, 1) for prompt in prompts]
    rows = [mx.zeros((1, 1, 32), mx.float16)] * 2
    stepped = model.talker.steps([state for state, _, _ in started], rows, rows)
    for _, _, hidden in (*started, *stepped):
        assert hidden.dtype == mx.float16
        assert np.isfinite(np.array(hidden)).all()


def test_the_codec_computes_in_float32_by_the_official_formulas(
    checkpoint: Checkpoint, golden: Golden
) -> None:
    """SnakeBeta, ConvNeXt and what is cut off transposed convolutions; the talker's dtype does not matter."""
    stored, codec = golden("custom06", "codec"), load(checkpoint("custom06"), dtype="bf16").codec
    assert {part.dtype for part in (*codec.start().tails, *codec.start().cache)} == {mx.float32}
    pcm = codec.decode(mx.array(stored["codes"][:4].astype(np.int32))[None])
    np.testing.assert_allclose(np.array(pcm)[0], stored["pcm_0_4"], atol=1e-4)


def test_presets_and_designs_have_the_full_text_layout_and_clones_the_streaming_one(
    custom: Qwen3TTS, base: Qwen3TTS
) -> None:
    stage = PromptStage({"custom": custom, "base": base}, nullcontext())
    speak = Speak(request="r", model="base", text=TEXT, seed=0)
    full = build(custom, TEXT, voice="ryan", language=None, instructions=None, full_text=True)
    made = stage.rows(msgspec.structs.replace(speak, model="custom", voice="ryan"), custom, None, TEXT)
    assert np.array_equal(np.array(made.prefill), np.array(full.prefill))
    clone = Clone(mx.ones(32), mx.zeros((20, 16), mx.int32), "Said.")
    streaming = build_clone(base, TEXT, clone, language=None, layout="streaming")
    made = stage.rows(speak, base, clone, TEXT)
    assert np.array_equal(np.array(made.prefill), np.array(streaming.prefill))


def test_an_unknown_language_is_an_error(custom: Qwen3TTS) -> None:
    with pytest.raises(RequestError):
        resolve_language(custom, "a", "ryan")


@pytest.mark.parametrize("language", [None, "auto", "Chinese", "zh"])
def test_dialect_speakers_keep_their_dialect(custom: Qwen3TTS, language: str | None) -> None:
    assert resolve_language(custom, language, "eric") == 2062
    assert resolve_language(custom, language, "dylan") == 2074


def test_an_unknown_voice_is_an_error(custom: Qwen3TTS) -> None:
    with pytest.raises(RequestError):
        build(custom, TEXT, voice="nobody", language=None, instructions=None)


def test_instructions_on_the_small_model_are_refused_and_never_part_of_the_prompt(
    checkpoint: Checkpoint,
) -> None:
    model = load(checkpoint("custom06"), dtype="fp32")
    speak = Speak(request="r", model="m", text=TEXT, seed=0, voice="ryan", instructions="Sad.")
    with pytest.raises(RequestError):
        check({"m": model}, speak)
    plain, told = (
        build(model, TEXT, voice="ryan", language=None, instructions=words) for words in (None, "Sad.")
    )
    assert np.array_equal(np.array(plain.prefill), np.array(told.prefill))


def test_the_hann_window_is_periodic(base: Qwen3TTS, golden: Golden) -> None:
    """A symmetric one is off by 0.0135."""
    encoder, stored = _encoders(base)[0], golden("base", "encoders")
    mel = encoder.mel(stored["clip"][:24000].astype(np.float32) / 32768)
    assert np.abs(mel - stored["one.mel"]).max() < 1e-4


def test_the_gelu_is_exact() -> None:
    """The tanh approximation is off by 4.7e-4."""
    x = np.linspace(-6, 6, 10_001, dtype=np.float32)
    exact = [value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    np.testing.assert_allclose(np.array(gelu(mx.array(x))), exact, atol=2e-6)


def test_the_encoder_sees_all_before(base: Qwen3TTS, golden: Golden) -> None:
    encoder, stored = _encoders(base)[1], golden("base", "encoders")
    codes = np.array(encoder(mx.array(stored["clip"].astype(np.float32) / 32768)))
    assert codes.tolist() == stored["twelve.codes"].tolist() != stored["twelve.windowed_codes"].tolist()


def test_an_x_vector_does_not_widen_the_prompt(checkpoint: Checkpoint) -> None:
    model = load(checkpoint("base"), dtype="bf16")
    clone = Clone(mx.ones(32, mx.float32), mx.zeros((4, 16), mx.int32), "Said.")
    assert build_clone(model, TEXT, clone, language=None).prefill.dtype == mx.bfloat16


def _admissible(model: Qwen3TTS, logits: mx.array, seen: list[int], frame: int) -> Any:
    marked = np.isin(np.arange(3072), seen)
    found = model.talker.first.admissible(
        logits, mx.array(marked.tolist()), mx.array([frame], mx.int32), controls(model.sampling, 3072)
    )
    return np.array(found)[0]
