"""Each device computes the same with its own operations."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import codec_layers, ops, talker, weights
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.prompt import build
from vivavoce.stages.speech.qwen3.sampling import Sampling

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
GREEDY = Sampling(do_sample=False)


def _results(name: str, dtype: str) -> tuple[mx.array, mx.array, mx.array]:
    """Hidden states, codes and PCM of three greedy frames."""
    model = load(CHECKPOINTS / name, dtype=dtype)
    prompt = build(model, "A few words.", voice="ryan", language="en", instructions=None)
    state, code, hidden = model.talker.start(prompt.prefill, GREEDY, 0)
    seen, spoken = [hidden], list[mx.array]()
    for _ in range(3):
        codes, embedding = model.predictor.frame(hidden, code, GREEDY, state.key, state.frame)
        state, code, hidden = model.talker.step(state, embedding, prompt.pad)
        spoken.append(codes)
        seen.append(hidden)
    assert {part.dtype for part in (*state.cache, hidden, prompt.prefill)} == {prompt.pad.dtype}
    codes = mx.stack(spoken, axis=1)
    return mx.concatenate(seen, axis=1), codes, model.codec.decode(codes)


@pytest.mark.parametrize("backend", ["metal", "cuda"])
@pytest.mark.parametrize("name", ["custom", "custom06"])
def test_gpu_forms(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = _results(name, "fp32")
    _pretend(monkeypatch, backend)
    found = _results(name, "fp32")
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4)


def test_no_seam_widens_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "metal")
    hidden, _, pcm = _results("custom", "bf16")
    assert (hidden.dtype, pcm.dtype) == (mx.bfloat16, mx.float32)


def test_norms_are_mlx_norms() -> None:
    x = mx.random.normal((5, 48), key=mx.random.key(0)) * 3 + 1
    weight, shift = mx.random.normal((2, 48), key=mx.random.key(1))
    np.testing.assert_allclose(
        np.array(ops.rms_norm(x, weight, 1e-6)), np.array(mx.fast.rms_norm(x, weight, 1e-6)), atol=1e-5
    )
    np.testing.assert_allclose(
        np.array(ops.layer_norm(x, weight, shift, 1e-6)),
        np.array(mx.fast.layer_norm(x, weight, shift, 1e-6)),
        atol=1e-5,
    )


def test_gelu_is_exact_enough_everywhere() -> None:
    x = mx.concatenate([mx.linspace(-12, 12, 20001), mx.array([-3000.0, -200.0, 200.0, 3000.0])])
    exact = np.array(x).astype(np.float64)
    exact *= 0.5 * (1 + np.array(mx.erf(x * 0.5**0.5)))
    np.testing.assert_allclose(np.array(ops.gelu(x)), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "metal"])
def test_snake_is_its_formula(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend != "cpu":
        _pretend(monkeypatch, backend)
    logs = {"s.alpha": mx.array([0.0, 0.7, -2.0]), "s.beta": mx.array([0.0, -0.5, 1.0])}
    snake = codec_layers.Snake.build(weights.Weights(logs, mx.float32, "a test"), "s", 3)
    x = mx.concatenate([mx.linspace(-8, 8, 20001), mx.array([-900.0, 900.0])])[:, None] * mx.ones((1, 3))
    alpha, beta = (np.exp(np.array(value).astype(np.float64)) for value in logs.values())
    exact = np.array(x).astype(np.float64)
    exact += np.sin(exact * alpha) ** 2 / (beta + 1e-9)
    # The angle itself is rounded: the larger, the coarser.
    np.testing.assert_allclose(np.array(snake(x)), exact, rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("steps", [1, 5])
def test_attention_over_grouped_heads(steps: int) -> None:
    queries = mx.random.normal((1, 6, steps, 16), key=mx.random.key(0))
    keys, values = mx.random.normal((2, 1, 2, 9, 16), key=mx.random.key(1))
    bias = ops.bias(
        mx.random.bernoulli(0.7, (steps, 9), key=mx.random.key(2)) | (mx.arange(9) == 0), mx.float32
    )
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=bias)
    found = ops.attention(queries, keys, values, bias)
    np.testing.assert_allclose(np.array(found), np.array(wanted.swapaxes(1, 2).reshape(steps, 96)), atol=1e-5)


def test_rotation_is_the_one_of_mlx() -> None:
    x = mx.random.normal((1, 3, 4, 32), key=mx.random.key(0))
    cos, sin = ops.rotary(mx.arange(40, 44), 32, 1e6)
    halves = x.swapaxes(1, 2).reshape(4, 3, 2, 16)
    found = (halves * cos + halves[:, :, ::-1] * sin).reshape(4, 3, 32).swapaxes(0, 1)[None]
    wanted = mx.fast.rope(x, 32, traditional=False, base=1e6, scale=1.0, offset=40)
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=1e-4)


def _pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the model choose the forms of another backend, uncompiled."""
    for module in (ops, weights, talker, codec_layers):
        monkeypatch.setattr(module, "on_cpu", lambda: False)
    monkeypatch.setattr(ops, "backend", lambda: name)
