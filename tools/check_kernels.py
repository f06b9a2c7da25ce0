"""Compares the CUDA kernels with the plain operations, at released sizes: python tools/check_kernels.py [0.6B 1.7B]

Needs an NVIDIA GPU and MLX's CUDA backend. Two models of the same random weights speak in fp32, one with
kernels, one without: whether they choose the same codes, and how far the talker's rows are apart. In bf16 and
in 8 bits requests are computed beside others and alone: their codes and rows must be the same bits. Then what a
step takes, one behind the other. Exit status 1 if something differs.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # or the plain products have ten bits of fp32's 23

import mlx.core as mx

from vivavoce.stages import device
from vivavoce.stages.speech.qwen3 import kernels, launch, sampling
from vivavoce.stages.speech.qwen3.checkpoint import random_weights
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.talker_step import TalkerState

FRAMES = 70
"""Enough for what is recent to be moved twice."""
ROWS = (2, 3, 8)
SETTINGS = (Sampling(), Sampling(top_k=0, top_p=0.8), Sampling(do_sample=False), Sampling(top_k=1))
TOLERANCE = 2e-3
"""Of the talker's rows in fp32, relative to the largest: sums of 6,144 products in another order."""


class Spoken(NamedTuple):
    codes: list[mx.array]
    """int32 [1, 16] of each frame."""
    hidden: list[mx.array]


def speak(
    model: Qwen3TTS, requests: list[int], frames: int, codes: list[Spoken] | None = None
) -> list[Spoken]:
    """Frames of requests of different lengths, computed together; `codes` says which are taken for chosen."""
    width = model.config.talker_config.hidden_size
    rows = [mx.random.normal((1, 20 + 37 * i, width), key=mx.random.key(i)) * 0.02 for i in requests]
    rows = [one.astype(model.talker.embedding.dtype) for one in rows]
    going = [model.talker.start(row, model.sampling, i) for row, i in zip(rows, requests, strict=True)]
    spoken = [Spoken([], [hidden]) for _, _, hidden in going]
    pad = mx.zeros((1, 1, width), rows[0].dtype)
    for frame in range(frames):
        states, code0, hidden = (list(part) for part in zip(*going, strict=True))
        keys, indices = [state.key for state in states], [state.frame for state in states]
        made = model.predictor.frames(hidden, code0, model.sub_sampling, keys, indices)
        if codes is not None:
            given = [one.codes[frame] for one in codes]
            made = [(own[0], model.predictor.embed(code)) for own, code in zip(made, given, strict=True)]
        going = model.talker.steps(states, [embedded for _, embedded in made], [pad] * len(made))
        for own, (chosen, _), (_, _, row) in zip(spoken, made, going, strict=True):
            own.codes.append(chosen)
            own.hidden.append(row)
        mx.eval(going, made)
    return spoken


def check_formulas(size: str) -> bool:
    fast = random_weights(size, "fp32")
    os.environ["VIVAVOCE_PLAIN"] = "kernels,compile"
    plain = random_weights(size, "fp32")
    right = speak(plain, [1], FRAMES)
    del os.environ["VIVAVOCE_PLAIN"]
    pairs = list(zip(speak(fast, [1], FRAMES, right), right, strict=True))
    alike = [mx.mean(a == b) for own, its in pairs for a, b in zip(own.codes, its.codes, strict=True)]
    off = [
        mx.abs(a - b).max() / mx.abs(b).max()
        for x, y in pairs
        for a, b in zip(x.hidden, y.hidden, strict=True)
    ]
    same, worst = mx.mean(mx.stack(alike)).item(), mx.max(mx.stack(off)).item()
    print(
        f"{size} fp32: {same:.2%} of the codes are those of plain operations, rows off by {worst:.1e}",
        flush=True,
    )
    return float(same) > 0.99 and float(worst) < TOLERANCE  # pyright: ignore[reportArgumentType]


def check_rows(model: Qwen3TTS, name: str) -> bool:
    alone = [speak(model, [i], FRAMES)[0] for i in range(max(ROWS))]
    found: list[bool] = []
    for rows in ROWS:
        pairs = [
            pair
            for own, its in zip(alone, speak(model, list(range(rows)), FRAMES), strict=False)
            for pair in zip([*own.codes, *own.hidden], [*its.codes, *its.hidden], strict=True)
        ]
        found.append(all(bool(mx.array_equal(a, b).item()) for a, b in pairs))
        print(f"{name}, {rows} rows: {'as' if found[-1] else 'NOT as'} each alone", flush=True)
    return all(found)


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


def measure(model: Qwen3TTS, name: str) -> None:
    width = model.config.talker_config.hidden_size
    row = mx.zeros((1, 1, width), model.talker.embedding.dtype)
    for rows in (1, 2, 4, 8):
        state, code, hidden = model.talker.start(mx.repeat(row, 60, axis=1), model.sampling, 0)

        def step(state: TalkerState = state, rows: int = rows) -> list[Any]:
            return [one[1:] for one in model.talker.steps([state] * rows, [row] * rows, [row] * rows)]

        def predict(
            state: TalkerState = state, code: mx.array = code, hidden: mx.array = hidden, rows: int = rows
        ) -> list[Any]:
            keys, frames = [state.key] * rows, [state.frame] * rows
            return model.predictor.frames([hidden] * rows, [code] * rows, model.sub_sampling, keys, frames)

        print(
            f"{name}, {rows} rows: talker {timed(step):.3f} ms, code predictor {timed(predict):.3f} ms",
            flush=True,
        )


def timed(make: Callable[[], Any], times: int = 50) -> float:
    """Milliseconds of one call, of many queued at once."""
    mx.eval([make() for _ in range(times)])
    start = time.perf_counter()
    mx.eval([make() for _ in range(times)])
    return (time.perf_counter() - start) / times * 1e3


def main() -> int:
    device.setup()
    if not launch.serve():
        print(
            "This machine has no CUDA backend of MLX, or VIVAVOCE_PLAIN names the kernels.", file=sys.stderr
        )
        return 2
    mx.random.seed(1)
    right = [check_choice(rows, vocabulary) for rows in (1, 8) for vocabulary in (2048, 3072)]
    for size in sys.argv[1:] or ("0.6B", "1.7B"):
        right.append(check_formulas(size))
        for dtype in ("bf16", "8bit"):
            model = random_weights(size, dtype)
            right.append(check_rows(model, f"{size} {dtype}"))
            measure(model, f"{size} {dtype}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
