"""Loading whole, sharded, quantised and broken checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import checkpoint
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.config import CheckpointError, ModelConfig, SpeechTokenizerConfig, read
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.weights import Stacked

EMBEDDED = Path(__file__).parents[2] / "configs" / "voices" / "embedded"
Arrays = dict[str, mx.array]
GREEDY = Sampling(do_sample=False)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A checkpoint folder like the embedded voice's, with other tensors or other config values."""

    def make(arrays: Arrays | None = None, **config: Any) -> Path:
        for file in EMBEDDED.iterdir():
            (tmp_path / file.name).symlink_to(file)
        if arrays is not None:
            (tmp_path / "model.safetensors").unlink()
            mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
        if config:
            read_config = json.loads((EMBEDDED / "config.json").read_text())
            (tmp_path / "config.json").unlink()
            (tmp_path / "config.json").write_text(json.dumps({**read_config, **config}))
        return tmp_path

    return make


def _arrays() -> Arrays:
    loaded = mx.load(str(EMBEDDED / "model.safetensors"))
    assert isinstance(loaded, dict)
    return loaded


def _hidden(model: Qwen3TTS) -> np.ndarray[Any, np.dtype[np.float32]]:
    prompt = build(model, "Hello", voice="ryan", language="en", instructions=None)
    return np.array(model.talker.start(prompt.prefill, GREEDY, 0)[2])


def test_weights_become_float32_on_the_cpu_whatever_they_were() -> None:
    model = load(EMBEDDED)
    assert model.talker.embedding.dtype == mx.float32
    assert load(EMBEDDED, dtype="bf16").talker.embedding.dtype == mx.bfloat16
    assert (model.kind, model.size, model.sample_rate) == ("custom_voice", "12M", 24000)
    assert "ryan" in model.voices
    assert model.languages[0] == "auto"


def test_shards_are_found_through_their_index(copy: Callable[..., Path]) -> None:
    arrays = _arrays()
    folder = copy()
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in parts.items():
        mx.save_safetensors(str(folder / file), {key: arrays[key] for key in keys})
    index = {"weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(_hidden(load(folder)), _hidden(load(EMBEDDED)))


def test_tensors_may_lie_in_a_file_beside(copy: Callable[..., Path]) -> None:
    arrays = _arrays()
    beside = {name: arrays.pop(name) for name in sorted(arrays)[::3]}
    folder = copy(arrays)
    mx.save_safetensors(str(folder / "model-more.safetensors"), beside)
    np.testing.assert_array_equal(_hidden(load(folder)), _hidden(load(EMBEDDED)))


def test_quantised_layers_with_overrides(copy: Callable[..., Path]) -> None:
    arrays = _arrays()
    mixed = "talker.model.layers.0.self_attn.q_proj"
    for name in [name for name in arrays if name.endswith("_proj.weight")]:
        layer = name.removesuffix(".weight")
        packed, scales, biases = mx.quantize(arrays[name], group_size=64, bits=4 if layer == mixed else 8)
        arrays |= {name: packed, f"{layer}.scales": scales, f"{layer}.biases": biases}
    settings = {"group_size": 64, "bits": 8, "mode": "affine", mixed: {"group_size": 64, "bits": 4}}
    model = load(copy(arrays, quantization=settings))
    first, second = model.talker._layers[:2]  # pyright: ignore[reportPrivateUsage]
    assert isinstance(first.qkv, Stacked)
    assert second.qkv.format is not None if not isinstance(second.qkv, Stacked) else False
    exact = _hidden(load(EMBEDDED))
    assert 0 < np.abs(_hidden(model) - exact).max() < 0.25 * np.abs(exact).max()


def test_a_missing_tensor_is_named(copy: Callable[..., Path]) -> None:
    arrays = _arrays()
    del arrays["talker.model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        load(copy(arrays))


def test_many_faults_are_counted(copy: Callable[..., Path]) -> None:
    arrays = {name: array for name, array in _arrays().items() if ".mlp." not in name}
    with pytest.raises(CheckpointError, match=r"is missing; .*; and \d+ more\.$"):
        load(copy(arrays))


def test_a_wrong_shape_is_named(copy: Callable[..., Path]) -> None:
    arrays = _arrays()
    arrays["talker.model.norm.weight"] = mx.ones((3,))
    with pytest.raises(CheckpointError, match=r"norm\.weight has shape \[3\] instead of \[\d+\]"):
        load(copy(arrays))


def test_another_model_is_refused(copy: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="'llama'"):
        load(copy(model_type="llama"))


def test_the_other_speech_tokenizer_is_refused(copy: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="25hz"):
        load(copy(tokenizer_type="qwen3_tts_tokenizer_25hz"))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(copy: Callable[..., Path], file: str) -> None:
    folder = copy()
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        load(folder)


def test_a_file_that_is_no_safetensors_is_named(copy: Callable[..., Path]) -> None:
    folder = copy()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("dtype", ["fp32", "8bit", "4bit"])
def test_random_weights_speak(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(EMBEDDED / "config.json", ModelConfig)
    codec = read(EMBEDDED / "speech_tokenizer" / "config.json", SpeechTokenizerConfig)

    def small(_: str) -> tuple[ModelConfig, SpeechTokenizerConfig]:
        return config, codec

    monkeypatch.setattr(checkpoint, "released", small)
    model = checkpoint.random_weights("0.6B", dtype)
    prompt = build(model, "Hello", voice="ryan", language="en", instructions=None)
    state, code, hidden = model.talker.start(prompt.prefill, model.sampling, 1)
    codes, _ = model.predictor.frame(hidden, code, model.sub_sampling, state.key, state.frame)
    pcm, _ = model.codec.step(codes[:, None], model.codec.start())
    assert np.isfinite(np.array(pcm)).all()
    assert (model.talker.first.head.format is None) == (dtype == "fp32")


def test_an_unknown_dtype_lists_the_known() -> None:
    with pytest.raises(ValueError, match="bf16"):
        load(EMBEDDED, dtype="int3")
