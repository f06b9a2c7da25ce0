"""The logits' way to a choice against the official processors: the same probabilities, not only the same winner."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.sampling import Sampling, controls, kept

Checkpoint = Callable[[str], Path]
Golden = Callable[[str, str], Any]


def test_probabilities(checkpoint: Checkpoint, golden: Golden, golden_json: Golden) -> None:
    talker, stored = load(checkpoint("custom"), dtype="fp32").talker, golden("custom", "sampling")
    for name, given in golden_json("custom", "sampling").items():
        past = stored["history"][: given.pop("history")]
        logits = mx.array(stored[given.pop("logits")])[None]
        sampling = Sampling(**given)
        seen = mx.array(np.isin(np.arange(logits.shape[1]), past).tolist())
        frame = mx.array([len(past)], mx.int32)
        ready = talker.first.admissible(logits, seen, frame, controls(sampling, logits.shape[1]))
        _equal(ready, sampling, stored[f"{name}.probabilities"], name)
        if f"{name}.predictor_probabilities" in stored:
            own = mx.array(stored["logits_predictor"])[None]
            _equal(own, sampling, stored[f"{name}.predictor_probabilities"], name)


def _equal(logits: mx.array, sampling: Sampling, wanted: Any, name: str) -> None:
    if not sampling.greedy:
        control = controls(sampling, logits.shape[1])
        logits = kept(logits, control, sampling.nucleus) / control.temperature
    np.testing.assert_allclose(np.array(mx.softmax(logits, axis=-1))[0], wanted, atol=1e-6, err_msg=name)
