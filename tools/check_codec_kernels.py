"""Compares the codec decoder's CUDA kernels with the plain operations, at released sizes:
python tools/check_codec_kernels.py

Needs an NVIDIA GPU and MLX's CUDA backend. Tells how far audio and state are from those of the plain step in exact
fp32; whether any split into steps gives the same bits; what a step takes both ways; and what each of its phases
takes. Exit status 1 if the kernels are off.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # The plain step is what the kernels are measured by.

import mlx.core as mx
import numpy as np

from vivavoce.stages import device
from vivavoce.stages.speech.qwen3 import codec_step, launch
from vivavoce.stages.speech.qwen3.codec_decoder import STEPS, CodecDecoder, CodecState, PlainStep
from vivavoce.stages.speech.qwen3.codec_parts import CodecParts
from vivavoce.stages.speech.qwen3.codec_program import FEW, MANY, MIX, Phase
from vivavoce.stages.speech.qwen3.codec_step import CodecStep
from vivavoce.stages.speech.qwen3.config import released
from vivavoce.stages.speech.qwen3.weights import RandomWeights

TOLERANCE = 1e-3
"""Of the largest value: sums of up to 7,168 products in fp32, some dozens of layers deep."""
FRAMES = 17
SPLITS = ([1] * FRAMES, [8, 8, 1], [2, 4, 8, 2, 1], [3, 6, 8])
TIMES = 50
REPEATS = 100
KINDS = ("few", "many", "attend", "mix", "pcm")

Arrays = list[np.ndarray[Any, Any]]
Step = Callable[..., Any]


class Weights(RandomWeights):
    """Each output of a layer about as large as its inputs: neither silent nor clipped."""

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        made = super().array(name, *shape, dtype=dtype)
        if not name.endswith("weight") or len(shape) < 2:
            return made
        # Transposed convolutions are [in, out, kernel], and half of their kernel meets an output.
        crossed = ".block.1." in name or (".upsample." in name and ".0.conv" in name)
        return made * (0.7 / 0.02 / math.sqrt(2 * shape[0] if crossed else math.prod(shape[1:])))


def through(step: Step, codes: mx.array, state: CodecState, split: list[int]) -> tuple[Arrays, CodecState]:
    """Audio and state after the frames of codes [1, n, 16], and the state once more."""
    parts, at = list[mx.array](), 0
    for count in split:
        pcm, tails, cache, position = step(codes[:, at : at + count], *state)
        state, at = CodecState(tails, cache, position), at + count
        parts.append(pcm)
    made = [mx.concatenate(parts, axis=1), *state.tails, *state.cache]
    return [np.array(part) for part in made], state


def check(plain: PlainStep, fast: CodecStep, start: CodecState) -> bool:
    config = plain.config
    codes = mx.random.randint(0, config.codebook_size, (1, FRAMES, config.num_quantizers))
    wanted, _ = through(plain, codes, start, [FRAMES])
    found = [through(launch.one_by_one(fast), codes, start, split)[0] for split in SPLITS]
    off = [
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(found[0], wanted, strict=True)
    ]
    alike = all(
        np.array_equal(one, other) for made in found[1:] for one, other in zip(made, found[0], strict=True)
    )
    loud = float(np.abs(wanted[0]).max())
    print(
        f"audio (up to {loud:.2f}) off by {off[0]:.1e}, state by {max(off[1:]):.1e}, every split the same: {alike}"
    )
    return max(off) < TOLERANCE and alike and 0.05 < loud < 1


def timed(make: Callable[[], Any], times: int = TIMES) -> tuple[float, float]:
    """Milliseconds of one call: of the host to queue it, and until it is computed; of many queued at once."""
    mx.eval(make(), make())
    mx.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        mx.async_eval(make())
    queued = time.perf_counter()
    mx.synchronize()
    return (queued - start) / times * 1e3, (time.perf_counter() - start) / times * 1e3


def measure(plain: PlainStep, fast: CodecStep, start: CodecState) -> None:
    for frames in sorted(STEPS):
        codes = mx.zeros((1, frames, plain.config.num_quantizers), mx.int32)
        took = list[str]()
        ways = {"plain": device.compiled(plain), "kernel": launch.one_by_one(device.compiled(fast))}
        for name, run in ways.items():
            state = start

            def once(run: Any = run, codes: mx.array = codes) -> Any:
                nonlocal state
                pcm, tails, cache, position = run(codes, *state)
                state = CodecState(tails, cache, position)
                return pcm, state

            queued, done = timed(once)
            took.append(f"{name} {done:6.3f} ms (host {queued:6.3f})")
        print(f"a step of {frames} frames: {', '.join(took)}", flush=True)


def measure_phases(fast: CodecStep, start: CodecState, frames: int) -> None:
    """Each phase many times over in one launch: what it takes when its weights are near, with the meeting."""
    program = fast.program(frames, frames * fast.program(1).most)
    codes, olds = mx.zeros((1, frames, 16), mx.int32), [*start.tails, *start.cache]
    whole = program.phases

    def took(phases: list[Phase]) -> float:
        program.phases = phases
        samples = frames * fast.samples

        def once(ticket: mx.array) -> Any:
            pcm, _, _, left, _ = fast.step.run(program, samples, codes, start.position, olds, ticket)
            return pcm, left

        return timed(launch.one_by_one(once), 5)[1] * 1e3

    empty = Phase(MIX, 0, 0, 0, 4, 4, 0)
    meeting = (took([empty] * 1000) - took([])) / 1000
    print(f"{len(whole)} phases of a step of {frames} frames; to meet takes {meeting:.2f} us")
    total = 0.0
    for phase in whole:
        each = (took([phase] * REPEATS) - took([])) / REPEATS
        total += each
        sizes = f"[{phase.rows}, {phase.products}] -> {phase.outputs}"
        work = phase.rows * phase.products * phase.outputs * 2e-6 / each if phase.kind in (FEW, MANY) else 0
        kind = f"{KINDS[phase.kind]} {phase.size}"
        print(f"  {each:7.1f} us  {kind:8}  {phase.blocks:5} blocks  {sizes:24} {work:5.1f} TFLOPS")
    print(f"  {total:7.1f} us  together", flush=True)


def main() -> int:
    device.setup()
    config = released("0.6B")[1].decoder_config
    if not codec_step.serves(config, mx.float32):
        print(
            "This machine has no CUDA backend of MLX, or VIVAVOCE_PLAIN names the kernels.", file=sys.stderr
        )
        return 2
    mx.random.seed(1)
    weights = Weights(mx.float32)
    start = CodecDecoder(config, weights).start()
    parts = CodecParts.build(config, weights)
    plain, fast = PlainStep.of(config, parts), CodecStep.of(config, parts)
    mx.eval(plain, fast)
    right = check(plain, fast, start)
    measure(plain, fast, start)
    for frames in (1, 8):
        measure_phases(fast, start, frames)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
