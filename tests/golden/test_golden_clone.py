"""Clone prompts and greedy clones against the official implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.clone import Clone, build_clone
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import Prompt
from vivavoce.stages.speech.qwen3.sampling import Sampling

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]
GREEDY = Sampling(do_sample=False, repetition_penalty=1.05)
CASES = [
    "icl_streaming",
    "icl_streaming_long_text",
    "icl_full",
    "icl_full_auto",
    "icl_long",
    "x_vector",
    "x_vector_full",
    "x_vector_auto",
]


@pytest.mark.parametrize("case", CASES)
def test_clone_prompts(case: str, checkpoint: Checkpoint, golden: Golden, golden_json: Golden) -> None:
    model, stored = load(checkpoint("base"), dtype="fp32"), golden("base", "prompts")
    given = golden_json("base", "prompts")[case]
    prompt = _prompt(model, golden("base", "encoders"), given)
    np.testing.assert_allclose(np.array(prompt.prefill)[0], stored[f"{case}.embeds"], atol=3e-5)
    np.testing.assert_allclose(np.array(prompt.pad)[0, 0], stored["pad"], atol=1e-5)
    trailing = np.array(mx.concatenate([prompt.trailing, prompt.pad], axis=1))[0]
    wanted = stored[f"{case}.trailing"]
    assert len(trailing) - len(wanted) in (0, 1)  # one pad row stands for none
    np.testing.assert_allclose(trailing[: len(wanted)], wanted, atol=1e-5)


@pytest.mark.parametrize("case", ["icl_streaming", "icl_streaming_long_text", "icl_full", "x_vector"])
def test_greedy_clones(case: str, checkpoint: Checkpoint, golden: Golden, golden_json: Golden) -> None:
    """Codes equal; the audio too, its decoder started from the state that the reference leaves."""
    model, stored = load(checkpoint("base"), dtype="fp32"), golden("base", "greedy")
    clone = _clone(golden("base", "encoders"), golden_json("base", "prompts")[case])
    prompt = _prompt(model, golden("base", "encoders"), golden_json("base", "prompts")[case])
    wanted = stored[f"{case}.codes"]
    state, code, hidden = model.talker.start(prompt.prefill, GREEDY, 0)
    frames: list[mx.array] = []
    for index in range(len(wanted)):
        codes, embedding = model.predictor.frame(
            hidden, code, Sampling(do_sample=False), state.key, state.frame
        )
        frames.append(codes)
        text = prompt.trailing[:, index : index + 1]
        state, code, hidden = model.talker.step(state, embedding, text if text.shape[1] else prompt.pad)
        mx.eval(codes, code, hidden)
    made = mx.stack(frames, axis=1)
    assert np.array(made)[0].tolist() == wanted.tolist()
    stream = model.codec.start() if clone.codes is None else model.codec.after(clone.codes)
    parts: list[mx.array] = []
    for first in range(0, made.shape[1], 4):
        pcm, stream = model.codec.step(made[:, first : first + 4], stream)
        parts.append(pcm)
    pcm = np.array(mx.concatenate(parts, axis=1))[0, ::7]
    np.testing.assert_allclose(pcm, stored[f"{case}.pcm_every_7"], atol=1e-4)


@pytest.mark.parametrize("layout", ["streaming", "full", "reference_first"])
def test_static_rows_do_not_depend_on_the_text(layout: Any, checkpoint: Checkpoint, golden: Golden) -> None:
    model = load(checkpoint("base"), dtype="fp32")
    clone = _clone(golden("base", "encoders"), {"clip": "three", "ref_text": "What the reference says."})
    one, other = (
        build_clone(model, text, clone, language=None, layout=layout)
        for text in ("Hello, world!", "The living voice leaves early.")
    )
    assert one.static == other.static
    assert np.array_equal(np.array(one.prefill)[0, : one.static], np.array(other.prefill)[0, : one.static])
    assert not np.array_equal(np.array(one.prefill)[0, one.static], np.array(other.prefill)[0, one.static])


@pytest.mark.parametrize("layout", ["streaming", "full", "reference_first"])
def test_a_transcript_longer_than_its_sound_leaves_a_row_to_go_on_with(
    layout: Any, checkpoint: Checkpoint, golden: Golden
) -> None:
    """The static rows are a prefix that is computed once and then resumed."""
    model = load(checkpoint("base"), dtype="fp32")
    said = "More words than anybody can say in the time. " * 12
    clone = _clone(golden("base", "encoders"), {"clip": "three", "ref_text": said})
    assert clone.codes is not None
    assert len(model.templates.spoken(said)[1]) > clone.codes.shape[0]
    prompt = build_clone(model, "Hello, world!", clone, language=None, layout=layout)
    prefix = model.talker.prefix(prompt.prefill[:, : prompt.static])
    _, code, _ = model.talker.resume(prefix, prompt.prefill[:, prompt.static :], model.sampling, 1)
    assert code.shape == (1, 1)


def _clone(encoders: Any, given: dict[str, Any]) -> Clone:
    vector = mx.array(encoders[f"{given['clip']}.speaker"])
    if given["ref_text"] is None:
        return Clone(vector)
    return Clone(vector, mx.array(encoders[f"{given['clip']}.codes"].astype(np.int32)), given["ref_text"])


def _prompt(model: Qwen3TTS, encoders: Any, given: dict[str, Any]) -> Prompt:
    return build_clone(
        model,
        given["text"],
        _clone(encoders, given),
        language=given["language"],
        layout="full" if given["full_text"] else "streaming",
    )
