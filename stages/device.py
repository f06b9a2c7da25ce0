"""The device that the stages compute on: BLAS, MLX set-up, memory, and a progress counter others may read.

MLX is imported only inside functions: on Linux a real BLAS has to be in the process before it.
"""

import _ctypes
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import psutil

CORETYPE = "OPENBLAS_CORETYPE"
_CORES = {"SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "Haswell": {"avx2", "fma"}}
"""Kernels of OpenBLAS, the fastest first, and what a processor needs for them."""
_loaded: list[str] = []
_traces = 0


def load_blas() -> str | None:
    """Put a real OpenBLAS into the process before MLX is imported; return the library's name, or None.

    The Linux CPU wheel of MLX carries the reference BLAS, whose products are about ten times slower. A library
    loaded first with global symbols answers its calls instead. The OpenBLAS inside numpy's and scipy's wheels
    cannot serve: its symbols carry a prefix. Nothing is done on macOS or with the CUDA wheels, nor when MLX is
    already imported.
    """
    if _loaded:
        return _loaded[0]
    if sys.platform != "linux" or "mlx.core" in sys.modules or _cuda_wheel():
        return None
    for name in ("libopenblas.so.0", "libopenblas.so"):
        try:
            _choose_kernels(name)
            library = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if hasattr(library, "cblas_sgemm"):
            _loaded.append(name)
            return name
    return None


def _choose_kernels(name: str) -> None:
    """Have OpenBLAS use the kernels of an older processor on one that is newer than it.

    It takes those of 2004 for a processor that it does not know: the codec then takes 2.5 times as long. What it
    takes can be told only before it is loaded, and known only afterwards.
    """
    if CORETYPE in os.environ:
        return
    library = ctypes.CDLL(name)
    if hasattr(library, "openblas_get_corename"):
        library.openblas_get_corename.restype = ctypes.c_char_p
        flags = _processor_flags()
        known = next((core for core, needed in _CORES.items() if needed <= flags), None)
        if library.openblas_get_corename() == b"Prescott" and known is not None:
            os.environ[CORETYPE] = known
    _ctypes.dlclose(library._handle)


def _processor_flags() -> set[str]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split())
    return set()


class Device(msgspec.Struct, frozen=True):
    name: str
    """cpu, metal or cuda"""
    description: str
    memory_bytes: int
    blas: str | None
    compiles: bool
    """Whether steps run as compiled functions (see `compiled`)."""
    hints: list[str]
    """One sentence each: how to be faster on this machine."""


def setup(*, cache_limit_bytes: int | None = None, wired_limit_bytes: int | None = None) -> Device:
    """Import MLX and set its limits. Call once, on the device thread.

    MLX's streams and random state belong to a thread: the one that calls this also loads and runs every model.
    """
    blas = load_blas()
    import mlx.core as mx

    name = backend()
    hints: list[str] = []
    if name == "cpu" and blas is None and sys.platform == "linux":
        hints.append(
            "Install OpenBLAS (Debian and Ubuntu: apt install libopenblas0) for up to 10 times faster products."
        )
    if cache_limit_bytes is not None:
        mx.set_cache_limit(cache_limit_bytes)
    if wired_limit_bytes is not None and name == "metal":
        mx.set_wired_limit(wired_limit_bytes)
    info = mx.device_info()
    described = str(info.get("device_name") or info.get("architecture") or name)
    size = int(info.get("memory_size") or info.get("total_memory") or psutil.virtual_memory().total)
    return Device(name, described, size, blas, name != "cpu", hints)


def release() -> None:
    """Finish what is queued and end MLX's worker threads: a process that exits with them running aborts."""
    import mlx.core as mx

    mx.synchronize()
    mx.clear_streams()


@cache
def backend() -> str:
    """cpu, metal or cuda."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def on_cpu() -> bool:
    return backend() == "cpu"


def plain(what: str) -> bool:
    """Whether VIVAVOCE_PLAIN, a list with commas, names `what`: an optimisation to leave out, for comparison."""
    return what in os.environ.get("VIVAVOCE_PLAIN", "").split(",")


Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`mx.compile` where it pays: on GPUs.

    On the CPU it needs a C++ compiler at run time, about a second per kernel on first use (62 kernels: a minute),
    and its scalar loops are slower than the operations they replace (embedded voice: 62 ms a frame against 32).
    """
    import mlx.core as mx

    if on_cpu() or plain("compile"):
        return function

    def traced(*given: Any) -> Any:
        global _traces
        _traces += 1
        return function(*given)

    return cast(Function, mx.compile(traced))


def traces() -> int:
    """How often compiled steps were traced: a request after the warm-up should cause none."""
    return _traces


class Memory(msgspec.Struct, frozen=True):
    active_bytes: int
    cache_bytes: int
    peak_bytes: int


def memory() -> Memory:
    """What MLX holds now; may be called from any thread."""
    import mlx.core as mx

    return Memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())


def _cuda_wheel() -> bool:
    for package in ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return True
    return False
