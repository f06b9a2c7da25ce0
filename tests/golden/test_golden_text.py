"""Token ids and prompt rows against the official implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.config import ModelConfig, read
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.tokenizer import BytePairTokenizer, Templates

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
TAIL = 5
"""Ids that the official template has behind the text; no row is made of them."""


@pytest.mark.parametrize("name", ["custom", "embedded"])
def test_text_is_tokenised_as_the_official_code_does_and_never_into_special_tokens(
    name: str, checkpoint: Checkpoint, golden_json: Golden
) -> None:
    templates = _templates(checkpoint(name))
    for case in golden_json(name, "text"):
        role, ids = templates.spoken(case["text"])
        assert role + ids == case["literal_ids"][:-TAIL], case["text"]


def test_a_vocabulary_without_tokenizer_json_cuts_alike(checkpoint: Checkpoint, golden_json: Golden) -> None:
    assert not (checkpoint("custom06") / "tokenizer.json").exists()
    templates = _templates(checkpoint("custom06"))
    for case in golden_json("custom", "text"):
        role, ids = templates.spoken(case["text"])
        assert role + ids == case["literal_ids"][:-TAIL], case["text"]


@pytest.mark.parametrize("name", ["custom", "custom06", "design", "embedded"])
def test_prompt_rows(name: str, checkpoint: Checkpoint, golden: Golden, golden_json: Golden) -> None:
    model = load(checkpoint(name), dtype="fp32")
    stored = golden(name, "prompts")
    for case, given in golden_json(name, "prompts").items():
        prompt = build(
            model,
            given["text"],
            voice=given["speaker"],
            language=given["language"],
            instructions=given["instruct"],
            full_text=given["full_text"],
        )
        np.testing.assert_allclose(
            np.array(prompt.prefill)[0], stored[f"{case}.embeds"], atol=1e-5, err_msg=case
        )
        np.testing.assert_allclose(np.array(prompt.pad)[0, 0], stored["pad"], atol=1e-5)
        trailing = np.array(prompt.trailing)[0]
        if given["full_text"]:
            assert trailing.shape[0] == 0
        else:
            np.testing.assert_allclose(trailing, stored[f"{case}.trailing"], atol=1e-5, err_msg=case)


def _templates(folder: Path) -> Templates:
    return Templates(BytePairTokenizer(folder), read(folder / "config.json", ModelConfig))
