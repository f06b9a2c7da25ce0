"""Vectors of what happens to logits before a code is drawn: the official processors, in the official order."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cases import PROMPTS, SAMPLING
from official import Qwen3TTSModel
from speech import request

DEFAULTS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
}
HISTORIES = {"none": 0, "one": 1, "two": 2, "long": 90}


def processors(owner: Any, call: Callable[[], Any]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The processor list that the official loop of `owner` builds during `call`."""
    original, found = owner._get_logits_processor, []

    def catch(*arguments: Any, **named: Any) -> Any:
        found.append(original(*arguments, **named))
        return found[-1]

    with patch.object(owner, "_get_logits_processor", catch):
        call()
    return found[0]


def sampling(tts: Qwen3TTSModel) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Probabilities of the next first code, and of a code of the predictor, for given logits and histories."""
    rng = np.random.default_rng(21)
    talker, inner = tts.model.talker, tts.model.talker.code_predictor
    logits = rng.normal(0.0, 3.0, 3072).astype(np.float32)
    logits[2150] = logits[:2048].max() + 0.5  # the end token leads, where it is allowed
    history = rng.integers(0, 2048, HISTORIES["long"])
    history[:12] = np.argsort(logits[:2048])[-12:]
    history[20:24] = history[:4]
    ties = np.round(logits)
    small = rng.normal(0.0, 3.0, inner.vocab_size).astype(np.float32)
    arrays: dict[str, np.ndarray] = {
        "logits": logits,
        "logits_ties": ties,
        "logits_predictor": small,
        "history": history.astype(np.int16),
    }
    settings: dict[str, Any] = {}
    for name, changes in SAMPLING.items():
        options = {
            "do_sample": True,
            "temperature": 0.9,
            "top_k": 50,
            "top_p": 1.0,
            "repetition_penalty": 1.05,
        } | changes
        used = HISTORIES[options.pop("history")]
        given = ties if options.pop("logits", "") == "ties" else logits
        call = request(tts, PROMPTS["full"], max_new_tokens=2, subtalker_dosample=False, **options)
        seen = torch.from_numpy(history[None, :used])
        scores = processors(talker, call)(seen, torch.from_numpy(given[None].copy()))
        arrays[f"{name}.probabilities"] = scores.softmax(dim=-1)[0].numpy()
        settings[name] = options | {"history": used, "logits": "logits_ties" if given is ties else "logits"}
        if options["repetition_penalty"] == 1.05 and used == HISTORIES["long"]:
            own = {f"subtalker_{key}": options[key] for key in ("temperature", "top_k", "top_p")}
            own["subtalker_dosample"] = options["do_sample"]
            call = request(tts, PROMPTS["full"], max_new_tokens=3, do_sample=False, **own)
            scores = processors(inner, call)(
                torch.zeros((1, 0), dtype=torch.long), torch.from_numpy(small[None].copy())
            )
            arrays[f"{name}.predictor_probabilities"] = scores.softmax(dim=-1)[0].numpy()
    return arrays, settings
