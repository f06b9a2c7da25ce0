"""A product's weights as our CUDA kernels read them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from . import launch
from .weights import Format, Linear, Stacked


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
    def rows(self) -> int:
        return self.words.shape[1]

    @property
    def columns(self) -> int:
        return self.words.shape[2] if self.format is None else self.words.shape[2] * 32 // self.format.bits

    def apart(self) -> list[Linear]:
        """The layers, sharing these arrays."""
        if self.scales is None or self.zeros is None:
            return [Linear(one.T) for one in self.words]
        parts = zip(self.words, self.scales, self.zeros, strict=True)
        return [Linear(words, None, scales, zeros, self.format) for words, scales, zeros in parts]

    def names(self, name: str) -> list[str]:
        """Of `arrays`, in a kernel."""
        return [name, f"{name}_scales", f"{name}_zeros"][: len(self.arrays)]

    def defines(self, name: str) -> list[str]:
        """What `cuda/product.cuh` needs to know of it, and how it is begun with its arrays."""
        form, upper = self.format, name.upper()
        bits, group = (16, 1) if form is None else (form.bits, form.group_size)
        parts = (*self.names(name), "nullptr", "nullptr")[:3]
        return [
            f"{upper}_TILE {_tile(self.rows, self.columns)}",
            f"{upper}_FORM {bits}, {group}",
            f"{upper}_AT {{{', '.join(parts)}, 0}}",
        ]


def _tile(rows: int, columns: int) -> str:
    """Rows of a matrix that are summed together, and warps that share them: the last block is ready early."""
    warps = launch.THREADS // 32

    def longest(tile: int, split: int) -> tuple[int, int]:
        rounds = -(-rows // (tile * (warps // split) * launch.blocks()))
        return rounds * tile * -(-columns // (32 * split)), rounds

    splits = [1 << i for i in range(warps.bit_length())]
    fitting = [(tile, split) for tile in (16, 8) if rows % tile == 0 for split in splits]
    return "{}, {}".format(*min(fitting, key=lambda one: longest(*one)))
