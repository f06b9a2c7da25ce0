"""A whole model on the CUDA kernels, played by the CPU: its caches, its batches, its sequence.

The kernels one by one: test_cuda_kernels.py, and tools/check_kernels.py on a GPU.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from vivavoce.stages.bench.graph import arrays
from vivavoce.stages.speech.qwen3 import launch
from vivavoce.stages.speech.qwen3.config import GenerationConfig, ModelConfig, SpeechTokenizerConfig, read
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.talker_step import KernelStep
from vivavoce.stages.speech.qwen3.tokenizer import BytePairTokenizer
from vivavoce.stages.speech.qwen3.weights import RandomWeights

from .cuda_on_cpu import RECENT, Kernel, play

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
HOT = Sampling(temperature=1.5, repetition_penalty=1.05)
TEXTS = ["One.", "Two words.", "And three of them. " * 6]


@pytest.fixture(scope="module")
def plain() -> Qwen3TTS:
    return _model()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTS:
    play(monkeypatch, tmp_path_factory)
    return _model()


def _model() -> Qwen3TTS:
    """Random weights in a small checkpoint's layers, but for the size of heads: kernels need 64 or more."""
    folder = CHECKPOINTS / "custom06"
    config = read(folder / "config.json", ModelConfig)
    codec = read(folder / "speech_tokenizer" / "config.json", SpeechTokenizerConfig)
    talker = config.talker_config
    predictor = msgspec.structs.replace(talker.code_predictor_config, head_dim=64)
    talker = msgspec.structs.replace(talker, head_dim=64, code_predictor_config=predictor)
    return Qwen3TTS(
        msgspec.structs.replace(config, talker_config=talker),
        codec,
        GenerationConfig(),
        BytePairTokenizer(folder),
        RandomWeights(mx.float32, scale=0.1),
        RandomWeights(mx.float32),
        frozenset({"prompt", "talker", "code_predictor"}),
    )


def _speak(model: Qwen3TTS, texts: list[str], frames: int, leaves: int | None = None) -> list[list[Any]]:
    """Codes of each text, all computed together; the first request is gone after `leaves` frames."""
    prompts = [build(model, text, voice="ryan", language=None, instructions=None) for text in texts]
    going = [(i, *model.talker.start(p.prefill, HOT, i)) for i, p in enumerate(prompts)]
    spoken: list[list[Any]] = [[] for _ in texts]
    for frame in range(frames):
        going = going[1:] if frame == leaves else going
        names, states, code0, hidden = (list(part) for part in zip(*going, strict=True))
        made = model.predictor.frames(
            hidden, code0, model.sub_sampling, [s.key for s in states], [s.frame for s in states]
        )
        for name, (codes, _) in zip(names, made, strict=True):
            spoken[name].append(np.array(codes)[0].tolist())
        stepped = model.talker.steps(states, [e for _, e in made], [prompts[0].pad] * len(made))
        going = [(name, *one) for name, one in zip(names, stepped, strict=True)]
    return spoken


def test_frames_are_those_of_the_plain_steps(model: Qwen3TTS, plain: Qwen3TTS) -> None:
    """Beyond two moves of what is recent into the cache."""
    frames = 2 * RECENT + 2
    assert _speak(model, TEXTS[:1], frames) == _speak(plain, TEXTS[:1], frames)


def test_three_requests_of_which_one_leaves(model: Qwen3TTS, plain: Qwen3TTS) -> None:
    """The cache of the longest outgrows its first size."""
    frames = 2 * RECENT
    assert _speak(model, TEXTS, frames, leaves=4) == _speak(plain, TEXTS, frames, leaves=4)


def test_the_state_tells_where_the_cache_ends(model: Qwen3TTS) -> None:
    prompt = build(model, TEXTS[0], voice="ryan", language=None, instructions=None)
    state, _, _ = model.talker.start(prompt.prefill, HOT, 0)
    length = state.filled
    for _ in range(RECENT + 1):
        state, _, _ = model.talker.step(state, prompt.pad, prompt.pad)
    assert (state.cached, state.filled) == (length + RECENT, length + RECENT + 1)
    assert [np.array(part).tolist() for part in (state.base, state.position)] == [
        [state.cached],
        [state.filled],
    ]


def test_the_step_is_the_one_meant(model: Qwen3TTS, plain: Qwen3TTS) -> None:
    assert isinstance(model.talker._step, KernelStep)  # pyright: ignore[reportPrivateUsage]
    assert not isinstance(plain.talker._step, KernelStep)  # pyright: ignore[reportPrivateUsage]


def test_the_weights_that_kernels_read_are_found_by_those_who_count(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    run = Kernel.__call__

    def noting(kernel: Kernel, **given: Any) -> list[mx.array]:
        read.extend(zip(kernel.inputs, map(id, given["inputs"]), strict=True))
        return run(kernel, **given)

    monkeypatch.setattr(Kernel, "__call__", noting)
    _speak(model, TEXTS[:1], 1)
    found = {id(array) for array in arrays([model.talker, model.predictor])}
    for name in ("qkv", "out", "gate_up", "down", "head"):
        weights = {its for given, its in read if given == name}
        assert len(weights) == 2  # of the talker and of the predictor
        assert weights <= found


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_batch_is_filled_up_to_a_width_that_has_a_trace(count: int, width: int) -> None:
    assert launch.filled_up(list(range(count))) == [*range(count), *[count - 1] * (width - count)]
