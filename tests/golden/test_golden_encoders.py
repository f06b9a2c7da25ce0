"""Speaker encoder and codec encoder against the official implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.codec_encoder import CodecEncoder
from vivavoce.stages.speech.qwen3.speaker_encoder import SpeakerEncoder

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
CLIPS = {"one": 24000, "odd": 50001, "three": 72000, "twelve": 288000}


@pytest.mark.parametrize("clip", CLIPS)
def test_speaker_encoder(clip: str, checkpoint: Checkpoint, golden: Golden) -> None:
    encoder, _, stored = _encoders(checkpoint, golden)
    samples = _samples(stored, clip)
    mel = encoder.mel(samples)
    np.testing.assert_allclose(mel[:: 1 if clip == "one" else 16], stored[f"{clip}.mel"], atol=1e-4)
    np.testing.assert_allclose(np.array(encoder(samples)), stored[f"{clip}.speaker"], atol=2e-5)


@pytest.mark.parametrize("clip", CLIPS)
def test_codec_encoder(clip: str, checkpoint: Checkpoint, golden: Golden) -> None:
    """`twelve` is longer than the attention window of the config, which the official code does not apply."""
    _, encoder, stored = _encoders(checkpoint, golden)
    samples = mx.array(_samples(stored, clip))
    np.testing.assert_allclose(np.array(encoder.rows(samples)), stored[f"{clip}.rows"], atol=5e-4)
    assert np.array(encoder(samples)).tolist() == stored[f"{clip}.codes"].tolist()


def test_embedded_encoders(checkpoint: Checkpoint, golden: Golden) -> None:
    model, stored = load(checkpoint("embedded-base"), dtype="fp32"), golden("embedded-base", "encoders")
    assert model.speaker_encoder is not None
    assert model.codec_encoder is not None
    samples = _samples(golden("base", "encoders"), "three")
    np.testing.assert_allclose(np.array(model.speaker_encoder(samples)), stored["three.speaker"], atol=2e-5)
    np.testing.assert_allclose(
        np.array(model.codec_encoder.rows(mx.array(samples))), stored["three.rows"], atol=5e-4
    )
    assert np.array(model.codec_encoder(mx.array(samples))).tolist() == stored["three.codes"].tolist()


def test_only_base_models_can_hear(checkpoint: Checkpoint) -> None:
    assert load(checkpoint("design")).speaker_encoder is None
    assert load(checkpoint("design")).codec_encoder is None


def _encoders(checkpoint: Checkpoint, golden: Golden) -> tuple[SpeakerEncoder, CodecEncoder, Any]:
    model = load(checkpoint("base"), dtype="fp32")
    assert model.speaker_encoder is not None
    assert model.codec_encoder is not None
    return model.speaker_encoder, model.codec_encoder, golden("base", "encoders")


def _samples(stored: Any, clip: str) -> Any:
    return stored["clip"][: CLIPS[clip]].astype(np.float32) / 32768
