"""Named tensors of a checkpoint, handed out with their shapes checked, and the linear layer made of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from ...device import on_cpu
from .config import CheckpointError


class Format(NamedTuple):
    """How a linear layer was quantised."""

    group_size: int
    bits: int
    mode: str


class Linear(NamedTuple):
    """y = x @ matrix + bias, plain or MLX-quantised."""

    matrix: mx.array
    """[in, out]; packed [out, in * bits / 32] when quantised."""
    bias: mx.array | None = None
    scales: mx.array | None = None
    zeros: mx.array | None = None
    format: Format | None = None

    def __call__(self, x: mx.array, batch: int = 1) -> mx.array:
        """:param batch: requests that the rows x [batch * T, in] are of. None of them changes a bit of another."""
        if self.format is not None:
            y = self._packed(x, self.format)
            return y if self.bias is None else y + self.bias
        if batch > 1 and on_cpu():
            rows, matrix = self._apart(x, batch)
            y = rows @ matrix if self.bias is None else mx.addmm(self.bias, rows, matrix)
            return y.reshape(x.shape[0], -1)
        return x @ self.matrix if self.bias is None else mx.addmm(self.bias, x, self.matrix)

    def add(self, residual: mx.array, x: mx.array, batch: int = 1) -> mx.array:
        """residual + y, for a layer without bias."""
        if self.format is not None:
            return residual + self._packed(x, self.format)
        if not on_cpu():
            # On CUDA only a bare product of one row takes the matrix-vector kernel.
            return residual + x @ self.matrix
        if batch == 1:
            return mx.addmm(residual, x, self.matrix)
        rows, matrix = self._apart(x, batch)
        return mx.addmm(residual.reshape(batch, -1, residual.shape[1]), rows, matrix).reshape(residual.shape)

    def _apart(self, x: mx.array, batch: int) -> tuple[mx.array, mx.array]:
        """For a product of each request's own: OpenBLAS sums four rows in another order than one."""
        rows = x.reshape(batch, -1, x.shape[1])
        return rows, mx.broadcast_to(self.matrix[None], (batch, *self.matrix.shape))

    def _packed(self, x: mx.array, form: Format) -> mx.array:
        assert self.scales is not None
        return mx.quantized_matmul(
            x,
            self.matrix,
            self.scales,
            self.zeros,
            transpose=True,
            group_size=form.group_size,
            bits=form.bits,
            mode=form.mode,
        )


class Stacked(NamedTuple):
    """Linear layers of one input whose formats differ, so that their rows cannot be merged."""

    parts: tuple[Linear, ...]

    def __call__(self, x: mx.array, batch: int = 1) -> mx.array:
        return mx.concatenate([part(x, batch) for part in self.parts], axis=-1)


def merge(*parts: Linear) -> Linear | Stacked:
    """One layer whose output is the outputs of `parts` side by side (q, k, v; gate, up)."""
    form = parts[0].format
    if any(part.format != form or part.bias is not None for part in parts):
        return Stacked(parts)
    if form is None:
        return Linear(packed([part.matrix.T for part in parts]))

    def rows(values: list[mx.array | None]) -> mx.array | None:
        present = [value for value in values if value is not None]
        return mx.concatenate(present, axis=0) if present else None

    matrix = mx.concatenate([part.matrix for part in parts], axis=0)
    scales, zeros = rows([part.scales for part in parts]), rows([part.zeros for part in parts])
    return Linear(matrix, None, scales, zeros, form)


def absorb(layer: Linear | Stacked, norm: mx.array) -> tuple[Linear | Stacked, mx.array | None]:
    """The layer with the norm's weight in its rows, where that saves an operation and costs no precision."""
    if on_cpu() and isinstance(layer, Linear) and layer.format is None and norm.dtype == mx.float32:
        return layer._replace(matrix=layer.matrix * norm[:, None]), None
    return layer, norm


def packed(rows: list[mx.array]) -> mx.array:
    """Matrices [out, in] below one another, transposed to [in, out] in the memory order the device is fast with."""
    joined = mx.concatenate(rows, axis=0) if len(rows) > 1 else rows[0]
    # GPU kernels read a matrix-vector product along rows of [out, in]; OpenBLAS prefers [in, out].
    return mx.contiguous(joined.T) if on_cpu() else joined.T


class Weights:
    """Tensors by name. Missing or misshapen ones are noted, and `check` reports them together."""

    def __init__(
        self,
        arrays: dict[str, mx.array],
        dtype: mx.Dtype,
        source: str,
        quantization: dict[str, Any] | None = None,
    ) -> None:
        self._arrays = arrays
        self._source = source
        self._quantization = quantization or {}
        self._faults: list[str] = []
        self.dtype = dtype

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        """The tensor `name` of exactly `shape`, cast to `dtype` (default: the dtype of these weights)."""
        dtype = dtype or self.dtype
        found = self._arrays.get(name)
        if found is None:
            self._faults.append(f"{name} is missing")
        elif found.shape != shape:
            self._faults.append(f"{name} has shape {list(found.shape)} instead of {list(shape)}")
        else:
            return found.astype(dtype)
        return mx.zeros(shape, dtype)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        """The layer whose tensors are `name`.weight, .scales, .biases (quantised) and .bias."""
        offset = self.array(f"{name}.bias", outputs) if bias else None
        scales = self._arrays.get(f"{name}.scales")
        if scales is None:
            return Linear(packed([self.array(f"{name}.weight", outputs, inputs)]), offset)
        form = self._format(name)
        words = self._arrays.get(f"{name}.weight")
        width = inputs * form.bits // 32
        if words is None or words.shape != (outputs, width):
            found = "nothing" if words is None else list(words.shape)
            self._faults.append(f"{name}.weight is {found} instead of {form.bits}-bit [{outputs}, {width}]")
            return Linear(mx.zeros((inputs, outputs), self.dtype), offset)
        zeros = self._arrays.get(f"{name}.biases")
        if form.mode == "affine":
            scales = scales.astype(self.dtype)
            zeros = None if zeros is None else zeros.astype(self.dtype)
        return Linear(words, offset, scales, zeros, form)

    def table(self, name: str, rows: int, width: int, dtype: mx.Dtype | None = None) -> mx.array:
        """An embedding [rows, width], dequantised if the converter quantised it."""
        if f"{name}.scales" not in self._arrays:
            return self.array(f"{name}.weight", rows, width, dtype=dtype)
        layer = self.linear(name, width, rows)
        if layer.format is None or layer.scales is None:
            return layer.matrix.T
        table = mx.dequantize(layer.matrix, layer.scales, layer.zeros, **layer.format._asdict())
        return table.astype(dtype or self.dtype)

    def stored_table(self, name: str, rows: int, width: int) -> mx.array:
        """An embedding in the dtype it is stored in."""
        stored = self._arrays.get(f"{name}.weight")
        plain = stored is not None and f"{name}.scales" not in self._arrays
        return self.table(name, rows, width, stored.dtype if plain and stored is not None else None)

    def check(self) -> None:
        """:raises CheckpointError: some tensors asked for so far were missing or had the wrong shape."""
        if self._faults:
            listed = "; ".join(self._faults[:4])
            more = f"; and {len(self._faults) - 4} more" if len(self._faults) > 4 else ""
            raise CheckpointError(f"{self._source} does not match its config: {listed}{more}.")

    def _format(self, name: str) -> Format:
        own = self._quantization.get(name)
        chosen: dict[str, Any] = {**self._quantization, **(own if isinstance(own, dict) else {})}
        return Format(int(chosen["group_size"]), int(chosen["bits"]), str(chosen.get("mode", "affine")))


class RandomWeights(Weights):
    """Random tensors of whatever shape is asked for: a model to measure, not to listen to."""

    def __init__(self, dtype: mx.Dtype, format: Format | None = None, scale: float = 0.02) -> None:
        super().__init__({}, dtype, "random weights")
        self._quantised = format
        self._scale = scale
        self._keys = _keys()

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        dtype = dtype or self.dtype
        if ("norm" in name and name.endswith("weight")) or name.endswith("cluster_usage"):
            return mx.ones(shape, dtype)
        made = mx.random.normal(shape, dtype, scale=self._scale, key=next(self._keys))
        mx.eval(made)
        return made

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        plain = super().linear(name, inputs, outputs, bias=bias)
        if self._quantised is None:
            return plain
        words, scales, *zeros = mx.quantize(plain.matrix.T, **self._quantised._asdict())
        mx.eval(words, scales, zeros)
        return Linear(words, plain.bias, scales, zeros[0] if zeros else None, self._quantised)


def _keys() -> Iterator[mx.array]:
    key = mx.random.key(0)
    while True:
        key, drawn = mx.random.split(key)
        yield drawn
