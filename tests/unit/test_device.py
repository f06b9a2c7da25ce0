"""BLAS, set-up and the progress that other threads read."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.stages import device


def _python(code: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()


def _openblas() -> bool:
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return False
    return sys.platform == "linux"


@pytest.mark.skipif(not _openblas(), reason="no OpenBLAS on this machine")
def test_openblas_is_loaded_before_mlx_and_found_once() -> None:
    said = _python(
        "import sys\n"
        "from vivavoce.stages import device\n"
        "print('mlx.core' in sys.modules, device.load_blas(), device.load_blas())\n"
        "print('openblas' in open('/proc/self/maps').read())"
    )
    assert said == ["False", "libopenblas.so.0", "libopenblas.so.0", "True"]


@pytest.mark.skipif(not _openblas(), reason="no OpenBLAS on this machine")
@pytest.mark.parametrize("asked", ["", "import os; os.environ['OPENBLAS_CORETYPE'] = 'Prescott'\n"])
def test_a_processor_that_openblas_does_not_know_gets_the_kernels_of_an_older_one(asked: str) -> None:
    """Unless others were asked for."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    (core,) = _python(
        f"{asked}import ctypes\n"
        "from vivavoce.stages import device\n"
        "library = ctypes.CDLL(device.load_blas())\n"
        "library.openblas_get_corename.restype = ctypes.c_char_p\n"
        "print(library.openblas_get_corename().decode())"
    )
    if {"avx2", "fma"} <= flags:
        assert (core == "Prescott") == bool(asked)


def test_it_is_too_late_once_mlx_is_imported() -> None:
    said = _python("import mlx.core\nfrom vivavoce.stages import device\nprint(device.load_blas())")
    assert said == ["None"]


def test_the_model_package_loads_blas_by_itself() -> None:
    said = _python(
        "import vivavoce.stages.speech.qwen3.sampling\n"
        "from vivavoce.stages import device\n"
        "print(device.load_blas())"
    )
    assert said == ["libopenblas.so.0" if _openblas() else "None"]


def test_set_up_describes_the_device() -> None:
    machine = device.setup()
    assert machine.name in ("cpu", "metal", "cuda")
    assert machine.description
    assert machine.memory_bytes > 2**30
    assert machine.compiles == (machine.name != "cpu")


def test_a_slow_set_up_says_how_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux" or not device.on_cpu():
        pytest.skip("only the Linux CPU backend needs a library")
    monkeypatch.setattr(device, "load_blas", lambda: None)
    (hint,) = device.setup().hints
    assert "OpenBLAS" in hint


def test_functions_are_compiled_on_gpus_only() -> None:
    def function(x: int) -> int:
        return x

    assert (device.compiled(function) is function) == device.on_cpu()


def test_memory_is_counted() -> None:
    import mlx.core as mx

    held = mx.zeros((1024, 1024))
    mx.eval(held)
    found = device.memory()
    assert found.active_bytes >= held.nbytes
    assert found.peak_bytes >= found.active_bytes
