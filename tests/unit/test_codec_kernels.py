"""The codec decoder's CUDA kernels' own code against plain operations, its threads played by a CPU;
tools/check_codec_kernels.py does the same at released sizes on a GPU."""

import shutil
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import codec_kernels, codec_layers, codec_step, kernels, ops
from vivavoce.stages.speech.qwen3.codec_decoder import CodecDecoder, CodecState, PlainStep
from vivavoce.stages.speech.qwen3.codec_kernels import TILES, Layer, Made
from vivavoce.stages.speech.qwen3.codec_layers import Conv, History, Snake, Upsample
from vivavoce.stages.speech.qwen3.codec_parts import CodecParts
from vivavoce.stages.speech.qwen3.config import CodecConfig
from vivavoce.stages.speech.qwen3.weights import RandomWeights

from .cuda_on_cpu import Kernel

CONFIG = CodecConfig(32, 32, 32, 64, 2, 4, 2, 64, [3, 2], [2, 2], 16, 8, 16, 1e-5, 10000.0, 5)
"""Rows for each frame: 1, 2 and 4 for the kernel of few rows, 12 and 24 for that of many; two heads share a key."""
FRAMES, SCALE = 9, 0.06

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(mx.fast, "cuda_kernel", partial(Kernel, folder), raising=False)
    monkeypatch.setattr(kernels, "serve", lambda: True)
    monkeypatch.setattr(codec_layers, "on_cpu", lambda: False)
    codec_kernels._kernel.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def weights() -> RandomWeights:
    return RandomWeights(mx.float32, scale=SCALE)


def _close(found: mx.array | None, wanted: mx.array, atol: float = 1e-5) -> None:
    assert found is not None
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=atol)


def _same(found: mx.array, wanted: mx.array) -> None:
    np.testing.assert_array_equal(np.array(found), np.array(wanted))


def _joined(layer: Layer, x: mx.array, tail: mx.array, splits: list[int]) -> Made:
    """The layer over x in pieces."""
    made, at = list[Made](), 0
    for count in splits:
        made.append(layer(x[at : at + count], tail))
        tail, at = made[-1].tail, at + count
    snaked = [part.snaked for part in made if part.snaked is not None]
    return Made(mx.concatenate([part.rows for part in made]), mx.concatenate(snaked), tail)


@pytest.mark.parametrize(
    ("few", "inputs", "outputs", "splits"),
    [(True, 96, 32, [1, 2, 4, 5]), (False, 20, 36, [1, 40, 3])],
)
def test_a_convolution_gives_snake_and_the_next_past(
    few: bool, inputs: int, outputs: int, splits: list[int], weights: RandomWeights
) -> None:
    conv = Conv.build(weights, "c", inputs, outputs, 7, dilation=3)
    snake = Snake.build(weights, "s", outputs)
    layer, steps = Layer.of_conv(few, conv).before(snake), sum(splits)
    x, tail = mx.random.normal((steps, inputs)), mx.random.normal((conv.past, inputs))
    history = History([tail])
    wanted = conv(x, history)
    found = layer(x, tail)
    _close(found.rows, wanted)
    _close(found.snaked, snake(wanted))
    _same(found.tail, history.tails[0])
    pieces = _joined(layer, x, tail, splits)
    for one, other in zip(pieces, found, strict=True):
        assert one is not None
        assert other is not None
        _same(one, other)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("steps", [1, 9])
def test_a_transposed_convolution(few: bool, steps: int, weights: RandomWeights) -> None:
    up, snake = Upsample.build(weights, "u", 32, 16, 6, 3), Snake.build(weights, "s", 16)
    x, tail = mx.random.normal((steps, 32)), mx.random.normal((1, 32))
    history = History([tail])
    wanted = up(x, history)
    found = Layer.of_upsample(few, up).before(snake)(x, tail)
    _close(found.rows, wanted)
    _close(found.snaked, snake(wanted))
    _same(found.tail, history.tails[0])


@pytest.mark.parametrize("few", [True, False])
def test_products_are_added_or_bent(few: bool, weights: RandomWeights) -> None:
    matrix, bias = weights.array("m", 64, 48), weights.array("b", 48)
    x, other = mx.random.normal((2, 64)), mx.random.normal((2, 48))
    layer = Layer.of(few, matrix, bias)
    _close(layer(x, other=other).rows, other + mx.addmm(bias, x, matrix))
    _close(layer._replace(gelu=True)(x).rows, ops.gelu(mx.addmm(bias, x, matrix)))


@pytest.mark.parametrize("steps", [1, 2, 3, 11])
def test_norms_and_gates(steps: int, weights: RandomWeights) -> None:
    matrix, x = weights.array("m", 64, 64), mx.random.normal((steps, 64))
    normed = Layer.of(True, matrix)._replace(eps=1e-5)
    rows = ops.rms_norm(x, None, 1e-5) @ matrix
    _close(normed(x).rows, rows)
    _close(normed._replace(gated=True)(x).rows, ops.silu(rows[:, ::2]) * rows[:, 1::2])


def test_the_size_of_a_tile_changes_no_bit(weights: RandomWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer.of_conv(False, Conv.build(weights, "c", 40, 40, 7, dilation=9))
    x, tail = mx.random.normal((70, 40)), mx.random.normal((54, 40))
    made = list[mx.array]()
    for size in TILES:
        monkeypatch.setattr(codec_kernels, "TILES", (size,))
        made.append(layer(x, tail).rows)
    for one in made[1:]:
        _same(one, made[0])


def _steps(
    step: PlainStep | codec_step.CodecStep, codes: mx.array, state: CodecState, splits: list[int]
) -> tuple[mx.array, CodecState]:
    parts, at = list[mx.array](), 0
    for count in splits:
        pcm, tails, cache, position = step(codes[:, at : at + count], *state)
        state, at = CodecState(tails, cache, position), at + count
        parts.append(pcm)
    return mx.concatenate(parts, axis=1), state


def test_a_step_is_that_of_plain_operations_however_it_is_split(weights: RandomWeights) -> None:
    decoder = CodecDecoder(CONFIG, weights)
    fast = decoder._step  # pyright: ignore[reportPrivateUsage]
    assert isinstance(fast, codec_step.CodecStep)
    plain = PlainStep.of(CONFIG, CodecParts.build(CONFIG, RandomWeights(mx.float32, scale=SCALE)))
    codes = mx.random.randint(0, CONFIG.codebook_size, (1, FRAMES, 16), key=mx.random.key(4))
    pcm, state = _steps(fast, codes, decoder.start(), [1, 2, 4, 2])
    wanted, after = _steps(plain, codes, decoder.start(), [FRAMES])
    assert 0.01 < float(mx.abs(wanted).max().item()) < 1  # pyright: ignore[reportArgumentType]
    _close(pcm, wanted)
    for one, other in zip((*state.tails, *state.cache), (*after.tails, *after.cache), strict=True):
        _close(one, other, atol=1e-4)
    _same(state.position, after.position)
    again, same = _steps(fast, codes, decoder.start(), [FRAMES])
    _same(again, pcm)
    for one, other in zip((*same.tails, *same.cache), (*state.tails, *state.cache), strict=True):
        _same(one, other)
