"""CUDA kernels for the steps that make one frame: few launches, and rows that do not know of each other.

A frame at released sizes runs 108 transformer layers on one row. As MLX operations a layer is about 16 kernels of a
microsecond or two, most of it launch; here it is five: qkv with its norm, attention with head norms, rotation and
cache, the product back with its residual, gate and up with norm and SwiGLU, the product down with its residual.
Sums are fp32, each row is summed in the same order however many rows there are, so a request computed beside others
gives the bits that it gives alone. `layers.Layer` has the same formulas in plain operations.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from ...device import backend, plain
from . import sampling
from .layers import Layer
from .ops import rms_norm, silu
from .sampling import Controls, Sampling
from .weights import Linear, Stacked

WIDTHS = (1, 2, 4, 8)
"""Requests that a step has a trace for; a batch is filled up to the next of them."""
RECENT = 32
"""Positions written before they are moved into the cache: a kernel cannot write in place."""
CHOICES = 4096
"""Ids that `choose` can choose from."""
_FOLDER = Path(__file__).parent / "cuda"
_WARPS = 4
_ATTENTION_WARPS = 16
_PRODUCT = "product<T, O>(x, w, other, out, x_shape[0], w_shape[0], x_shape[1]);"
_ATTENTION = """
const int b = blockIdx.x / KV_HEADS, head = blockIdx.x % KV_HEADS;
const T *old = nullptr, *recent = nullptr;
T* out = nullptr;
int room = 0;
{select}
attend<T, HEADS, KV_HEADS, D, RECENT, WARPS>(
    qkv + b * (HEADS + 2 * KV_HEADS) * D, norm, cos + min(b, cos_shape[0] - 1) * D / 2,
    sin + min(b, sin_shape[0] - 1) * D + D / 2, position[min(b, position_shape[0] - 1)],
    base[min(b, base_shape[0] - 1)], head, old, room, recent, out, heard + b * HEADS * D);
"""
_SELECT = "if (b == {b}) {{ old = cache{b}; recent = recent{b}; out = out{b}; room = cache{b}_shape[2]; }}"
_CHOICE = """
const int b = blockIdx.x, V = logits_shape[1], c = min(b, rank_shape[0] - 1);
choose(logits + b * V, drawn + b * V, V, V - rank[c], top_p[c], temperature[c], code + b);
"""

Item = TypeVar("Item")


def serve() -> bool:
    """Whether this device runs them."""
    return backend() == "cuda" and not plain("kernels")


def nucleus(given: Sampling) -> bool:
    """Whether top-p needs a trace of its own; `choose` has it in every trace where kernels serve."""
    return given.nucleus and not serve()


def filled_up(parts: list[Item]) -> list[Item]:
    """As many as there are rows in the next of `WIDTHS`; the last one again for those that are missing."""
    return parts + parts[-1:] * (width(len(parts)) - len(parts))


def widths(rows: int) -> list[int]:
    """The sizes of batches of up to `rows` requests that have a trace of their own."""
    return [wide for wide in WIDTHS if wide <= width(rows)] if serve() else [1]


def width(count: int) -> int:
    """The smallest of `WIDTHS` that holds `count` requests."""
    return next(wide for wide in WIDTHS if wide >= count)


@cache
def _kernel(
    name: str, file: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: str, *defined: str
) -> Any:
    """Each is compiled when it first runs, which takes seconds: so there are few, for all numbers of rows."""
    defines = "".join(f"#define {one}\n" for one in defined)
    parts = [(_FOLDER / part).read_text() for part in ("common.cuh", file)]
    return mx.fast.cuda_kernel(
        name=name,
        input_names=list(inputs),
        output_names=list(outputs),
        source=body,
        header=defines + "".join(parts),
    )


class Rows(NamedTuple):
    """A linear layer as the kernels read it."""

    layer: Linear | Stacked
    matrix: mx.array | None
    """[out, in]; None when quantised: MLX's operations serve then."""

    @classmethod
    def of(cls, layer: Linear | Stacked) -> "Rows":
        if isinstance(layer, Stacked) or layer.format is not None or layer.bias is not None:
            return cls(layer, None)
        matrix = layer.matrix.T
        mx.eval(matrix)
        return cls(layer, matrix)

    def normed(self, x: mx.array, norm: mx.array, eps: float, dtype: mx.Dtype | None = None) -> mx.array:
        """The layer of rms_norm(x) for rows x [B, in]: [B, out]."""
        if self.matrix is None:
            return self.layer(rms_norm(x, norm, eps)).astype(dtype or x.dtype)
        columns = self.matrix.shape[0]
        return _product("normed", x, self.matrix, norm, columns, dtype or x.dtype, f"EPS {eps!r}f")

    def gated(self, x: mx.array, norm: mx.array, eps: float) -> mx.array:
        """silu(gate) * up of rms_norm(x), gate and up being the halves of the layer: [B, out / 2]."""
        if self.matrix is None:
            gate, up = mx.split(self.layer(rms_norm(x, norm, eps)), 2, axis=1)
            return silu(gate) * up
        columns = self.matrix.shape[0] // 2
        return _product("gated", x, self.matrix, norm, columns, x.dtype, "GATED", f"EPS {eps!r}f")

    def added(self, residual: mx.array, x: mx.array) -> mx.array:
        """residual [B, out] + the layer of x."""
        if self.matrix is None:
            assert isinstance(self.layer, Linear)
            return self.layer.add(residual, x)
        return _product("added", x, self.matrix, residual, self.matrix.shape[0], x.dtype, "ADDED")


def _product(
    name: str, x: mx.array, matrix: mx.array, other: mx.array, columns: int, dtype: mx.Dtype, *defined: str
) -> mx.array:
    blocks = -(-matrix.shape[0] // (2 * _WARPS))
    kernel = _kernel(name, "product.cuh", ("x", "w", "other"), ("out",), _PRODUCT, *defined)
    return kernel(
        inputs=[x, matrix, other],
        output_shapes=[(x.shape[0], columns)],
        output_dtypes=[dtype],
        grid=(32 * _WARPS * blocks, 1, 1),
        threadgroup=(32 * _WARPS, 1, 1),
        template=[("T", x.dtype), ("O", dtype)],
    )[0]


class Kept(NamedTuple):
    """Keys and values of each of B requests in one layer."""

    caches: list[mx.array]
    """[2, kv_heads, S, D] each, filled up to `base`."""
    recent: list[mx.array]
    """[2, kv_heads, R, D] each: the positions from `base` on."""


class FusedLayer(NamedTuple):
    qkv: Rows
    out: Rows
    gate_up: Rows
    down: Rows
    head_norm: mx.array
    """float32 [2, D]: q norm times the attention scale, k norm."""
    layer: Layer

    @classmethod
    def of(cls, layer: Layer) -> "FusedLayer":
        norms = mx.stack([layer.head_norm[0, 0], layer.head_norm[0, layer.heads]]).reshape(2, -1)
        mx.eval(norms)
        qkv, out, gate_up, down = map(Rows.of, (layer.qkv, layer.out, layer.gate_up, layer.down))
        return cls(qkv, out, gate_up, down, norms, layer)

    def __call__(
        self, x: mx.array, cos: mx.array, sin: mx.array, position: mx.array, base: mx.array, kept: Kept
    ) -> tuple[mx.array, list[mx.array]]:
        """One position of each of B requests: rows x [B, hidden] → (rows, `recent` with that position).

        cos and sin as of `ops.rotary`, position and base int32, for each request or one for all.
        """
        layer = self.layer
        assert layer.input_norm is not None
        assert layer.output_norm is not None
        projected = self.qkv.normed(x, layer.input_norm, layer.eps)
        heard, recent = self._attend(projected, cos, sin, position, base, kept)
        x = self.out.added(x, heard)
        return self.down.added(x, self.gate_up.gated(x, layer.output_norm, layer.eps)), recent

    def _attend(
        self, qkv: mx.array, cos: mx.array, sin: mx.array, position: mx.array, base: mx.array, kept: Kept
    ) -> tuple[mx.array, list[mx.array]]:
        layer, batch = self.layer, len(kept.caches)
        # One kernel for a request alone, one for all larger batches, filled up with arrays that it does not touch.
        missing = 0 if batch == 1 else WIDTHS[-1] - batch
        each = range(batch + missing)
        caches, recents, outs = ([f"{name}{b}" for b in each] for name in ("cache", "recent", "out"))
        select = "\n".join(_SELECT.format(b=b) for b in each)
        kernel = _kernel(
            f"attention_{len(each)}",
            "attention.cuh",
            ("qkv", "norm", "cos", "sin", "position", "base", *caches, *recents),
            ("heard", *outs),
            _ATTENTION.format(select=select),
            f"EPS {layer.eps!r}f",
        )
        old, new = (part + part[-1:] * missing for part in (kept.caches, kept.recent))
        shapes = [part.shape for part in kept.recent] + [(1,)] * missing
        heard, *recent = kernel(
            inputs=[qkv, self.head_norm, cos, sin, position, base, *old, *new],
            output_shapes=[(batch, layer.heads * layer.head_dim), *shapes],
            output_dtypes=[qkv.dtype] * (1 + len(each)),
            grid=(batch * layer.kv_heads * _ATTENTION_WARPS * 32, 1, 1),
            threadgroup=(_ATTENTION_WARPS * 32, 1, 1),
            template=[
                ("T", qkv.dtype),
                ("HEADS", layer.heads),
                ("KV_HEADS", layer.kv_heads),
                ("D", layer.head_dim),
                ("RECENT", kept.recent[0].shape[2]),
                ("WARPS", _ATTENTION_WARPS),
            ],
        )
        return heard, recent[:batch]


def choose(logits: mx.array, drawn: mx.array, control: Controls, nucleus: bool) -> mx.array:
    """`sampling.choose`, as one kernel where kernels serve."""
    if not serve() or logits.shape[1] > CHOICES:
        return sampling.choose(logits, drawn, control, nucleus)
    batch, names = logits.shape[0], ("logits", "drawn", "rank", "top_p", "temperature")
    return _kernel("choice", "choice.cuh", names, ("code",), _CHOICE)(
        inputs=[logits, drawn, control.rank, control.top_p, control.temperature],
        output_shapes=[(batch, 1)],
        output_dtypes=[mx.int32],
        grid=(1024 * batch, 1, 1),
        threadgroup=(1024, 1, 1),
    )[0]


def fused(layers: Sequence[Layer]) -> list[FusedLayer]:
    """The layers as kernels; empty where they cannot serve: not on CUDA, or head sizes they are not made for."""
    first = layers[0]
    # A lane of a warp loads 16 bytes and has the two halves of a head.
    fits = first.head_dim % 64 == 0 and first.heads <= 4 * first.kv_heads
    fits = fits and first.input_norm is not None and first.input_norm.size % 8 == 0
    return [FusedLayer.of(layer) for layer in layers] if fits and serve() else []
