"""Runs CUDA kernels on the CPU, for tests on machines without a GPU: what `mx.fast.cuda_kernel` makes, compiled
with a C++ compiler and `cuda/on_cpu.h`. Arrays of float32, bfloat16, int32, uint32 and bool only."""

import ctypes
import hashlib
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3 import kernels, launch, layers

_NAMES: dict[Any, str] = {
    np.dtype(np.float32): "float",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.uint16): "__nv_bfloat16",
    np.dtype(np.bool_): "bool",
}
_TYPES: dict[mx.Dtype, Any] = {
    mx.float32: np.float32,
    mx.int32: np.int32,
    mx.uint32: np.uint32,
    mx.bfloat16: np.uint16,
    mx.bool_: np.bool_,
}
BLOCKS, THREADS, RECENT = 8, 64, 5
_HEADER = Path(__file__).parent / "cuda" / "on_cpu.h"


def play(monkeypatch: pytest.MonkeyPatch, folders: pytest.TempPathFactory) -> None:
    """Skips the test where there is no C++ compiler."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    folder = folders.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(mx.fast, "cuda_kernel", partial(Kernel, folder), raising=False)
    monkeypatch.setattr(launch, "serve", lambda: True)
    monkeypatch.setattr(launch, "blocks", lambda: BLOCKS)
    monkeypatch.setattr(launch, "THREADS", THREADS)
    monkeypatch.setattr(kernels, "RECENT", RECENT)
    monkeypatch.setattr(layers, "absorb", lambda layer, norm: (layer, norm))  # pyright: ignore
    launch.kernel.cache_clear()


def _bits(x: mx.array) -> Any:
    return np.ascontiguousarray(np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x))


class Kernel:
    """As `mx.fast.cuda_kernel` takes its arguments; compiled into `folder`."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self._folder, self._given = folder, given
        self.inputs: list[str] = given["input_names"]

    def __call__(
        self,
        *,
        inputs: list[mx.array],
        output_shapes: list[tuple[int, ...]],
        output_dtypes: list[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: list[tuple[str, Any]] = [],  # noqa: B006
    ) -> list[mx.array]:
        ins = [_bits(x) for x in inputs]
        types = [_TYPES[dtype] for dtype in output_dtypes]
        # Not zeros: what the kernel does not write must not look as if it were right.
        outs = [np.full(shape, 77, dtype) for shape, dtype in zip(output_shapes, types, strict=True)]
        arrays = [*zip(self._given["input_names"], ins, strict=True)]
        arrays += [*zip(self._given["output_names"], outs, strict=True)]
        body = self._given["source"]
        parameters, arguments = list[str](), list[str]()
        shapes = np.zeros((len(arrays), 8), np.int32)
        for i, (name, array) in enumerate(arrays):
            const = "const " if i < len(ins) else ""
            parameters.append(f"{const}{_NAMES[array.dtype]}* {name}")
            arguments.append(f"static_cast<{const}{_NAMES[array.dtype]}*>(arrays[{i}])")
            if f"{name}_shape" in body:
                parameters.append(f"Shape {name}_shape")
                arguments.append(f"shapes[{i}]")
                shapes[i, : array.ndim] = array.shape
        constants = "".join(
            f"using {name} = {_NAMES[np.dtype(_TYPES[value])]};\n"
            if isinstance(value, mx.Dtype)
            else f"constexpr int {name} = {int(value)};\n"
            for name, value in template
        )
        blocks = -(-grid[0] // threadgroup[0])
        run = self._compiled(
            f'#include "{_HEADER}"\n{self._given["header"]}\n'
            f"namespace mlx::core::cu {{\nvoid kernel({', '.join(parameters)}) {{\n{constants}{body}\n}}\n}}\n"
            f'extern "C" void run(unsigned blocks, unsigned threads, void** arrays, const Shape* shapes) {{\n'
            f"launch(blocks, threads, [&] {{ mlx::core::cu::kernel({', '.join(arguments)}); }});\n}}\n"
        )
        places = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for _, array in arrays))
        run(blocks, threadgroup[0], places, ctypes.c_void_p(shapes.ctypes.data))
        made = [mx.array(array) for array in outs]
        return [
            array.view(dtype) if dtype == mx.bfloat16 else array
            for array, dtype in zip(made, output_dtypes, strict=True)
        ]

    def _compiled(self, source: str) -> Any:
        name = hashlib.sha256(source.encode()).hexdigest()
        library = self._folder / f"{name}.so"
        if not library.exists():
            file = self._folder / f"{name}.cpp"
            file.write_text(source)
            options = [
                "-std=c++17",
                "-O1",
                "-fno-strict-aliasing",
                "-U_FORTIFY_SOURCE",
                "-w",
                "-shared",
                "-fPIC",
            ]
            subprocess.run(["c++", *options, "-o", library, file], check=True)
        return ctypes.CDLL(str(library)).run
