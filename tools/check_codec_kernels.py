"""Compares the codec decoder's CUDA kernels with the plain operations, at released sizes:
python tools/check_codec_kernels.py

Needs an NVIDIA GPU and MLX's CUDA backend. Tells how far audio and state are from those of the plain step in exact
fp32; whether any split into steps gives the same bits; what a step takes both ways; and what each of its launches
takes. Exit status 1 if the kernels are off.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # The plain step is what the kernels are measured by.

import mlx.core as mx
import numpy as np

from vivavoce.stages import device
from vivavoce.stages.speech.qwen3 import codec_kernels, codec_step
from vivavoce.stages.speech.qwen3.codec_decoder import STEPS, CodecDecoder, CodecState, PlainStep
from vivavoce.stages.speech.qwen3.codec_parts import CodecParts
from vivavoce.stages.speech.qwen3.codec_step import CodecStep
from vivavoce.stages.speech.qwen3.config import released
from vivavoce.stages.speech.qwen3.weights import RandomWeights

TOLERANCE = 1e-3
"""Of the largest value: sums of up to 7,168 products in fp32, some dozens of layers deep."""
FRAMES = 17
SPLITS = ([1] * FRAMES, [8, 8, 1], [2, 4, 8, 2, 1], [3, 6, 8])
TIMES = 50

Arrays = list[np.ndarray[Any, Any]]


class Weights(RandomWeights):
    """Each output of a layer about as large as its inputs: neither silent nor clipped."""

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        made = super().array(name, *shape, dtype=dtype)
        if not name.endswith("weight") or len(shape) < 2:
            return made
        # Transposed convolutions are [in, out, kernel], and half of their kernel meets an output.
        crossed = ".block.1." in name or (".upsample." in name and ".0.conv" in name)
        return made * (0.7 / 0.02 / math.sqrt(2 * shape[0] if crossed else math.prod(shape[1:])))


def through(
    step: PlainStep | CodecStep, codes: mx.array, state: CodecState, split: list[int]
) -> tuple[Arrays, CodecState]:
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
    found = [through(fast, codes, start, split)[0] for split in SPLITS]
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


def repeated(make: Callable[[], Any], times: int = TIMES) -> float:
    """Milliseconds of one of many launches in a row."""
    mx.eval([make() for _ in range(times)])
    start = time.perf_counter()
    mx.eval([make() for _ in range(times)])
    return (time.perf_counter() - start) / times * 1e3


def measure(plain: PlainStep, fast: CodecStep, start: CodecState) -> None:
    for frames in sorted(STEPS):
        codes = mx.zeros((1, frames, plain.config.num_quantizers), mx.int32)
        took = list[str]()
        for name, step in (("plain", plain), ("kernels", fast)):
            run, state = device.compiled(step), start

            def once(run: Any = run, codes: mx.array = codes) -> Any:
                nonlocal state
                pcm, tails, cache, position = run(codes, *state)
                state = CodecState(tails, cache, position)
                return pcm, state

            queued, done = timed(once)
            took.append(f"{name} {done:6.3f} ms (host {queued:6.3f})")
        print(f"a step of {frames} frames: {', '.join(took)}", flush=True)


def measure_launches(fast: CodecStep, start: CodecState, frames: int) -> None:
    """Each launch of a step, repeated alone: kernels and arrays are the step's own."""
    launches = list[tuple[str, Any, dict[str, Any]]]()
    kernel = codec_kernels._kernel  # pyright: ignore[reportPrivateUsage]

    def noting(name: str, *rest: Any) -> Any:
        made = kernel(name, *rest)

        def launch(**given: Any) -> Any:
            launches.append((name, made, given))
            return made(**given)

        return launch

    codec_kernels._kernel = noting  # pyright: ignore[reportPrivateUsage]
    try:
        mx.eval(fast(mx.zeros((1, frames, 16), mx.int32), *start))
    finally:
        codec_kernels._kernel = kernel  # pyright: ignore[reportPrivateUsage]
    print(f"{len(launches)} launches of a step of {frames} frames, each repeated alone:")
    total = 0.0
    for name, made, given in launches:
        mx.eval(given["inputs"])
        took = repeated(lambda made=made, given=given: made(**given))
        total += took
        blocks = given["grid"][0] // given["threadgroup"][0]
        sizes = [value for _, value in given.get("template", [])]
        shapes = " ".join("x".join(map(str, part.shape)) for part in given["inputs"][:3])
        print(f"  {took * 1e3:7.1f} us  {name:13} {sizes!s:22} {blocks:5} blocks  {shapes}")
    print(f"  {total * 1e3:7.1f} us  together", flush=True)


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
    if sys.argv[1:] == ["launches"]:
        for frames in (1, 8):
            measure_launches(fast, start, frames)
        return 0
    right = check(plain, fast, start)
    measure(plain, fast, start)
    # Outside of CUDA graphs, in which launches that do not need each other run side by side.
    alone = [sys.executable, __file__, "launches"]
    subprocess.run(alone, env=os.environ | {"MLX_USE_CUDA_GRAPHS": "0"}, check=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
