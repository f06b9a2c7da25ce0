"""The trainer of the encoders, in small: what it writes is what the server reads."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "tests" / "golden" / "data" / "checkpoints" / "custom06"
sys.path.insert(0, str(ROOT))

SMALL = {"filters": 4, "hidden": 16, "heads": 1, "head": 16, "layers": 1, "inner": 16, "table": 12}
NARROW = {"channels": 8, "attention": 8, "squeeze": 4}
VOICES = (9, 19, 30)
"""of the crowd; 19 is kept for the validation"""


@pytest.fixture(scope="module")
def torch() -> Any:
    for package in ("torch", "scipy", "safetensors", "tokenizers"):
        pytest.importorskip(package)
    return importlib.import_module("torch")


@pytest.fixture(scope="module")
def made(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both encoders after two steps on made-up speech, and the base checkpoint written with them."""
    folder = tmp_path_factory.mktemp("encoders")
    speech, run, row, out, whole = (folder / name for name in ("speech", "run", "row.npy", "out", "whole"))
    for voices, place in (((0, 1, 2), "presets"), (VOICES, "speech")):
        (folder / place).mkdir()
        _write_shard(folder / place / "00-0000.npz", voices)
    from tools.voice.encoder_export import load_encoder, load_speaker
    from tools.voice.quantize import add_crowd, fit
    from tools.voice.shards import read

    shards = list(read(speech))
    quantizer = fit(list(read(folder / "presets")), 5, 1, "cpu", rounds=2)
    add_crowd(quantizer, shards)
    quantizer.save(folder / "q.npz")
    encoder = ("train_encoder", speech, folder / "q.npz", run, "--size", json.dumps(SMALL))
    speaker = ("train_speaker", speech, run, "--frames", 100, "--size", json.dumps(NARROW))
    _run(*encoder, "--batch", 2, "--frames", 10, "--steps", 1)
    _run(*encoder, "--batch", 2, "--frames", 10, "--steps", 2)
    _run(*speaker, "--steps", 2)
    np.save(row, np.random.default_rng(1).normal(size=(32, 12)).astype(np.float32))
    _run("encoder_export", run, row, SHARED, out, "--whole", whole)
    return {
        "folder": whole,
        "parts": [out, SHARED],
        "quantizer": quantizer,
        "shard": next(iter(read(speech, audio=True))),
        "encoder": load_encoder(run),
        "speaker": load_speaker(run, np.load(row)),
    }


def _run(module: str, *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *map(str, arguments)])
        importlib.import_module(f"tools.voice.{module}").main()


def _write_shard(path: Path, voices: tuple[int, ...]) -> None:
    """Arrays as synth writes them: tones of a pitch, in sentences of three voices, with spectra of few numbers."""
    rng = np.random.default_rng(1)
    frames = np.full(39, 30)
    total = int(frames.sum())
    pitch = np.where(rng.random((total, 1)) < 0.3, 0, rng.normal(7, 0.3, (total, 1))) * np.ones((1, 8))
    phase = np.cumsum(np.repeat(np.where(pitch > 0, 2**pitch, 0), 240) / 24000)
    np.savez(
        path,
        frames=frames,
        text=np.arange(39),
        voice=np.repeat(np.array(voices, np.uint16), 13),
        envelope=(rng.normal(size=(total, 5)) @ rng.normal(size=(5, 160))).astype(np.float16),
        voicing=(pitch > 0).astype(np.float16),
        pitch=pitch.astype(np.float16),
        phones=np.zeros((total, 2), np.uint8),
        samples=(3000 * np.sin(2 * np.pi * phase) + 100 * rng.normal(size=len(phase))).astype(np.int16),
    )


def _samples(made: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return made["shard"].samples[: 1920 * 40].astype(np.float32) / 32768


@pytest.mark.filterwarnings("ignore")
def test_the_books_hold_the_quantizers_entries(torch: Any, made: dict[str, Any]) -> None:
    """What the encoder is taught, looked up in its books, gives the quantizer's codes."""
    from tools.voice.encoder import PITCH, pitch_points, scale_of
    from tools.voice.quantizer import pitch_vectors, raw_vectors

    quantizer, encoder, shard = made["quantizer"], made["encoder"], made["shard"]
    wanted = quantizer.encode_shard(shard)
    vectors = (raw_vectors(shard.envelope, shard.voicing) - quantizer.mean) @ quantizer.basis
    table, scale = encoder.size.table, scale_of(quantizer)
    neutral = (vectors - quantizer.speakers[shard.voices])[:, :table] / scale
    left = vectors - quantizer.first[wanted[:, 0]]
    spectrum = left[:, : table - PITCH] / scale
    points = np.concatenate([pitch_points(*pitch_vectors(shard.pitch)), spectrum], 1)
    first = encoder.first.codes(torch.from_numpy(neutral.astype(np.float32))).numpy()
    later = encoder.rest.codes(torch.from_numpy(points.astype(np.float32))).numpy()
    assert np.all(first > 0)
    assert np.mean(first[:, 0] == wanted[:, 0]) > 0.95
    assert np.mean(later[:, 0] == wanted[:, 1]) > 0.95
    # Many entries lie close together: another one than the quantizer's is as good if it is as near.
    mine, best = (np.abs(left - quantizer.rest[0][codes]).mean() for codes in (later[:, 1], wanted[:, 2]))
    assert mine < 1.1 * best
    assert later[:, :4].max() < 256
    assert np.all(later[:, quantizer.used - 1 :] == 0)


@pytest.mark.filterwarnings("ignore")
def test_the_server_hears_what_the_trainer_hears(torch: Any, made: dict[str, Any]) -> None:
    mx = pytest.importorskip("mlx.core")
    from vivavoce.stages.speech.qwen3.checkpoint import load

    samples = _samples(made)
    model = load(made["folder"], dtype="fp32")
    assert model.kind == "base"
    assert model.codec_encoder is not None
    assert model.speaker_encoder is not None
    with torch.no_grad():
        rows = made["encoder"].rows(torch.from_numpy(samples[None]))[0].numpy().T
        codes = made["encoder"].codes(torch.from_numpy(samples[None]))[0].numpy()
        x_vector = made["speaker"](torch.from_numpy(samples[None]))[0].numpy()
    heard = np.array(model.codec_encoder.rows(mx.array(samples)))
    np.testing.assert_allclose(heard, rows, atol=1e-4 * np.abs(rows).max())
    # The last bits decide between entries that are equally near.
    assert np.mean(np.array(model.codec_encoder(mx.array(samples))) == codes) > 0.98
    np.testing.assert_allclose(np.array(model.speaker_encoder(samples)), x_vector, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_parts_joined_are_the_whole(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx = pytest.importorskip("mlx.core")
    from vivavoce.configs.joined import joined
    from vivavoce.stages.speech.qwen3.checkpoint import tensors

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for place in (".", "speech_tokenizer"):
        found, whole = tensors(joined("base", made["parts"]) / place), tensors(made["folder"] / place)
        assert found.keys() == whole.keys()
        assert all(mx.array_equal(found[name], whole[name]) for name in found)
