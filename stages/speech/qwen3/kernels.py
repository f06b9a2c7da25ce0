"""CUDA kernels for the steps that make one frame: one launch each, and rows that do not know of each other.

A frame at released sizes runs 108 transformer layers on one row. As MLX operations a layer is about 16 kernels of a
microsecond or two, and launching them takes the host 5 to 8 microseconds each. Here all layers of the talker's step
are one kernel, and so are the predictor's 16 passes with their choices: as many blocks as the GPU has
multiprocessors stay on it and meet between the parts of a layer. Sums are fp32, and each row is summed in the same
order however many rows there are: a request computed beside others gives the bits that it gives alone.
`layers.Layer` has the same formulas in plain operations.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ...device import on_cpu
from . import launch, sampling
from .launch import TICKET, WIDTHS, body, kernel
from .layers import Layer
from .matrix import Matrix
from .sampling import Controls, Sampling
from .weights import Linear

RECENT = 32
"""Positions written before they are moved into the cache: a kernel cannot write in place."""
CHOICES = 4096
"""Ids that `choose` can choose from."""
_MATRICES = ("qkv", "out", "gate_up", "down", "head")
_NORMS = ("input_norm", "output_norm", "head_norm", "norm")
_CHOICE = """
const int b = blockIdx.x, V = logits_shape[1], c = min(b, rank_shape[0] - 1);
const int chosen = choose<THREADS>(logits + b * V, drawn + b * V, V, V - rank[c], top_p[c], temperature[c]);
if (threadIdx.x == 0) code[b] = chosen;
"""


def nucleus(given: Sampling, vocabulary: int) -> bool:
    """Whether top-p needs a trace of its own; `choose` has it in every trace where kernels serve."""
    return given.nucleus and not (launch.serve() and vocabulary <= CHOICES)


def widest(stack: "Stack | None") -> int:
    """How many requests a step may have.

    On a CPU and with our kernels none of them changes a bit of another: each row of a product is summed in the same
    order, however many rows there are. MLX's kernels promise nothing like it, so with them requests go alone.
    """
    return sys.maxsize if on_cpu() else WIDTHS[-1] if stack else 1


class Stepped(NamedTuple):
    """What a step of the talker makes, of B requests."""

    code: mx.array
    """int32 [B, 1]."""
    hidden: mx.array
    """[B, hidden]: behind the last layer and the norm."""
    position: mx.array
    """int32 [B]; one more, like `frame`."""
    seen: mx.array
    """bool [B, V]: with that code."""
    frame: mx.array
    recent: list[mx.array]
    """As given, with the position."""


class Stack(NamedTuple):
    """Layers and the heads behind them as the kernels read them."""

    qkv: Matrix
    """[L, (heads + 2 * kv_heads) * D, hidden]"""
    out: Matrix
    """[L, hidden, heads * D]"""
    gate_up: Matrix
    """[L, 2 * inner, hidden]"""
    down: Matrix
    """[L, hidden, inner]"""
    head: Matrix
    """[1 or more, V, hidden]"""
    input_norm: mx.array
    """[L, hidden], likewise `output_norm`."""
    output_norm: mx.array
    head_norm: mx.array
    """float32 [L, 2, D]: q norm times the attention scale, k norm."""
    norm: mx.array
    """[hidden], ahead of the head."""
    heads: int
    kv_heads: int
    eps: float

    def step(
        self,
        x: mx.array,
        turns: tuple[mx.array, mx.array],
        base: mx.array,
        position: mx.array,
        seen: mx.array,
        frame: mx.array,
        key: mx.array,
        control: Controls,
        barred: mx.array,
        bars: int,
        caches: list[mx.array],
        recent: list[mx.array],
        ticket: mx.array,
    ) -> tuple[Stepped, mx.array]:
        """One position of each of B requests, and the code 0 behind it, as `talker_step.CodeZero` chooses it.

        :param x: [B, hidden].
        :param turns: cos and sin of all positions, as of `ops.rotary`.
        :param base: int32 [B]: positions that are in the caches.
        :param position: int32 [B]; `frame` likewise.
        :param seen: bool [B, V].
        :param key: uint32 [B, 2].
        :param barred: float32 [2, V], added to the logits: of the first `bars` frames, of the others.
        :param caches: [L, 2, kv_heads, S, D] of each request.
        :param recent: likewise with `RECENT` positions, from `base` on.
        :returns: also the ticket.
        """
        batch, dtype = len(caches), x.dtype
        # One kernel for all batches, filled up with arrays that it does not touch.
        missing = WIDTHS[-1] - batch
        each = range(batch + missing)
        olds, recents, nows = ([f"{name}{b}" for b in each] for name in ("old", "recent", "now"))
        names, arrays = self._inputs()
        given = ("ticket", "x", "cos", "sin", "base", "position", "seen", "frame", "key", "barred")
        results = ("code", "hidden", "position_now", "seen_now", "frame_now")
        run = kernel(
            "talker_step",
            ("grid", "product", "attention", "noise", "choice", "layers"),
            (*given, *Controls._fields, *names, *olds, *recents),
            (*results, "made", "logits", "drawn", "parts", "room", "left", *nows),
            body("talker_step"),
            *self._defines(),
            f"RECENT {RECENT}",
            f"MIN_FRAMES {bars}",
        )
        count, ids, room = (batch,), seen.shape, (batch * self._room(),)
        chunks = (caches[0].shape[3] + RECENT - 1) // self._chunk() + 1
        parts = (batch * self.heads * chunks * (self.head_norm.shape[2] + 2),)
        shapes = [(batch, 1), x.shape, count, ids, count, x.shape, ids, ids, parts, room, (TICKET,)]
        small = [mx.int32, dtype, mx.int32, mx.bool_, mx.int32]
        dtypes = [*small, dtype, *[mx.float32] * 3, dtype, mx.uint32]
        code, hidden, position, seen, frame, _, _, _, _, _, left, *now = run(
            inputs=[
                *(ticket, x, *turns, base, position, seen, frame, key, barred, *control, *arrays),
                *(*caches, *caches[-1:] * missing, *recent, *recent[-1:] * missing),
            ],
            output_shapes=[*shapes, *[part.shape for part in recent], *[(1,)] * missing],
            output_dtypes=[*dtypes, *[dtype] * len(each)],
            **self._launched(dtype),
        )
        return Stepped(code, hidden, position, seen, frame, now[:batch]), left

    def frame(
        self,
        table: mx.array,
        inputs: mx.array,
        turns: tuple[mx.array, mx.array],
        start: mx.array,
        code0: mx.array,
        key: mx.array,
        frame: mx.array,
        control: Controls,
        ticket: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """The code groups behind the first, of one frame of each of B requests, each chosen in turn.

        Their number is that of the heads, G - 1.

        :param table: embeddings of the codes of all groups, [first vocabulary + (G - 1) * V, H].
        :param inputs: likewise, as these layers take them in: [..., hidden].
        :param turns: cos and sin of positions 0 … G - 1, as of `ops.rotary`.
        :param start: row of position 0, [B, hidden]; code0 int32 [B, 1].
        :param key: uint32 [B, 2]; frame int32 [B].
        :returns: codes int32 [B, G], the sum of their embeddings [B, 1, H], ticket.
        """
        batch, (later, vocabulary) = start.shape[0], self.head.words.shape[:2]
        names, arrays = self._inputs()
        given = ("ticket", "start", "code0", "table", "inputs", "cos", "sin", "key", "frame")
        used = Controls._fields[:-1]  # the predictor knows no repetition penalty
        run = kernel(
            "predictor_frame",
            ("grid", "product", "attention", "noise", "choice", "layers"),
            (*given, *used, *names),
            ("codes", "embedded", "x", "logits", "drawn", "kept", "room", "left"),
            body("predictor_frame"),
            *self._defines(),
            f"GROUPS {later + 1}",
            f"FIRST {table.shape[0] - later * vocabulary}",
            f"WIDE {table.shape[1]}",
        )
        kept = batch * self.qkv.words.shape[0] * 2 * self.kv_heads * (later + 1) * self.head_norm.shape[2]
        room = batch * (self._room() + start.shape[1])
        made = [(batch, later + 1), (batch, 1, table.shape[1])]
        spare = [start.shape, (batch, vocabulary), (later, batch, vocabulary), (kept,), (room,)]
        dtype = start.dtype
        codes, embedded, *_, left = run(
            inputs=[ticket, start, code0, table, inputs, *turns, key, frame, *control[: len(used)], *arrays],
            output_shapes=[*made, *spare, (TICKET,)],
            output_dtypes=[mx.int32, dtype, dtype, mx.float32, mx.float32, dtype, dtype, mx.uint32],
            **self._launched(dtype),
        )
        return codes, embedded, left

    def _launched(self, dtype: mx.Dtype) -> dict[str, Any]:
        """On all multiprocessors."""
        return {
            "grid": (launch.blocks() * launch.THREADS, 1, 1),
            "threadgroup": (launch.THREADS, 1, 1),
            "template": [("T", dtype), ("THREADS", launch.THREADS)],
        }

    def _matrices(self) -> dict[str, Matrix]:
        return dict(zip(_MATRICES, (self.qkv, self.out, self.gate_up, self.down, self.head), strict=True))

    def _inputs(self) -> tuple[list[str], list[mx.array]]:
        """Names in the kernels, and arrays."""
        norms = self.input_norm, self.output_norm, self.head_norm, self.norm
        names, arrays = list[str](_NORMS), [*norms]
        for name, matrix in self._matrices().items():
            names += matrix.names(name)
            arrays += matrix.arrays
        return names, arrays

    def _chunk(self) -> int:
        """Positions that a block attends to at a time: a thread has eight dimensions of four of them."""
        return launch.THREADS // (self.head_norm.shape[2] // 8) * 4

    def _room(self) -> int:
        """Numbers that a request needs for what the parts of a layer pass on."""
        return self.qkv.rows + self.out.columns + self.out.rows + self.down.columns

    def _defines(self) -> list[str]:
        sizes = {
            "LAYERS": self.qkv.words.shape[0],
            "HIDDEN": self.qkv.columns,
            "INNER": self.down.columns,
            "QKV": self.qkv.rows,
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "DIM": self.head_norm.shape[2],
            "VOCABULARY": self.head.rows,
            "WARPS": launch.THREADS // 32,
            "CHUNK": self._chunk(),
            "TICKET": TICKET,
            "EPS": f"{self.eps!r}f",
        }
        own = [f"{name} {size}" for name, size in sizes.items()]
        return own + [line for name, matrix in self._matrices().items() for line in matrix.defines(name)]


def stack(
    layers: Sequence[Layer], heads: Sequence[Linear], norm: mx.array
) -> tuple[list[Layer], list[Linear], Stack | None]:
    """Layers, the heads behind them with their norm, and as kernels, whose weights they then share.

    None where kernels cannot serve: not on CUDA, sizes or formats that they are not made for.
    """
    first = layers[0]
    columns = [[getattr(layer, name) for layer in layers] for name in ("qkv", "out", "gate_up", "down")]
    # Four lanes load 32 numbers of a row; of a head the lanes of a warp have eight each.
    found = (
        [Matrix.of(each) for each in (*columns, heads)]
        if launch.serve() and first.head_dim in (64, 128, 256)
        else []
    )
    matrices = [one for one in found if one is not None and one.rows % 8 == 0 and one.columns % 32 == 0]
    # In fp16 a row times its norm's weight could overflow; quantised weights are unpacked for tensor cores only.
    forms = {one.format for one in matrices}
    fits = norm.dtype == mx.bfloat16 or (norm.dtype == mx.float32 and forms == {None})
    if len(matrices) < len(_MATRICES) or not fits or launch.blocks() < WIDTHS[-1]:
        return list(layers), list(heads), None
    norms = [
        mx.stack([one for one in column if one is not None])
        for column in zip(*map(_norms, layers), strict=True)
    ]
    mx.eval([one.arrays for one in matrices], norms)
    parts = zip(layers, *(one.apart() for one in matrices[:4]), strict=True)
    sharing = [
        layer._replace(qkv=qkv, out=out, gate_up=gate_up, down=down)
        for layer, qkv, out, gate_up, down in parts
    ]
    qkv, out, gate_up, down, head = matrices
    input_norm, output_norm, head_norm = norms
    sizes = first.heads, first.kv_heads, first.eps
    made = Stack(qkv, out, gate_up, down, head, input_norm, output_norm, head_norm, norm, *sizes)
    return sharing, head.apart(), made


def _norms(layer: Layer) -> tuple[mx.array | None, mx.array | None, mx.array]:
    both = mx.stack([layer.head_norm[0, 0], layer.head_norm[0, layer.heads]]).reshape(2, -1)
    return layer.input_norm, layer.output_norm, both


def choose(logits: mx.array, drawn: mx.array, control: Controls, nucleus: bool) -> mx.array:
    """`sampling.choose`, as one kernel where kernels serve."""
    if not launch.serve() or logits.shape[1] > CHOICES:
        return sampling.choose(logits, drawn, control, nucleus)
    batch, names = logits.shape[0], ("logits", "drawn", "rank", "top_p", "temperature")
    return kernel("choice", ("choice",), names, ("code",), _CHOICE)(
        inputs=[logits, drawn, control.rank, control.top_p, control.temperature],
        output_shapes=[(batch, 1)],
        output_dtypes=[mx.int32],
        grid=(launch.THREADS * batch, 1, 1),
        threadgroup=(launch.THREADS, 1, 1),
        template=[("THREADS", launch.THREADS)],
    )[0]
