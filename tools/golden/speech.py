"""Vectors of the talker side: prompts, teacher-forced steps, the code predictor, greedy generation."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cases import DESIGNS, GREEDY, PROMPTS, Case
from official import Qwen3TTSModel, without_talker

Arrays = dict[str, np.ndarray]
STEPS = 40
LOGIT_STRIDE = 16


def request(tts: Qwen3TTSModel, case: Case, **settings: Any) -> Callable[[], Any]:
    """The official call for a case, as a thunk."""
    common = {"text": case.text, "language": case.language, "instruct": case.instruct, **settings}
    common["non_streaming_mode"] = case.full_text
    if tts.model.tts_model_type == "voice_design":
        return lambda: tts.generate_voice_design(**common)
    return lambda: tts.generate_custom_voice(speaker=case.speaker, **common)


def prompts(tts: Qwen3TTSModel) -> tuple[Arrays, dict[str, Any]]:
    """The embeddings that the talker is given, for every case."""
    arrays: Arrays = {}
    cases = DESIGNS if tts.model.tts_model_type == "voice_design" else PROMPTS
    for name, case in cases.items():
        seen = without_talker(tts, request(tts, case))
        arrays[f"{name}.ids"] = tts._tokenize_texts([tts._build_assistant_text(case.text)])[0][0].numpy()
        if case.instruct and tts.model.tts_model_size != "0b6":
            arrays[f"{name}.instruct_ids"] = tts._tokenize_texts([tts._build_instruct_text(case.instruct)])[
                0
            ][0].numpy()
        arrays[f"{name}.embeds"] = seen["inputs_embeds"][0].numpy()
        arrays[f"{name}.trailing"] = seen["trailing_text_hidden"][0].numpy()
        arrays["pad"] = seen["tts_pad_embed"][0, 0].numpy()
    return arrays, {name: case._asdict() for name, case in cases.items()}


def forced(tts: Qwen3TTSModel, case: Case, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the official loop with given codes [S, 16].

    Returns hidden rows [S + 1, H] and first-code logits [S + 1, 3072].
    """
    talker = tts.model.talker
    seen = without_talker(tts, request(tts, case))
    step = 0

    def first_code(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[:, codes[min(step, len(codes) - 1), 0]] = 0.0
        return only

    def other_codes(**_arguments: Any) -> Any:
        nonlocal step
        step += 1
        return type("Result", (), {"sequences": codes[None, step - 1, 1:]})

    rows: list[torch.Tensor] = []
    hook = talker.model.register_forward_hook(
        lambda _m, _a, out: rows.append(out.last_hidden_state[0, -1].clone())
    )
    inputs = ("inputs_embeds", "attention_mask", "trailing_text_hidden", "tts_pad_embed")
    with torch.no_grad(), patch.object(talker.code_predictor, "generate", other_codes):
        result = talker.generate(
            **{key: seen[key] for key in inputs},
            max_new_tokens=len(codes) + 1,
            do_sample=False,
            logits_processor=[first_code],
            output_logits=True,
            return_dict_in_generate=True,
        )
    hook.remove()
    return torch.stack(rows), torch.cat(result.logits)


def random_codes(tts: Qwen3TTSModel, frames: int, seed: int) -> torch.Tensor:
    """Codes [frames, 16] within the vocabularies; frame 3 is all zero and frame 7 has a first code of zero."""
    vocabulary = tts.model.talker.code_predictor.vocab_size
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, vocabulary, (frames, 16))
    codes[:, 0] = rng.integers(0, 2048, frames)
    codes[3] = 0
    codes[7, 0] = 0
    return torch.from_numpy(codes)


def talker(tts: Qwen3TTSModel, whole_logits: bool) -> Arrays:
    """Teacher-forced steps in both text layouts."""
    codes = random_codes(tts, STEPS, seed=11)
    arrays: Arrays = {"codes": codes.numpy().astype(np.int16)}
    cases = DESIGNS if tts.model.tts_model_type == "voice_design" else PROMPTS
    for name in ("full", "streaming"):
        hidden, logits = forced(tts, cases[name], codes)
        arrays[f"{name}.hidden"] = hidden.numpy()
        stride = 1 if whole_logits and name == "full" else LOGIT_STRIDE
        arrays[f"{name}.logits"] = logits[:, ::stride].numpy()
        arrays[f"{name}.logits_norm"] = logits.norm(dim=1).numpy()
    return arrays


def margin(logits: torch.Tensor) -> float:
    """The smallest distance between best and second best, where the choice matters.

    A group that carries nothing has the same logit for every code; the first is taken then, here as there.
    """
    best = logits.topk(2, dim=-1).values
    chosen = logits.amax(dim=-1) > logits.amin(dim=-1)
    return float((best[..., 0] - best[..., 1])[chosen].min())


def predictor(tts: Qwen3TTSModel, hidden: np.ndarray, codes: np.ndarray) -> Arrays:
    """Greedy codes of groups 1 to 15 for the forced frames, with the logits of the first four."""
    model = tts.model.talker
    embedding = model.get_input_embeddings()(torch.from_numpy(codes[:, :1].astype(np.int64)))
    inputs = torch.cat((torch.from_numpy(hidden[: len(codes), None]), embedding), dim=1)
    with torch.no_grad():
        result = model.code_predictor.generate(
            inputs_embeds=inputs,
            max_new_tokens=15,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    logits = torch.stack(result.logits, dim=1)
    return {
        "codes": result.sequences.numpy().astype(np.int16),
        "logits": logits[:4].numpy(),
        "margin": np.float32(margin(logits)),
    }


def recorded(tts: Qwen3TTSModel, call: Callable[..., Any], frames: int) -> Arrays:
    """Runs `call` greedily with the official penalties and limits: codes [T, 16], audio, and the least margin."""
    talker, seen = tts.model.talker, {}
    margins: list[float] = []
    original, original_predictor, original_all = (
        talker.generate,
        talker.code_predictor.generate,
        tts.model.generate,
    )

    def with_scores(**arguments: Any) -> Any:
        result = original(**arguments, output_scores=True)
        margins.append(margin(torch.cat(result.scores)))
        return result

    def with_logits(**arguments: Any) -> Any:
        result = original_predictor(**arguments, output_logits=True)
        margins.append(margin(torch.cat(result.logits)))
        return result

    def remembered(**arguments: Any) -> Any:
        seen["codes"], _ = result = original_all(**arguments)
        return result

    # The last token that the official loop samples never becomes a frame: n frames need n + 1 tokens.
    settings = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": frames + 1}
    with (
        patch.object(talker, "generate", with_scores),
        patch.object(talker.code_predictor, "generate", with_logits),
        patch.object(tts.model, "generate", remembered),
    ):
        (pcm,), _rate = call(**settings)
    codes = seen["codes"][0].numpy().astype(np.int16)
    return {"codes": codes, "pcm_every_7": pcm[::7], "margin": np.float32(min(margins))}


def generations(tts: Qwen3TTSModel, name: str) -> tuple[Arrays, dict[str, Any]]:
    """Greedy generations of the cases chosen for this checkpoint."""
    arrays: Arrays = {}
    for key, (case, frames) in GREEDY[name].items():
        found = recorded(tts, lambda **settings: request(tts, case, **settings)(), frames)  # noqa: B023
        arrays |= {f"{key}.{part}": value for part, value in found.items()}
    about = {key: case._asdict() | {"max_frames": frames} for key, (case, frames) in GREEDY[name].items()}
    return arrays, about
