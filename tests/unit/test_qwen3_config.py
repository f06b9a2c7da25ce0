"""Reading the JSON files of a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from vivavoce.stages.speech.qwen3.config import (
    CheckpointError,
    GenerationConfig,
    ModelConfig,
    read,
    released,
)
from vivavoce.stages.speech.qwen3.sampling import Sampling

EMBEDDED = Path(__file__).parents[2] / "configs" / "voices" / "embedded"


def _changed(folder: Path, **changes: Any) -> Path:
    config = json.loads((EMBEDDED / "config.json").read_text())
    config["talker_config"].update(changes)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_speaker_ids_may_be_numbers_or_lists_of_one(tmp_path: Path) -> None:
    config = read(_changed(tmp_path, spk_id={"ryan": 3061, "vivian": [3065]}), ModelConfig)
    assert [config.talker_config.speaker(name) for name in ("ryan", "vivian")] == [3061, 3065]


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    assert read(_changed(tmp_path, invented_later={"a": 1}), ModelConfig).size == "12M"


def test_a_key_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="hidden_size"):
        read(_changed(tmp_path, hidden_size="wide"), ModelConfig)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read(tmp_path / "config.json", ModelConfig)


def test_generation_defaults_fill_what_the_file_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.5, "subtalker_top_k": 7, "subtalker_dosample": false}')
    config = read(path, GenerationConfig)
    assert config.talker == Sampling(True, 0.5, 50, 1.0, 1.05)
    assert config.predictor == Sampling(False, 0.9, 7, 1.0, 1.0)
    assert config.max_new_tokens == 2048


@pytest.mark.parametrize(("size", "width"), [("0.6B", 1024), ("1.7B", 2048)])
def test_released_dimensions(size: str, width: int) -> None:
    config, codec = released(size)
    talker = config.talker_config
    assert (config.size, talker.hidden_size, talker.intermediate_size) == (size, width, 3 * width)
    assert talker.code_predictor_config.hidden_size == 1024
    assert codec.decoder_config.samples == 1920


def test_other_sizes_were_not_released() -> None:
    with pytest.raises(ValueError, match="7B"):
        released("7B")
