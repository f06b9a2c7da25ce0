"""Random weights that remember themselves, so that they can be written as a checkpoint."""

from typing import Any

import mlx.core as mx

from ..speech.qwen3.weights import Format, RandomWeights


class Recording(RandomWeights):
    def __init__(self, dtype: mx.Dtype) -> None:
        super().__init__(dtype)
        self._tensors: dict[str, mx.array] = {}
        self._linear: list[str] = []

    def array(self, name: str, *shape: int, dtype: mx.Dtype | None = None) -> mx.array:
        made = super().array(name, *shape, dtype=dtype)
        self._tensors[name] = made
        return made

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Any:
        self._linear.append(name)
        return super().linear(name, inputs, outputs, bias=bias)

    def tensors(self, form: Format | None = None) -> dict[str, mx.array]:
        """All that was asked for, by its name in a checkpoint, with linear layers quantised to `form`."""
        if form is not None:
            for name in self._linear:
                weight = self._tensors[f"{name}.weight"]
                packed, scales, *zeros = mx.quantize(
                    weight, group_size=form.group_size, bits=form.bits, mode=form.mode
                )
                self._tensors[f"{name}.weight"], self._tensors[f"{name}.scales"] = packed, scales
                if zeros:
                    self._tensors[f"{name}.biases"] = zeros[0]
                mx.eval(packed, scales, zeros)
        return self._tensors
