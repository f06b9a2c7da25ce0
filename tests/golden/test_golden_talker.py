"""Talker, code predictor and whole greedy generations against the official implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import Prompt, build
from vivavoce.stages.speech.qwen3.sampling import Sampling

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
MODELS = ["custom", "custom06", "design", "embedded"]


@pytest.mark.parametrize("case", ["full", "streaming"])
@pytest.mark.parametrize("name", MODELS)
def test_teacher_forced_steps(
    name: str, case: str, checkpoint: Checkpoint, golden: Golden, golden_json: Golden
) -> None:
    model, stored = load(checkpoint(name), dtype="fp32"), golden(name, "talker")
    prompt = _prompt(model, golden_json(name, "prompts")[case])
    state, _, hidden = model.talker.start(prompt.prefill, _greedy(model), 0)
    rows = [hidden]
    for index, codes in enumerate(stored["codes"]):
        embedding = model.predictor.embed(mx.array(codes)[None])
        state, _, hidden = model.talker.step(state, embedding, _text(prompt, index))
        rows.append(hidden)
    hidden = mx.concatenate(rows, axis=1)
    np.testing.assert_allclose(np.array(hidden)[0], stored[f"{case}.hidden"], atol=1e-3)
    logits = np.array(model.talker.first.logits(hidden[0]))
    np.testing.assert_allclose(np.linalg.norm(logits, axis=-1), stored[f"{case}.logits_norm"], rtol=1e-5)
    thinned = logits[:, :: logits.shape[1] // stored[f"{case}.logits"].shape[1]]
    np.testing.assert_allclose(thinned, stored[f"{case}.logits"], atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_predictor_codes(name: str, checkpoint: Checkpoint, golden: Golden) -> None:
    model, talker, stored = (
        load(checkpoint(name), dtype="fp32"),
        golden(name, "talker"),
        golden(name, "predictor"),
    )
    assert stored["margin"] > 1e-4
    for index, wanted in enumerate(stored["codes"]):
        hidden = mx.array(talker["full.hidden"][index])[None, None]
        first = mx.array(talker["codes"][index, :1], mx.int32)[None]
        codes, embedding = model.predictor.frame(
            hidden, first, Sampling(do_sample=False), mx.zeros((2,), mx.uint32), mx.array([index], mx.int32)
        )
        assert np.array(codes)[0, 1:].tolist() == wanted.tolist()
        np.testing.assert_allclose(np.array(embedding), np.array(model.predictor.embed(codes)), atol=1e-5)


@pytest.mark.parametrize("name", ["custom", "custom06", "design", "embedded"])
def test_greedy_generation(name: str, checkpoint: Checkpoint, golden: Golden, golden_json: Golden) -> None:
    model, stored = load(checkpoint(name), dtype="fp32"), golden(name, "greedy")
    for case, given in golden_json(name, "greedy").items():
        wanted = stored[f"{case}.codes"]
        prompt = _prompt(model, {**golden_json(name, "prompts").get(case, {}), **given})
        state, code, hidden = model.talker.start(prompt.prefill, _greedy(model), 0)
        frames: list[mx.array] = []
        for index in range(len(wanted)):
            codes, embedding = model.predictor.frame(
                hidden, code, Sampling(do_sample=False), state.key, state.frame
            )
            frames.append(codes)
            state, code, hidden = model.talker.step(state, embedding, _text(prompt, index))
            mx.eval(codes, code, hidden)
        codes = mx.stack(frames, axis=1)
        assert np.array(codes)[0].tolist() == wanted.tolist(), case


def _greedy(model: Qwen3TTS) -> Sampling:
    """As the official code is run: the checkpoint's own penalty, and no chance."""
    return msgspec.structs.replace(model.sampling, do_sample=False)


def _prompt(model: Qwen3TTS, given: dict[str, Any]) -> Prompt:
    return build(
        model,
        given["text"],
        voice=given["speaker"],
        language=given["language"],
        instructions=given["instruct"],
        full_text=given["full_text"],
    )


def _text(prompt: Prompt, frame: int) -> mx.array:
    return prompt.trailing[:, frame : frame + 1] if frame < prompt.trailing.shape[1] else prompt.pad
