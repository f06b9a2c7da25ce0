"""Codec decoding against the official implementation: 200 frames, well past the window, whole and in chunks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from vivavoce.stages.speech.qwen3 import checkpoint as loading
from vivavoce.stages.speech.qwen3.codec_decoder import CodecDecoder

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
Pcm = npt.NDArray[np.float64]


@pytest.mark.parametrize("name", ["custom", "custom06", "embedded"])
def test_whole_decode(name: str, checkpoint: Checkpoint, golden: Golden) -> None:
    stored = golden(name, "codec")
    codec = _codec(checkpoint(name))
    whole = _in_chunks(codec, stored["codes"], 200)
    np.testing.assert_allclose(whole[::7], stored["pcm_every_7"], atol=1e-4)
    for first, last in ((0, 4), (70, 78), (196, 200)):
        part = whole[first * codec.samples : last * codec.samples]
        np.testing.assert_allclose(part, stored[f"pcm_{first}_{last}"], atol=1e-4)
    np.testing.assert_allclose(
        np.sqrt(np.mean(whole.reshape(200, -1) ** 2, axis=1)), stored["rms"], atol=1e-5
    )


@pytest.mark.parametrize("size", [1, 2, 4, 7, 25])
@pytest.mark.parametrize("name", ["custom06", "embedded"])
def test_decode_in_chunks(name: str, size: int, checkpoint: Checkpoint, golden: Golden) -> None:
    stored = golden(name, "codec")
    pcm = _in_chunks(_codec(checkpoint(name)), stored["codes"], size)
    np.testing.assert_allclose(pcm[::7], stored["pcm_every_7"], atol=1e-4)
    np.testing.assert_allclose(pcm[: 1920 * 4], stored["pcm_0_4"], atol=1e-4)
    np.testing.assert_allclose(pcm[-1920 * 4 :], stored["pcm_196_200"], atol=1e-4)


@pytest.mark.parametrize("name", ["custom", "custom06", "design", "embedded"])
def test_audio_of_greedy_generations(name: str, checkpoint: Checkpoint, golden: Golden) -> None:
    stored = golden(name, "greedy")
    for key in [key for key in stored if key.endswith(".codes")]:
        codec = _codec(checkpoint(name))
        pcm = np.array(codec.decode(mx.array(stored[key].astype(np.int32))[None]))[0, ::7]
        np.testing.assert_allclose(pcm, stored[key.replace(".codes", ".pcm_every_7")], atol=1e-4)


def _codec(folder: Path) -> CodecDecoder:
    return loading.load(folder).codec


def _in_chunks(codec: CodecDecoder, codes: Any, size: int) -> Pcm:
    frames = mx.array(codes.astype(np.int32))[None]
    state, parts = codec.start(), list[Pcm]()
    for first in range(0, frames.shape[1], size):
        pcm, state = codec.step(frames[:, first : first + size], state)
        parts.append(np.array(pcm)[0].astype(np.float64))
    return np.concatenate(parts)
