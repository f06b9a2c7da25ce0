"""The codec decoder's CUDA kernels' own code against plain operations, its threads played by a CPU;
tools/check_codec_kernels.py does the same at released sizes on a GPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import codec_layers, codec_program, codec_step, ops
from vivavoce.stages.speech.qwen3.codec_decoder import CodecDecoder, CodecState, PlainStep
from vivavoce.stages.speech.qwen3.codec_kernels import Sizes, Step
from vivavoce.stages.speech.qwen3.codec_layers import Conv, History, Snake, Upsample
from vivavoce.stages.speech.qwen3.codec_parts import CodecParts
from vivavoce.stages.speech.qwen3.codec_program import (
    FEW,
    GATED,
    GELU,
    MANY,
    NORMED,
    TILES,
    Layer,
    Parameters,
    Program,
)
from vivavoce.stages.speech.qwen3.config import CodecConfig
from vivavoce.stages.speech.qwen3.launch import TICKET
from vivavoce.stages.speech.qwen3.weights import RandomWeights

from .cuda_on_cpu import play

CONFIG = CodecConfig(32, 32, 32, 64, 2, 4, 2, 64, [3, 2], [2, 2], 16, 8, 16, 1e-5, 10000.0, 5)
"""Rows for each frame: 1, 2 and 4 for the kernel of few rows, 12 and 24 for that of many; two heads share a key."""
FRAMES, SCALE = 9, 0.06

SIZES = Sizes(2, 1, 16, 4, 1e-5)


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    play(monkeypatch, tmp_path_factory)
    monkeypatch.setattr(codec_layers, "on_cpu", lambda: False)


@pytest.fixture
def weights() -> RandomWeights:
    return RandomWeights(mx.float32, scale=SCALE)


def _close(found: mx.array, wanted: mx.array, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=atol)


def _same(found: mx.array, wanted: mx.array) -> None:
    np.testing.assert_array_equal(np.array(found), np.array(wanted))


class _Alone(NamedTuple):
    """One layer, run as a step of its own: the vectors of the codes are its rows."""

    layer: Layer
    parameters: mx.array
    tables: mx.array

    @classmethod
    def of(cls, make: Callable[[Parameters], Layer], x: mx.array) -> "_Alone":
        parameters = Parameters()
        layer = make(parameters)
        return cls(layer, parameters.joined(), x)

    def __call__(
        self, first: int, count: int, tail: mx.array | None = None, *, added: bool = False
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Rows `first` … of x → (rows, their Snake, next tail). `added`: to x itself."""
        program = Program(count, self.tables.shape[1], 1, 20000)
        made = program.layer(self.layer, program.start, program.start if added else None)
        step = Step(SIZES, self.tables, mx.zeros((SIZES.dim // 2,)), self.parameters)
        codes = mx.arange(first, first + count, dtype=mx.int32)[None, :, None]
        olds = [mx.zeros((1, 4)) if tail is None else tail]
        position, ticket = mx.zeros((1,), mx.int32), mx.zeros((TICKET,), mx.uint32)
        _, _, nows, left, room = step.run(program, 1, codes, position, olds, ticket)
        assert left.tolist() == [0] * TICKET

        def rows(at: int) -> mx.array:
            return room[at : at + made.steps * made.channels].reshape(made.steps, made.channels)

        return rows(made.at), rows(max(made.snaked, 0)), nows[0]


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "splits"),
    [(FEW, 96, 32, [1, 2, 4, 5]), (MANY, 20, 36, [1, 40, 3])],
)
def test_a_convolution_gives_snake_and_the_next_past(
    kind: int, inputs: int, outputs: int, splits: list[int], weights: RandomWeights
) -> None:
    conv = Conv.build(weights, "c", inputs, outputs, 7, dilation=3)
    snake, steps = Snake.build(weights, "s", outputs), sum(splits)
    x, tail = mx.random.normal((steps, inputs)), mx.random.normal((conv.past, inputs))
    layer = _Alone.of(
        lambda made: made.layer(kind, conv.matrix, conv.bias, inputs=inputs, past=conv.past, snake=snake),
        x,
    )
    history = History([tail])
    wanted = conv(x, history)
    rows, snaked, kept = layer(0, steps, tail)
    _close(rows, wanted)
    _close(snaked, snake(wanted))
    _same(kept, history.tails[0])
    at = 0
    for count in splits:
        one, other, tail = layer(at, count, tail)
        _same(one, rows[at : at + count])
        _same(other, snaked[at : at + count])
        at += count
    _same(tail, kept)


@pytest.mark.parametrize("kind", [FEW, MANY])
@pytest.mark.parametrize("steps", [1, 9])
def test_a_transposed_convolution(kind: int, steps: int, weights: RandomWeights) -> None:
    up, snake = Upsample.build(weights, "u", 32, 16, 6, 3), Snake.build(weights, "s", 16)
    x, tail = mx.random.normal((steps, 32)), mx.random.normal((1, 32))
    layer = _Alone.of(
        lambda made: made.layer(kind, up.weight, up.bias, inputs=32, past=1, stride=3, snake=snake), x
    )
    history = History([tail])
    wanted = up(x, history)
    rows, snaked, kept = layer(0, steps, tail)
    _close(rows, wanted)
    _close(snaked, snake(wanted))
    _same(kept, history.tails[0])


@pytest.mark.parametrize("kind", [FEW, MANY])
def test_products_are_added_or_bent(kind: int, weights: RandomWeights) -> None:
    matrix, bias, x = weights.array("m", 64, 64), weights.array("b", 64), mx.random.normal((2, 64))
    layer = _Alone.of(lambda made: made.layer(kind, matrix, bias), x)
    _close(layer(0, 2, added=True)[0], x + mx.addmm(bias, x, matrix))
    bent = layer._replace(layer=layer.layer._replace(bent=GELU))
    _close(bent(0, 2)[0], ops.gelu(mx.addmm(bias, x, matrix)))


@pytest.mark.parametrize("steps", [1, 2, 3, 11])
def test_norms_and_gates(steps: int, weights: RandomWeights) -> None:
    matrix, x = weights.array("m", 64, 64), mx.random.normal((steps, 64))
    rows = ops.rms_norm(x, None, SIZES.eps) @ matrix
    _close(_Alone.of(lambda made: made.layer(FEW, matrix, bent=NORMED), x)(0, steps)[0], rows)
    gated = _Alone.of(lambda made: made.layer(FEW, matrix, bent=GATED), x)(0, steps)[0]
    _close(gated, ops.silu(rows[:, ::2]) * rows[:, 1::2])


@pytest.mark.parametrize("size", range(1, len(TILES)))
def test_the_size_of_a_tile_changes_no_bit(
    size: int, weights: RandomWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = Conv.build(weights, "c", 40, 40, 7, dilation=9)
    x, tail = mx.random.normal((70, 40)), mx.random.normal((54, 40))
    layer = _Alone.of(lambda made: made.layer(MANY, conv.matrix, inputs=40, past=54), x)

    def of(size: int) -> mx.array:
        high, wide = TILES[size]
        blocks = -(-70 // (8 * high)) * -(-40 // (4 * wide))
        monkeypatch.setattr(codec_program, "_many", lambda rows, outputs: (size, blocks))  # pyright: ignore
        return layer(0, 70, tail)[0]

    _same(of(size), of(0))


def _steps(
    step: Callable[..., Any], codes: mx.array, state: CodecState, splits: list[int]
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
    assert not isinstance(fast, PlainStep)
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


@pytest.mark.parametrize(
    ("changed", "dtype"),
    [
        ({}, mx.bfloat16),
        ({"latent_dim": 48}, mx.float32),
        ({"decoder_dim": 32, "upsample_rates": [3, 2, 2, 2]}, mx.float32),
        ({"head_dim": 24, "num_attention_heads": 4}, mx.float32),
        ({"head_dim": 4, "num_attention_heads": 8, "num_key_value_heads": 1}, mx.float32),
        ({"upsampling_ratios": [4, 4]}, mx.float32),
    ],
)
def test_other_codecs_are_left_to_plain_operations(changed: dict[str, Any], dtype: mx.Dtype) -> None:
    assert codec_step.serves(CONFIG, mx.float32)
    assert not codec_step.serves(msgspec.structs.replace(CONFIG, **changed), dtype)
