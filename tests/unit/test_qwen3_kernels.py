"""The path of the CUDA kernels with the kernels' formulas in their place: its caches, its batches, its sequence.

The kernels themselves: test_cuda_kernels.py, and tools/check_kernels.py on a GPU.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import kernels, layers
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.kernels import RECENT, FusedLayer, Kept, Rows
from vivavoce.stages.speech.qwen3.layers import Layer
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.talker_step import KernelStep

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
HOT = Sampling(temperature=1.5, repetition_penalty=1.05)
TEXTS = ["One.", "Two words.", "And three of them. " * 12]


def _attend(
    self: FusedLayer,
    qkv: mx.array,
    cos: mx.array,
    sin: mx.array,
    position: mx.array,
    base: mx.array,
    kept: Kept,
) -> tuple[mx.array, list[mx.array]]:
    layer = self.layer
    heads, kv_heads, dim = layer.heads, layer.kv_heads, layer.head_dim
    heard: list[mx.array] = []
    recent: list[mx.array] = []
    for b, (cache, new) in enumerate(zip(kept.caches, kept.recent, strict=True)):
        each = [min(b, part.shape[0] - 1) for part in (cos, position, base)]
        here, begin = (int(np.array(part)[at]) for part, at in ((position, each[1]), (base, each[2])))
        rows = qkv[b].reshape(-1, dim)
        normed = rows * mx.rsqrt(mx.mean(rows * rows, axis=1, keepdims=True) + layer.eps)
        weight = mx.concatenate(
            [mx.repeat(self.head_norm[i : i + 1], n, 0) for i, n in ((0, heads), (1, kv_heads))]
        )
        normed = normed[: heads + kv_heads] * weight
        c, s = cos[each[0]].reshape(-1), sin[each[0]].reshape(2, -1)[1]
        left, right = mx.split(normed, 2, axis=1)
        turned = mx.concatenate([left * c - right * s, right * c + left * s], axis=1)
        own = mx.stack([turned[heads:], rows[heads + kv_heads :]])[:, :, None]
        written = mx.concatenate([new[:, :, : here - begin], own, new[:, :, here - begin + 1 :]], axis=2)
        keys, values = mx.concatenate([cache[:, :, :begin], written[:, :, : here - begin + 1]], axis=2)
        keys, values = (mx.repeat(part, heads // kv_heads, axis=0) for part in (keys, values))
        shares = mx.softmax(turned[:heads, None] @ keys.swapaxes(1, 2), axis=-1)
        heard.append((shares @ values).reshape(1, -1))
        recent.append(written)
    return mx.concatenate(heard), recent


@pytest.fixture(scope="module")
def plain() -> Qwen3TTS:
    return load(CHECKPOINTS / "custom06")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Qwen3TTS:
    def unmerged(*layer_and_norm: Any) -> Any:
        return layer_and_norm

    def fused(layers: list[Layer]) -> list[FusedLayer]:
        return [FusedLayer.of(layer) for layer in layers]

    monkeypatch.setattr(layers, "absorb", unmerged)
    monkeypatch.setattr(kernels, "fused", fused)
    monkeypatch.setattr(Rows, "of", lambda layer: Rows(layer, None))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(FusedLayer, "_attend", _attend)
    return load(CHECKPOINTS / "custom06")


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
    """Beyond two moves of what is recent into the cache, and beyond the cache's first size."""
    frames = 2 * RECENT + 6
    for i, text in enumerate(TEXTS[:2]):
        assert _speak(model, [text], frames) == _speak(plain, [text], frames), i


def test_three_requests_of_which_one_leaves(model: Qwen3TTS, plain: Qwen3TTS) -> None:
    assert _speak(model, TEXTS, 40, leaves=10) == _speak(plain, TEXTS, 40, leaves=10)


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


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_batch_is_filled_up_to_a_width_that_has_a_trace(count: int, width: int) -> None:
    assert kernels.filled_up(list(range(count))) == [*range(count), *[count - 1] * (width - count)]
