"""Compares the CUDA kernels with the plain operations, at released sizes: python tools/check_kernels.py

Needs an NVIDIA GPU and MLX's CUDA backend. For each size and number of rows: the largest difference of one layer
from the plain one, relative to the layer's own effect; whether a request beside others gives the bits that it gives
alone; whether the same ids are chosen. Exit status 1 if one of them fails.
"""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from vivavoce.stages import device
from vivavoce.stages.speech.qwen3 import kernels, sampling
from vivavoce.stages.speech.qwen3.kernels import RECENT, FusedLayer, Kept
from vivavoce.stages.speech.qwen3.layers import Layer
from vivavoce.stages.speech.qwen3.ops import rotary
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.weights import RandomWeights

SIZES = {"0.6B and predictor": (1024, 3072), "1.7B": (2048, 6144)}
TOLERANCE = 0.04
"""bf16 has 8 bits; a layer rounds half a dozen times."""
SETTINGS = (Sampling(), Sampling(top_k=0, top_p=0.8), Sampling(do_sample=False), Sampling(top_k=1))


def layer(hidden: int, inner: int) -> Layer:
    names = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6}
    config: Any = SimpleNamespace(hidden_size=hidden, intermediate_size=inner, **names)
    return Layer.build(RandomWeights(mx.bfloat16), "layer", config)


def check_layer(name: str, hidden: int, inner: int, rows: int) -> bool:
    plain = layer(hidden, inner)
    fused = FusedLayer.of(plain)
    positions, bases = [5, 70, 300, 33, 0, 511, 64, 100][:rows], [0, 40, 299, 33, 0, 480, 64, 90][:rows]
    past = [mx.random.normal((2, 8, at, 128), mx.bfloat16) for at in positions]
    room = [
        mx.pad(p[:, :, :b], [(0, 0), (0, 0), (0, 512 - b), (0, 0)]) for p, b in zip(past, bases, strict=True)
    ]
    recent = [
        mx.pad(p[:, :, b:], [(0, 0), (0, 0), (0, RECENT - (p.shape[2] - b)), (0, 0)])
        for p, b in zip(past, bases, strict=True)
    ]
    x = mx.random.normal((rows, hidden), mx.bfloat16)
    cos, sin = rotary(mx.array(positions), 128, 1e6)
    at, base = mx.array(positions, mx.int32), mx.array(bases, mx.int32)
    together, written = fused(x, cos, sin, at, base, Kept(room, recent))
    worst, alike = 0.0, True
    for b in range(rows):
        one = slice(b, b + 1)
        queries, new = plain.project(x[one], plain.turn(cos[one], sin[one]))
        expected = plain.attend(x[one], queries, mx.concatenate([past[b], new], axis=2), None)
        off = mx.abs(together[one] - expected).max() / mx.abs(expected - x[one]).max()
        row = positions[b] - bases[b]
        off_new = mx.abs(written[b][:, :, row] - new[:, :, 0]).max() / mx.abs(new).max()
        worst = max(worst, float(off.item()), float(off_new.item()))  # pyright: ignore[reportArgumentType]
        alone, _ = fused(x[one], cos[one], sin[one], at[one], base[one], Kept(room[one], recent[one]))
        alike = alike and bool(mx.array_equal(alone, together[one]).item())
        alike = alike and bool(mx.array_equal(written[b][:, :, :row], past[b][:, :, bases[b] :]).item())
    took = timed(lambda: fused(x, cos, sin, at, base, Kept(room, recent))[0])
    print(
        f"{name:20} rows {rows}: off by {worst:.4f}, alone the same: {alike}, {took:6.1f} us a layer",
        flush=True,
    )
    return worst < TOLERANCE and alike


def check_choice(rows: int, vocabulary: int) -> bool:
    right = True
    for given in SETTINGS:
        logits = mx.round(mx.random.normal((rows, vocabulary)) * 64) / 16
        logits = mx.where(mx.random.uniform(0, 1, logits.shape) < 0.1, -mx.inf, logits)
        control = sampling.stacked([sampling.controls(given, vocabulary)] * rows)
        keys, frames = mx.random.split(mx.random.key(3), rows), mx.arange(rows)
        drawn = sampling.noise(keys, frames, 1, 1, vocabulary, control)[0]
        expected = sampling.choose(logits, drawn, control, given.nucleus)
        right = right and bool(mx.array_equal(kernels.choose(logits, drawn, control, True), expected).item())
    print(f"choice of {vocabulary}, rows {rows}: {'the same' if right else 'DIFFERENT'}", flush=True)
    return right


def timed(make: Callable[[], mx.array], times: int = 100) -> float:
    """Microseconds of one call, of many queued at once."""
    mx.eval([make() for _ in range(times)])
    start = time.perf_counter()
    mx.eval([make() for _ in range(times)])
    return (time.perf_counter() - start) / times * 1e6


def main() -> int:
    device.setup()
    if not kernels.serve():
        print(
            "This machine has no CUDA backend of MLX, or VIVAVOCE_PLAIN names the kernels.", file=sys.stderr
        )
        return 2
    mx.random.seed(1)
    layers = [check_layer(name, *size, rows) for name, size in SIZES.items() for rows in (1, 2, 3, 8)]
    choices = [check_choice(rows, vocabulary) for rows in (1, 8) for vocabulary in (2048, 3072)]
    return 0 if all(layers) and all(choices) else 1


if __name__ == "__main__":
    sys.exit(main())
