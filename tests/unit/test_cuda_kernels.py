"""The CUDA kernels' own code against plain operations, its threads played by a CPU; tools/check_kernels.py does the
same at released sizes on a GPU."""

import shutil
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import kernels, layers, sampling
from vivavoce.stages.speech.qwen3.kernels import RECENT, FusedLayer, Kept
from vivavoce.stages.speech.qwen3.layers import Layer
from vivavoce.stages.speech.qwen3.ops import rotary
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.weights import RandomWeights

from .cuda_on_cpu import Kernel

HIDDEN, INNER, HEADS, KV_HEADS, DIM, EPS = 136, 72, 4, 2, 64, 1e-6
POSITIONS, BASES = [0, 5, 37, 70], [0, 0, 37, 40]

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **given: Kernel(folder, **given), raising=False)  # pyright: ignore
    monkeypatch.setattr(kernels, "serve", lambda: True)
    monkeypatch.setattr(layers, "absorb", lambda layer, norm: (layer, norm))  # pyright: ignore
    kernels._kernel.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def layer() -> Layer:
    weights, config = _Uneven(mx.float32, scale=0.1), _config()
    return Layer.build(weights, "layer", config)


class _Uneven(RandomWeights):
    """Norms that are not all ones."""

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        made = super().array(name, *shape, dtype=dtype)
        return (
            made * mx.random.uniform(0.5, 1.5, shape, key=mx.random.key(len(name)))
            if "norm" in name
            else made
        )


def _config() -> Any:
    return SimpleNamespace(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        rms_norm_eps=EPS,
    )


def _run(
    fused: FusedLayer, x: mx.array, past: list[mx.array], which: list[int]
) -> tuple[mx.array, list[mx.array]]:
    """One position of the requests `which`; what is not filled of their caches is NaN."""
    bases, positions = [BASES[i] for i in which], [POSITIONS[i] for i in which]
    caches = [_filled(past[i][:, :, : BASES[i]], 80) for i in which]
    recent = [_filled(past[i][:, :, BASES[i] :], RECENT) for i in which]
    cos, sin = rotary(mx.array(positions), DIM, 1e6)
    at, base = mx.array(positions, mx.int32), mx.array(bases, mx.int32)
    return fused(mx.stack([x[i] for i in which]), cos, sin, at, base, Kept(caches, recent))


def _filled(rows: mx.array, size: int) -> mx.array:
    room = mx.full((*rows.shape[:2], size - rows.shape[2], DIM), float("nan"))
    return mx.concatenate([rows, room], axis=2)


def test_a_layer_is_that_of_plain_operations_and_rows_do_not_know_each_other(layer: Layer) -> None:
    mx.random.seed(1)
    fused = FusedLayer.of(layer)
    x = mx.random.normal((len(POSITIONS), HIDDEN))
    past = [mx.random.normal((2, KV_HEADS, position, DIM)) for position in POSITIONS]
    together, written = _run(fused, x, past, [0, 1, 2, 3])
    for i, (position, base) in enumerate(zip(POSITIONS, BASES, strict=True)):
        cos, sin = rotary(mx.array([position]), DIM, 1e6)
        queries, new = layer.project(x[i : i + 1], layer.turn(cos, sin))
        expected = layer.attend(x[i : i + 1], queries, mx.concatenate([past[i], new], axis=2), None)
        np.testing.assert_allclose(np.array(together[i]), np.array(expected[0]), atol=2e-5)
        row = position - base
        np.testing.assert_allclose(np.array(written[i][:, :, row]), np.array(new[:, :, 0]), atol=1e-5)
        np.testing.assert_array_equal(np.array(written[i][:, :, :row]), np.array(past[i][:, :, base:]))
        alone, kept = _run(fused, x, past, [i])
        np.testing.assert_array_equal(np.array(alone[0]), np.array(together[i]))
        np.testing.assert_array_equal(
            np.array(kept[0])[:, :, : row + 1], np.array(written[i])[:, :, : row + 1]
        )


@pytest.mark.parametrize("vocabulary", [300, 2048, 3072])
@pytest.mark.parametrize(
    "given",
    [
        Sampling(),
        Sampling(do_sample=False),
        Sampling(top_k=1),
        Sampling(top_k=0, top_p=0.8),
        Sampling(top_k=40, top_p=0.5, temperature=0.4),
        Sampling(top_p=0.0),
    ],
)
def test_the_same_ids_are_chosen(given: Sampling, vocabulary: int) -> None:
    """Ties, both zeros and barred ids among the logits."""
    mx.random.seed(2)
    logits = mx.round(mx.random.normal((2, vocabulary)) * 8) / 4
    logits = mx.where(mx.random.uniform(0, 1, logits.shape) < 0.1, -mx.inf, logits)
    control = sampling.stacked([sampling.controls(given, vocabulary)] * 2)
    keys = mx.random.split(mx.random.key(3), 2)
    drawn = sampling.noise(keys, mx.array([1, 2]), 1, 1, vocabulary, control)[0]
    expected = sampling.choose(logits, drawn, control, given.nucleus)
    found = kernels.choose(logits, drawn, control, nucleus=given.nucleus)
    np.testing.assert_array_equal(np.array(found), np.array(expected))


def test_one_control_serves_all_rows() -> None:
    logits, none = mx.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), mx.zeros((2, 3))
    control = sampling.controls(Sampling(do_sample=False), 3)
    assert np.array(kernels.choose(logits, none, control, nucleus=False)).tolist() == [[1], [0]]
