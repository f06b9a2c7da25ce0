"""How our CUDA kernels are launched: where they serve, with which blocks, one behind the other.

Some stay on the GPU with a block for each multiprocessor, and their blocks meet (`cuda/grid.cuh`).
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from ...device import backend, plain

WIDTHS = (1, 2, 4, 8)
"""Requests that a step has a trace for; a batch is filled up to the next of them."""
TICKET = 32
"""Numbers of a ticket: a whole line, for arrays of up to 8 bytes MLX keeps in memory that host and GPU share, where
each count would cross the bus."""
THREADS = 256
"""Of a block: one fits on a multiprocessor, whatever registers it needs."""
_FOLDER = Path(__file__).parent / "cuda"

Item = TypeVar("Item")


def serve() -> bool:
    """Whether this device runs them: NVIDIA GPUs from Ampere on, which have tensor cores for bf16."""
    return backend() == "cuda" and not plain("kernels") and _capability() >= 8


@cache
def _capability() -> int:
    return int(mx.device_info().get("compute_capability_major", 8))


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
def blocks() -> int:
    """The GPU's multiprocessors."""
    driver, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    multiprocessors = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    if failed or driver.cuDeviceGetAttribute(ctypes.byref(found), multiprocessors, device):
        raise RuntimeError("the CUDA driver does not tell how many multiprocessors the GPU has")
    return found.value


class _Tickets(threading.local):
    """Two launches that stay on the GPU at the same time could wait for each other for ever, so each takes the
    ticket that the last one leaves: uint32 [TICKET], zeros, in which its blocks count themselves.

    One for all models of a thread, whose stream they share.
    """

    last: mx.array | None = None


_tickets = _Tickets()


def one_by_one(launching: Callable[..., tuple[Any, mx.array]]) -> Callable[..., Any]:
    """A function that takes a ticket first and returns one last, as one that knows of none.

    What it makes is queued at once: a launch that fails must not leave its ticket to others.
    """

    def run(*given: Any) -> Any:
        ticket = _tickets.last
        if ticket is None:
            ticket = mx.zeros((TICKET,), mx.uint32)
        _tickets.last = None
        made, left = launching(ticket, *given)
        mx.async_eval(made, left)
        _tickets.last = left
        return made

    return run


@cache
def kernel(
    name: str,
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    body: str,
    *defined: str,
) -> Any:
    """Each is compiled when it first runs, which takes seconds: so there are few, for all numbers of rows."""
    defines = "".join(f"#define {one}\n" for one in defined)
    return mx.fast.cuda_kernel(
        name=name,
        input_names=list(inputs),
        output_names=list(outputs),
        source=body,
        header=defines + "".join((_FOLDER / f"{file}.cuh").read_text() for file in ("common", *files)),
    )


def body(name: str) -> str:
    """A kernel's own lines, in a file of that name."""
    return (_FOLDER / f"{name}.cu").read_text()


def together(parts: Sequence[Sequence[mx.array]]) -> list[mx.array]:
    """Arrays of B requests, each joined with the others' in its place along the first axis.

    One launch does it; MLX would copy each array by itself.
    """
    batch, first = len(parts), parts[0]
    if batch == 1:
        return list(first)
    filled = [*parts, *[parts[-1]] * (WIDTHS[-1] - batch)]
    body = "".join(
        f"{{ const auto* from = {' : '.join(f'b == {b} ? in{i}_{b}' for b in range(len(filled) - 1))}"
        f" : in{i}_{len(filled) - 1};\n"
        f"for (int i = threadIdx.x; i < {one.size}; i += blockDim.x) out{i}[b * {one.size} + i] = from[i]; }}\n"
        for i, one in enumerate(first)
    )
    inputs = tuple(f"in{i}_{b}" for i in range(len(first)) for b in range(len(filled)))
    outputs = tuple(f"out{i}" for i in range(len(first)))
    return kernel("together", (), inputs, outputs, "const int b = blockIdx.x;\n" + body)(
        inputs=[one[i] for i in range(len(first)) for one in filled],
        output_shapes=[(batch * one.shape[0], *one.shape[1:]) for one in first],
        output_dtypes=[one.dtype for one in first],
        grid=(THREADS * batch, 1, 1),
        threadgroup=(THREADS, 1, 1),
    )
