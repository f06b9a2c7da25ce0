"""How near a quantised checkpoint is to its original: the same codes put into both, and both speaking freely."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import msgspec
import numpy as np

from .checkpoint import load
from .clone import Clone, build_clone
from .model import Qwen3TTS
from .prompt import Prompt, build

TEXTS = (
    "The first frame leaves before the second one is begun.",
    "How many people live in the old town, and how many were born there?",
    "It was raining when we left the house at seven, but the sun came out at noon.",
    "Please bring me two cups of tea, some bread, and the newspaper.",
)
DESCRIPTION = "A calm voice of medium pitch."
Codes = list[mx.array]


class Agreement(msgspec.Struct, frozen=True):
    """Of a checkpoint with its original."""

    groups: list[float]
    """Share of frames in which both find the same code of each group likeliest, given the same codes before it."""
    duration: float
    """Frames spoken, divided by those of the original, with the same texts and seeds."""
    frames: int
    """Frames compared."""


def agreement(
    original: Path, made: Path, *, most: int = 150, progress: Callable[[float], None] = lambda done: None
) -> Agreement:
    """:param most: frames of each text, at most."""
    before, after = (
        load(path, parts=frozenset(("prompt", "talker", "code_predictor"))) for path in (original, made)
    )
    same, counts = np.zeros(16), [0, 0]
    for seed, text in enumerate(TEXTS):
        spoken = _speak(before, text, seed, most)
        same += (_likeliest(before, text, spoken) == _likeliest(after, text, spoken)).sum(axis=0)
        counts[0] += len(spoken)
        counts[1] += len(_speak(after, text, seed, most))
        progress((seed + 1) / len(TEXTS))
    return Agreement((same / counts[0]).tolist(), counts[1] / counts[0], counts[0])


def _speak(model: Qwen3TTS, text: str, seed: int, most: int) -> Codes:
    """The frames of a text, int32 [1, 16] each."""
    prompt = _prompt(model, text)
    state, code0, hidden = model.talker.start(prompt.prefill, model.sampling, seed)
    spoken: Codes = []
    while len(spoken) < most and code0.item() != model.config.talker_config.codec_eos_token_id:
        codes, embedding = model.predictor.frame(hidden, code0, model.sub_sampling, state.key, state.frame)
        spoken.append(codes)
        state, code0, hidden = model.talker.step(state, embedding, _row(prompt, len(spoken)))
    return spoken


def _likeliest(model: Qwen3TTS, text: str, spoken: Codes) -> np.ndarray:
    """The likeliest code of each group of each frame, given those before it: [T, 16]."""
    prompt = _prompt(model, text)
    state, _, hidden = model.talker.start(prompt.prefill, model.sampling, 0)
    rows: list[mx.array] = []
    for frame, codes in enumerate(spoken, 1):
        first = mx.argmax(model.talker.first.logits(hidden[0]), axis=-1)
        rows.append(mx.concatenate([first, mx.argmax(model.predictor.logits(hidden, codes), axis=-1)]))
        state, _, hidden = model.talker.step(state, model.predictor.embed(codes), _row(prompt, frame))
        mx.eval(rows[-1], hidden)
    return np.array(mx.stack(rows))


def _prompt(model: Qwen3TTS, text: str) -> Prompt:
    if model.kind == "base":
        voice = mx.random.normal((model.config.talker_config.hidden_size,), key=mx.random.key(0))
        return build_clone(model, text, Clone(voice), language=None)
    designed = model.kind == "voice_design"
    voice = None if designed else model.voices[0]
    return build(model, text, voice=voice, language=None, instructions=DESCRIPTION if designed else None)


def _row(prompt: Prompt, frame: int) -> mx.array:
    """The text row of a frame after the first."""
    row = prompt.trailing[:, frame - 1 : frame]
    return row if row.shape[1] else prompt.pad
