"""One CUDA kernel for the codec decoder's step: its layers are phases of it, between which all blocks meet.

As MLX operations a step is about 300 kernels, and what they cost is mostly the host that queues them. Here blocks
stay on the GPU and go through a list of phases (`codec_program`). All is exact fp32.
"""

from typing import Any, NamedTuple

import mlx.core as mx

from . import launch
from .codec_program import LAST_EACH, MOST_PAST, Program
from .launch import THREADS


class Sizes(NamedTuple):
    """What the kernel is compiled for."""

    heads: int
    kv_heads: int
    dim: int
    past: int
    eps: float


class Step(NamedTuple):
    """What the kernel reads in every step."""

    sizes: Sizes
    tables: mx.array
    """[groups * codebook_size, C]: vectors of codes, of which a frame's are summed."""
    frequencies: mx.array
    """[dim / 2]: radians by which the transformer's rotation grows with each frame."""
    parameters: mx.array

    def run(
        self,
        program: Program,
        samples: int,
        codes: mx.array,
        position: mx.array,
        olds: list[mx.array],
        ticket: mx.array,
    ) -> tuple[mx.array, mx.array, list[mx.array], mx.array, mx.array]:
        """codes int32 [1, n, groups], position int32 [1] → (pcm [1, samples], next position, next tails and caches,
        ticket as of `launch.one_by_one`, the room)"""
        steps, half = codes.shape[1], self.frequencies.shape[0]
        phases = mx.array(program.phases, mx.int32)
        pcm, after, left, room, _, *nows = _kernel(self.sizes, len(olds))(
            inputs=[
                *(ticket, codes, position, self.tables, self.frequencies, self.parameters, phases),
                *olds,
            ],
            output_shapes=[
                *((1, samples), (1,), (launch.TICKET,), (program.room,), (steps, 2, half)),
                *(old.shape for old in olds),
            ],
            output_dtypes=[mx.float32, mx.int32, mx.uint32, *[mx.float32] * (2 + len(olds))],
            grid=(launch.blocks() * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
        )
        return pcm, after, nows, left, room


def _kernel(sizes: Sizes, olds: int) -> Any:
    old, now = ([f"{name}{i}" for i in range(olds)] for name in ("old", "now"))
    return launch.kernel(
        "codec_step",
        ("grid", "codec", "codec_rows", "codec_tiles", "codec_frames", "codec_ends", "codec_step"),
        ("ticket", "codes", "position", "tables", "frequencies", "parameters", "phases", *old),
        ("pcm", "next", "left", "room", "turn", *now),
        launch.body("codec_step"),
        *(f"HEADS {sizes.heads}", f"KV_HEADS {sizes.kv_heads}", f"DIM {sizes.dim}", f"PAST {sizes.past}"),
        *(
            f"EPS {sizes.eps!r}f",
            f"MOST_PAST {MOST_PAST}",
            f"LAST_EACH {LAST_EACH}",
            f"TICKET {launch.TICKET}",
        ),
        *(f"OLDS {', '.join(old)}", f"NOWS {', '.join(now)}"),
    )
