"""`vivavoce quantize`: what is packed, what stays, and how near the copy is."""

import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.agreement import agreement
from vivavoce.stages.speech.qwen3.checkpoint import load, tensors
from vivavoce.stages.speech.qwen3.config import CheckpointError
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.quantize import quantize
from vivavoce.stages.speech.qwen3.sampling import Sampling

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as it releases the device at its end."""
    run = "import sys; from vivavoce.api.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-P", "-c", run, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("kind", ["custom", "base"])
def test_the_mixture_packs_layers_and_leaves_the_rest(tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"
    quantize(CHECKPOINTS / kind, made, "mixed")
    before, after = tensors(CHECKPOINTS / kind), tensors(made)
    forms = msgspec.json.decode((made / "config.json").read_bytes())["quantization"]
    packed = {name.removesuffix(".scales") for name in after if name.endswith(".scales")}
    assert packed == {name for name in forms if "." in name}
    assert forms["talker.model.layers.0.mlp.down_proj"]["bits"] == 4
    assert forms["talker.code_predictor.model.layers.0.mlp.down_proj"]["bits"] == 8
    assert forms["talker.codec_head"]["bits"] == 8
    assert not any("embedding" in name or "norm" in name for name in packed)
    for name, tensor in before.items():
        if name.removesuffix(".weight") not in packed:
            assert mx.array_equal(after[name], tensor).item()
    codec = Path("speech_tokenizer", "model.safetensors")
    assert (made / codec).read_bytes() == (CHECKPOINTS / kind / codec).read_bytes()
    assert load(made).kind == load(CHECKPOINTS / kind).kind


@pytest.mark.parametrize("kind", ["custom06", "base", "design"])
def test_a_checkpoint_agrees_with_itself_and_nearly_with_its_copy_in_8_bits(
    tmp_path: Path, kind: str
) -> None:
    source, made = CHECKPOINTS / kind, tmp_path / "made"
    same = agreement(source, source, most=4)
    assert (same.groups, same.duration, same.frames) == ([1.0] * 16, 1.0, 16)
    quantize(source, made, "8bit")
    near = agreement(source, made, most=4)
    assert 0.5 < np.mean(near.groups) < 1


def test_the_predictors_logits_are_those_that_its_frames_are_drawn_from() -> None:
    model, greedy = load(CHECKPOINTS / "custom"), Sampling(do_sample=False)
    prompt = build(model, "A few words.", voice="ryan", language=None, instructions=None)
    state, code0, hidden = model.talker.start(prompt.prefill, greedy, 0)
    codes, _ = model.predictor.frame(hidden, code0, greedy, state.key, state.frame)
    assert mx.argmax(model.predictor.logits(hidden, codes), axis=-1).tolist() == codes[0, 1:].tolist()


def test_a_copy_of_a_copy_and_a_folder_that_exists_are_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    quantize(CHECKPOINTS / "custom06", made, "4bit")
    with pytest.raises(CheckpointError, match="exists: name a new folder"):
        quantize(CHECKPOINTS / "custom06", made, "8bit")
    with pytest.raises(CheckpointError, match="quantised already"):
        quantize(made, tmp_path / "again", "8bit")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_target_in_the_source_and_a_link_to_nowhere_are_refused(tmp_path: Path) -> None:
    source, link = tmp_path / "source", tmp_path / "link"
    shutil.copytree(CHECKPOINTS / "custom06", source)
    with pytest.raises(CheckpointError, match="is inside"):
        quantize(source, source / "deeper" / "made", "4bit")
    link.symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="exists: name a new folder"):
        quantize(source, link, "4bit")
    assert not (source / "deeper").exists()


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(CHECKPOINTS / "custom06", source)
    (source / "link").symlink_to("nowhere")
    failed = command("quantize", str(source), str(tmp_path / "made"))
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"vivavoce: {source}/link cannot be copied: ")
    assert list(tmp_path.iterdir()) == [source]


def test_the_command(tmp_path: Path) -> None:
    done = command("quantize", str(CHECKPOINTS / "custom06"), str(tmp_path / "made"), "--preset", "4bit")
    assert done.returncode == 0
    assert "4 bits for everything cost wrong words" in done.stderr
    assert "same likeliest code 0" in done.stdout
    assert (tmp_path / "made" / "model.safetensors").is_file()
