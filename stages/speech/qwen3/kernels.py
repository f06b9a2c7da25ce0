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
from typing import Any, NamedTuple, cast

import mlx.core as mx

from ...device import on_cpu
from . import launch, sampling
from .launch import TICKET, WIDTHS, kernel
from .layers import Layer
from .sampling import Controls, Sampling
from .weights import Format, Linear, Stacked

RECENT = 32
"""Positions written before they are moved into the cache: a kernel cannot write in place."""
CHOICES = 4096
"""Ids that `choose` can choose from."""
_MATRICES = ("qkv", "out", "gate_up", "down", "head")
_NORMS = ("input_norm", "output_norm", "head_norm", "norm")
_BEGIN = """
Grid grid{{const_cast<unsigned*>(ticket)}};
if (blockIdx.x == 0 && threadIdx.x < TICKET) left[threadIdx.x] = 0;
const Layers<T> layers{{{qkv}, {out}, {gate_up}, {down}, input_norm, output_norm}};
const Matrix<T, HEAD_FORM> heads{head};
"""
_STEP = """
const int rows = x_shape[0];
const Passed<T> passed(made, room, rows);
int here[8], begin[8];
for (int b = 0; b < rows; ++b) {{ here[b] = position[b]; begin[b] = base[b]; }}
through(x, layers, passed, rows, grid, [&](int layer, int b, int query) {{
  const T *old = nullptr, *recent = nullptr;
  T* now = nullptr;
  int positions = 0;
  {select}
  const size_t at = size_t(layer) * 2 * KV_HEADS * DIM;
  attend<T, RECENT>(
      passed.qkv + size_t(b) * QKV, head_norm + layer * 2 * DIM, cos + b * DIM / 2, sin + b * DIM + DIM / 2,
      here[b], begin[b], query, old + at * positions, positions, recent + at * RECENT, now + at * RECENT,
      passed.heard + b * HEADS * DIM);
}});
say(made, heads, norm, logits, rows);
"""
_SELECT = "if (b == {b}) {{ old = old{b}; recent = recent{b}; now = now{b}; positions = old{b}_shape[3]; }}"
_FRAME = """
const int rows = start_shape[0];
const Passed<T> passed(x, room, rows);
T* given = passed.gated + size_t(rows) * INNER;
const auto give = [&](int b, int row) {
  for (int k = threadIdx.x; k < HIDDEN; k += THREADS) given[b * HIDDEN + k] = table[size_t(row) * HIDDEN + k];
};
const int own = blockIdx.x, control = min(own, rank_shape[0] - 1);  // there are more blocks than rows
const int kept_ids = VOCABULARY - rank[control];
const float p = top_p[control], heat = temperature[control];
if (own < rows) {
  give(own, code0[own]);
  if (threadIdx.x == 0) codes[own * GROUPS] = code0[own];
}
for (int at = 0; at < GROUPS; ++at) {
  through(at == 0 ? start : given, layers, passed, rows, grid, [&](int layer, int b, int query) {
    T* past = kept + (size_t(b) * LAYERS + layer) * 2 * KV_HEADS * GROUPS * DIM;
    attend<T, GROUPS>(
        passed.qkv + size_t(b) * QKV, head_norm + layer * 2 * DIM, cos + at * DIM / 2, sin + at * DIM + DIM / 2,
        at, 0, query, nullptr, 0, past, past, passed.heard + b * HEADS * DIM);
  });
  if (at == 0) continue;
  say(x, heads.from((at - 1) * VOCABULARY), norm, logits, rows);
  grid.meet();
  if (own < rows) {
    const int code = choose<THREADS>(
        logits + own * VOCABULARY, drawn + (size_t(at - 1) * rows + own) * VOCABULARY, VOCABULARY,
        kept_ids, p, heat);
    if (threadIdx.x == 0) codes[own * GROUPS + at] = code;
    if (at + 1 < GROUPS) give(own, FIRST + (at - 1) * VOCABULARY + code);
  }
  if (at + 1 < GROUPS) grid.meet();
}
"""
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


class Matrix(NamedTuple):
    """The same product of L layers, their weights one behind the other."""

    words: mx.array
    """[L, out, in], packed [L, out, in * bits / 32] when quantised."""
    scales: mx.array | None
    """[L, out, in / group], likewise `zeros`, when quantised."""
    zeros: mx.array | None
    format: Format | None

    @classmethod
    def of(cls, linears: Sequence[Linear | Stacked]) -> "Matrix | None":
        """None where kernels cannot serve: biases, formats that differ, others than affine ones of 8 or 4 bits."""
        plain = [one for one in linears if isinstance(one, Linear) and one.bias is None]
        forms = {one.format for one in plain}
        if len(plain) < len(linears) or len(forms) > 1:
            return None
        form = forms.pop()
        if form is None:
            return cls(mx.stack([one.matrix.T for one in plain]), None, None, None)
        if form.mode != "affine" or form.bits not in (8, 4) or form.group_size % 8:
            return None
        scales, zeros = [one.scales for one in plain], [one.zeros for one in plain]
        if any(part is None for part in (*scales, *zeros)):
            return None
        words = mx.stack([one.matrix for one in plain])
        return cls(words, mx.stack(cast(Any, scales)), mx.stack(cast(Any, zeros)), form)

    @property
    def arrays(self) -> list[mx.array]:
        return [part for part in self[:3] if isinstance(part, mx.array)]

    @property
    def bits(self) -> int:
        return 16 if self.format is None else self.format.bits

    @property
    def rows(self) -> int:
        return self.words.shape[1]

    @property
    def columns(self) -> int:
        return self.words.shape[2] if self.format is None else self.words.shape[2] * 32 // self.bits

    def apart(self) -> list[Linear]:
        """The layers, sharing these arrays."""
        if self.scales is None or self.zeros is None:
            return [Linear(one.T) for one in self.words]
        parts = zip(self.words, self.scales, self.zeros, strict=True)
        return [Linear(words, None, scales, zeros, self.format) for words, scales, zeros in parts]


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
        turn: tuple[mx.array, mx.array],
        position: mx.array,
        base: mx.array,
        caches: list[mx.array],
        recent: list[mx.array],
        ticket: mx.array,
    ) -> tuple[mx.array, mx.array, list[mx.array], mx.array]:
        """One position of each of B requests.

        :param x: [B, hidden].
        :param turn: cos and sin of the positions, as of `ops.rotary`.
        :param position: int32 [B]; `base` likewise: positions that are in the caches.
        :param caches: [L, 2, kv_heads, S, D] of each request.
        :param recent: likewise with `RECENT` positions, from `base` on.
        :returns: rows [B, hidden] behind the last layer, logits float32 [B, V], `recent` with the position, ticket.
        """
        batch = len(caches)
        # One kernel for all batches, filled up with arrays that it does not touch.
        missing = WIDTHS[-1] - batch
        each = range(batch + missing)
        olds, recents, nows = ([f"{name}{b}" for b in each] for name in ("old", "recent", "now"))
        names, arrays = self._inputs()
        run = kernel(
            "step",
            ("grid", "product", "attention", "layers"),
            ("ticket", "x", "cos", "sin", "position", "base", *names, *olds, *recents),
            ("made", "logits", "room", "left", *nows),
            self._begin() + _STEP.format(select="\n".join(_SELECT.format(b=b) for b in each)),
            *self._defines(),
            f"RECENT {RECENT}",
        )
        shapes = [part.shape for part in recent] + [(1,)] * missing
        made, logits, _, left, *now = run(
            inputs=[
                *(ticket, x, *turn, position, base, *arrays),
                *(*caches, *caches[-1:] * missing, *recent, *recent[-1:] * missing),
            ],
            output_shapes=[x.shape, (batch, self.head.rows), (batch * self._room(),), (TICKET,), *shapes],
            output_dtypes=[x.dtype, mx.float32, x.dtype, mx.uint32, *[x.dtype] * len(each)],
            grid=(launch.blocks() * launch.THREADS, 1, 1),
            threadgroup=(launch.THREADS, 1, 1),
            template=[("T", x.dtype), ("THREADS", launch.THREADS)],
        )
        return made, logits, now[:batch], left

    def frame(
        self,
        table: mx.array,
        turn: tuple[mx.array, mx.array],
        start: mx.array,
        code0: mx.array,
        drawn: mx.array,
        control: Controls,
        ticket: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """The code groups behind the first, of one frame of each of B requests, each chosen in turn.

        Their number is that of the heads, G - 1.

        :param table: rows of the codes of all groups, [first vocabulary + (G - 1) * V, hidden].
        :param turn: cos and sin of positions 0 … G - 1, as of `ops.rotary`.
        :param start: row of position 0, [B, hidden]; code0 int32 [B, 1].
        :param drawn: noise, float32 [G - 1, B, V].
        :returns: codes int32 [B, G], ticket.
        """
        batch, (later, vocabulary) = start.shape[0], self.head.words.shape[:2]
        own, arrays = self._inputs()
        names = ("ticket", "start", "code0", "table", "cos", "sin", "drawn", "rank", "top_p", "temperature")
        run = kernel(
            "frame",
            ("grid", "product", "attention", "choice", "layers"),
            (*names, *own),
            ("codes", "x", "logits", "kept", "room", "left"),
            self._begin() + _FRAME,
            *self._defines(),
            f"GROUPS {later + 1}",
            f"FIRST {table.shape[0] - later * vocabulary}",
        )
        kept = batch * self.qkv.words.shape[0] * 2 * self.kv_heads * (later + 1) * self.head_norm.shape[2]
        room = batch * (self._room() + start.shape[1])
        codes, _, _, _, _, left = run(
            inputs=[
                *(ticket, start, code0, table, *turn, drawn),
                *(control.rank, control.top_p, control.temperature, *arrays),
            ],
            output_shapes=[(batch, later + 1), start.shape, (batch, vocabulary), (kept,), (room,), (TICKET,)],
            output_dtypes=[mx.int32, start.dtype, mx.float32, start.dtype, start.dtype, mx.uint32],
            grid=(launch.blocks() * launch.THREADS, 1, 1),
            threadgroup=(launch.THREADS, 1, 1),
            template=[("T", start.dtype), ("THREADS", launch.THREADS)],
        )
        return codes, left

    def _matrices(self) -> dict[str, Matrix]:
        return dict(zip(_MATRICES, (self.qkv, self.out, self.gate_up, self.down, self.head), strict=True))

    def _inputs(self) -> tuple[list[str], list[mx.array]]:
        """Names in the kernels, and arrays."""
        norms = self.input_norm, self.output_norm, self.head_norm, self.norm
        names, arrays = list[str](_NORMS), [*norms]
        for name, matrix in self._matrices().items():
            names += (name, f"{name}_scales", f"{name}_zeros")[: len(matrix.arrays)]
            arrays += matrix.arrays
        return names, arrays

    def _begin(self) -> str:
        parts = {
            name: f"{{{name}, nullptr, nullptr, 0}}"
            if matrix.format is None
            else f"{{{name}, {name}_scales, {name}_zeros, 0}}"
            for name, matrix in self._matrices().items()
        }
        return _BEGIN.format(**parts)

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
            "TICKET": TICKET,
            "EPS": f"{self.eps!r}f",
        }
        for name, matrix in self._matrices().items():
            sizes[f"{name.upper()}_TILE"] = _tile(matrix.rows, matrix.columns)
            sizes[f"{name.upper()}_FORM"] = (
                f"{matrix.bits}, {matrix.format.group_size if matrix.format else 1}"
            )
        return [f"{name} {size}" for name, size in sizes.items()]


def _tile(rows: int, columns: int) -> str:
    """Rows of a matrix that are summed together, and warps that share them: the last block is ready early."""
    warps = launch.THREADS // 32

    def longest(tile: int, split: int) -> tuple[int, int]:
        rounds = -(-rows // (tile * (warps // split) * launch.blocks()))
        return rounds * tile * -(-columns // (32 * split)), rounds

    splits = [1 << i for i in range(warps.bit_length())]
    fitting = [(tile, split) for tile in (16, 8) if rows % tile == 0 for split in splits]
    return "{}, {}".format(*min(fitting, key=lambda one: longest(*one)))


def stack(
    layers: Sequence[Layer], heads: Sequence[Linear], norm: mx.array
) -> tuple[list[Layer], list[Linear], Stack | None]:
    """Layers, the heads behind them with their norm, and as kernels, whose weights they then share.

    None where kernels cannot serve: not on CUDA, sizes or formats that they are not made for.
    """
    first = layers[0]
    columns = [[getattr(layer, name) for layer in layers] for name in ("qkv", "out", "gate_up", "down")]
    # Four lanes load 32 numbers of a row, and a lane has the two halves of a head.
    found = (
        [Matrix.of(each) for each in (*columns, heads)] if launch.serve() and first.head_dim % 64 == 0 else []
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
