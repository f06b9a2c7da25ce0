"""The machine in one line: a figure without it says nothing."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil

from .records import About


def describe(about: About) -> str:
    """Machine, memory, backend, BLAS, versions."""
    memory = psutil.virtual_memory().total / 2**30
    parts = [
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        f"mlx {version('mlx')} {about.backend}"
        + (f" ({about.device})" if about.backend != "cpu" and about.device else ""),
    ]
    if about.backend == "cpu" and sys.platform == "linux":
        parts.append(about.blas or "reference BLAS")
    return "; ".join(
        [*parts, f"Python {platform.python_version()}", f"{platform.system()} {platform.machine()}"]
    )


def _processor() -> str:
    if sys.platform == "darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
