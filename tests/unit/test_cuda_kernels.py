"""The CUDA kernels' own code against plain operations, its threads played by a CPU; tools/check_kernels.py does the
same at released sizes on a GPU."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import kernels, launch, sampling
from vivavoce.stages.speech.qwen3.code_predictor import CodePredictor
from vivavoce.stages.speech.qwen3.kernels import Stack, Stepped
from vivavoce.stages.speech.qwen3.launch import TICKET
from vivavoce.stages.speech.qwen3.layers import Layer
from vivavoce.stages.speech.qwen3.ops import rms_norm, rotary
from vivavoce.stages.speech.qwen3.sampling import Sampling, request_key
from vivavoce.stages.speech.qwen3.weights import Format, Linear, RandomWeights

from .cuda_on_cpu import RECENT, play

HIDDEN, INNER, HEADS, KV_HEADS, DIM, EPS = 160, 96, 4, 2, 64, 1e-6
LAYERS, GROUPS, VOCABULARY, FIRST = 2, 4, 56, 88
POSITIONS, BASES = [0, 4, 37, 70], [0, 0, 37, 66]
CONFIG: Any = SimpleNamespace(
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    num_hidden_layers=LAYERS,
    head_dim=DIM,
    rms_norm_eps=EPS,
    rope_theta=1e6,
)


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    play(monkeypatch, tmp_path_factory)


class _Uneven(RandomWeights):
    """Norms that are not all ones."""

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        made = super().array(name, *shape, dtype=dtype)
        return (
            made * mx.random.uniform(0.5, 1.5, shape, made.dtype, key=mx.random.key(len(name)))
            if "norm" in name
            else made
        )


class _Model(NamedTuple):
    layers: list[Layer]
    stack: Stack
    head: Linear

    def run(self, x: mx.array, past: list[mx.array], which: list[int]) -> Stepped:
        """One position of the requests `which`; what is not filled of their caches is NaN."""
        bases, positions = [BASES[i] for i in which], [POSITIONS[i] for i in which]
        caches = [_filled(past[i][:, :, :, : BASES[i]], 80) for i in which]
        recent = [_filled(past[i][:, :, :, BASES[i] :], RECENT) for i in which]
        control = sampling.stacked([sampling.controls(Sampling(do_sample=False), VOCABULARY)] * len(which))
        made, left = self.stack.step(
            mx.stack([x[i] for i in which]),
            rotary(mx.arange(80), DIM, 1e6),
            mx.array(bases, mx.int32),
            mx.array(positions, mx.int32),
            mx.zeros((len(which), VOCABULARY), mx.bool_),
            mx.zeros(len(which), mx.int32),
            mx.zeros((len(which), 2), mx.uint32),
            control,
            mx.zeros((2, VOCABULARY)),
            0,
            caches,
            recent,
            mx.zeros((TICKET,), mx.uint32),
        )
        assert np.array(left).tolist() == [0] * TICKET
        return made


def _model(dtype: mx.Dtype, form: Format | None) -> _Model:
    weights = _Uneven(dtype, form, scale=0.1)
    plain = [Layer.build(weights, f"layer{i}", CONFIG) for i in range(LAYERS)]
    head = weights.linear("head", HIDDEN, VOCABULARY)
    shared, (head,), stack = kernels.stack(plain, [head], weights.array("norm.weight", HIDDEN))
    assert stack is not None
    return _Model([_exact(one) for one in shared], stack, _unpacked(head))


def _exact(layer: Layer) -> Layer:
    """The same in fp32."""
    parts = {name: _unpacked(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")}
    norms = {name: getattr(layer, name).astype(mx.float32) for name in ("input_norm", "output_norm")}
    return layer._replace(**parts, **norms)


def _unpacked(linear: Linear) -> Linear:
    if linear.format is None:
        return Linear(linear.matrix.astype(mx.float32))
    scales, zeros = (part.astype(mx.float32) for part in (linear.scales, linear.zeros) if part is not None)
    return Linear(mx.dequantize(linear.matrix, scales, zeros, **linear.format._asdict()).T)


@pytest.mark.parametrize(
    ("dtype", "blocks", "capability"), [(mx.float16, 8, 9), (mx.bfloat16, 7, 9), (mx.bfloat16, 8, 7)]
)
def test_what_kernels_are_not_made_for_is_left_to_plain_operations(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype, blocks: int, capability: int
) -> None:
    """fp16 could overflow; there must be a block for each request; older GPUs have no tensor cores for bf16."""
    monkeypatch.undo()
    monkeypatch.setattr(launch, "backend", lambda: "cuda")
    monkeypatch.setattr(launch, "blocks", lambda: blocks)
    monkeypatch.setattr(launch, "_capability", lambda: capability)
    weights = RandomWeights(dtype)
    plain = [Layer.build(weights, "layer", CONFIG)]
    head = weights.linear("head", HIDDEN, VOCABULARY)
    layers, heads, stack = kernels.stack(plain, [head], weights.array("norm.weight", HIDDEN))
    assert stack is None
    assert (layers, heads) == (plain, [head])


def test_a_launch_that_fails_leaves_no_ticket() -> None:
    def launching(ticket: mx.array, fails: bool) -> tuple[mx.array, mx.array]:
        if fails:
            raise RuntimeError("no luck")
        return mx.array(ticket), mx.full((TICKET,), 7, mx.uint32)

    run = launch.one_by_one(launching)
    run(False)
    assert np.array(run(False)).tolist() == [7] * TICKET  # what the launch before left
    with pytest.raises(RuntimeError, match="no luck"):
        run(True)
    assert np.array(run(False)).tolist() == [0] * TICKET
    with pytest.raises(RuntimeError, match="no luck"):
        run(True)


def _filled(rows: mx.array, size: int) -> mx.array:
    room = mx.full((*rows.shape[:3], size - rows.shape[3], DIM), float("nan"), rows.dtype)
    return mx.concatenate([rows, room], axis=3)


def _close(found: mx.array, expected: mx.array, off: float) -> None:
    """Within that part of the largest."""
    right = _numbers(expected)
    np.testing.assert_allclose(_numbers(found), right, rtol=0, atol=off * np.abs(right).max())


def _numbers(x: mx.array) -> Any:
    return np.array(x.astype(mx.float32))


@pytest.mark.parametrize(
    ("dtype", "form", "off"),
    [
        (mx.float32, None, 1e-5),
        (mx.bfloat16, None, 0.02),
        (mx.bfloat16, Format(32, 8, "affine"), 0.02),
        (mx.bfloat16, Format(32, 4, "affine"), 0.02),
    ],
)
def test_layers_are_those_of_plain_operations_and_rows_do_not_know_each_other(
    dtype: mx.Dtype, form: Format | None, off: float
) -> None:
    """In bf16 on tensor cores, in fp32 on none; bf16 has 8 bits, and rounds half a dozen times in a layer."""
    mx.random.seed(1)
    model = _model(dtype, form)
    x = mx.random.normal((len(POSITIONS), HIDDEN), dtype)
    past = [mx.random.normal((LAYERS, 2, KV_HEADS, position, DIM), dtype) for position in POSITIONS]
    together = model.run(x, past, [0, 1, 2, 3])
    for i, (position, base) in enumerate(zip(POSITIONS, BASES, strict=True)):
        cos, sin = rotary(mx.array([position]), DIM, 1e6)
        expected, row = x[i : i + 1].astype(mx.float32), position - base
        for j, layer in enumerate(model.layers):
            queries, new = layer.project(expected, layer.turn(cos, sin))
            expected = layer.attend(
                expected, queries, mx.concatenate([past[i][j].astype(mx.float32), new], axis=2), None
            )
            _close(together.recent[i][j, :, :, row], new[:, :, 0], off)
        hidden = rms_norm(expected, model.stack.norm.astype(mx.float32), EPS)
        _close(together.hidden[i], hidden[0], off)
        said = _numbers(model.head(hidden)[0])
        assert said[together.code[i].item()] >= said.max() - off * np.abs(said).max()
        assert together.position[i].item() == position + 1
        alone = model.run(x, past, [i])
        pairs = [
            (alone.code[0], together.code[i]),
            (alone.hidden[0], together.hidden[i]),
            (together.recent[i][:, :, :, :row], past[i][:, :, :, base:]),
            (alone.recent[0][:, :, :, : row + 1], together.recent[i][:, :, :, : row + 1]),
        ]
        for one, other in pairs:
            np.testing.assert_array_equal(_numbers(one), _numbers(other))


def _predictor(
    monkeypatch: pytest.MonkeyPatch, *, serves: bool, wide: int, dtype: mx.Dtype = mx.float32
) -> CodePredictor:
    own = SimpleNamespace(**vars(CONFIG), num_code_groups=GROUPS, vocab_size=VOCABULARY)
    talker: Any = SimpleNamespace(vocab_size=FIRST, hidden_size=wide, code_predictor_config=own)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "serve", lambda: serves)
        weights = _Uneven(dtype, scale=0.3)
        config: Any = SimpleNamespace(talker_config=talker)
        return CodePredictor(config, weights, weights.table("first", FIRST, wide))


@pytest.mark.parametrize("wide", [HIDDEN, 2 * HIDDEN])
@pytest.mark.parametrize("given", [Sampling(), Sampling(do_sample=False), Sampling(top_k=0, top_p=0.8)])
def test_frames_are_those_of_plain_operations(
    monkeypatch: pytest.MonkeyPatch, given: Sampling, wide: int
) -> None:
    """Also with a talker wider than the predictor; the second and the third request in one launch."""
    plain, fast = (_predictor(monkeypatch, serves=serves, wide=wide) for serves in (False, True))
    hidden = [mx.random.normal((1, 1, wide), key=mx.random.key(i)) for i in range(3)]
    codes = [mx.array([[i * 40]], mx.int32) for i in range(3)]
    keys, frames = [request_key(i) for i in range(3)], [mx.array([i], mx.int32) for i in range(3)]
    expected = [
        plain.frame(*one[:2], given, *one[2:]) for one in zip(hidden, codes, keys, frames, strict=True)
    ]
    made = fast.frames(hidden[:1], codes[:1], given, keys[:1], frames[:1])
    made += fast.frames(hidden[1:], codes[1:], given, keys[1:], frames[1:])
    for (found, embedded), (right, embedding) in zip(made, expected, strict=True):
        np.testing.assert_array_equal(np.array(found), np.array(right))
        np.testing.assert_allclose(np.array(embedded), np.array(embedding), atol=1e-6)


def test_frames_on_tensor_cores_do_not_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _predictor(monkeypatch, serves=True, wide=HIDDEN, dtype=mx.bfloat16)
    hidden = [mx.random.normal((1, 1, HIDDEN), mx.bfloat16, key=mx.random.key(i)) for i in range(3)]
    codes = [mx.array([[i * 40]], mx.int32) for i in range(3)]
    keys, frames = [request_key(i) for i in range(3)], [mx.array([i], mx.int32) for i in range(3)]
    together = fast.frames(hidden, codes, Sampling(), keys, frames)
    for i, (found, _) in enumerate(together):
        alone, _ = fast.frame(hidden[i], codes[i], Sampling(), keys[i], frames[i])
        np.testing.assert_array_equal(np.array(found), np.array(alone))
    assert len({tuple(np.array(found)[0, 1:].tolist()) for found, _ in together}) == 3


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
