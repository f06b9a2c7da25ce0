"""`vivavoce doctor`: what about this machine makes speech or chat slow, and what to do about it."""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .cli_terminal import columns, size

PROBE = """
import msgspec
from vivavoce.stages import device
machine = device.setup()
print(msgspec.json.encode(machine).decode())
device.release()
"""
"""Run in a process of its own: the API's packages do not import MLX, and where MLX is broken it may abort."""

SERVERS = {
    "ollama": "Ollama",
    "lm studio": "LM Studio",
    "mlx_lm": "mlx-lm",
    "mlx_audio": "mlx-audio",
    "mlx_vlm": "mlx-vlm",
    "omlx": "oMLX",
    "vllm": "vLLM",
    "llama-server": "llama.cpp",
    "vivavoce": "vivavoce",
}
"""Other programs that hold models, by how their programs or modules begin."""

LEAST_AVAILABLE = 0.15
"""Of memory; with less the next model is likely to be swapped."""
MOST_SWAPPED_BYTES = 1 << 30
STEPPED_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Their `powersave` raises the clock under load; that of others never does."""


class Finding(NamedTuple):
    what: str
    found: str
    advice: str = ""
    """Empty where nothing should be done."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "doctor",
        parents=[common],
        help="memory, other model servers, backend, clocks: what slows this machine down",
        description="Look at this machine. Exit code 0: nothing to do, 1: something should be done.",
    )
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> int:
    findings = examine()
    rows = [("!" if finding.advice else "ok", finding.what, finding.found) for finding in findings]
    print(columns(rows, indent=""))
    advice = [f"- {finding.advice}" for finding in findings if finding.advice]
    if advice:
        print("\nTo do:", *advice, sep="\n")
    return 1 if advice else 0


def examine() -> list[Finding]:
    import psutil

    seen = psutil.process_iter(["cmdline", "memory_info"])
    processes = [
        (one.pid, one.info["cmdline"] or [], getattr(one.info["memory_info"], "rss", 0)) for one in seen
    ]
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    mac = sys.platform == "darwin"
    return [
        look_at_memory(memory.total, memory.available),
        look_at_swap(swap.used, swap.total),
        look_at_servers(processes),
        *look_at_device(*_probe(), gpu=shutil.which("nvidia-smi") is not None),
        *(_mac(memory.total) if mac else _linux()),
    ]


def look_at_memory(total: int, available: int) -> Finding:
    scarce = available < LEAST_AVAILABLE * total
    advice = "Little memory is left: close programs, or take smaller models." if scarce else ""
    return Finding("memory", f"{size(available)} of {size(total)} available", advice)


def look_at_swap(used: int, total: int) -> Finding:
    advice = ""
    if used > MOST_SWAPPED_BYTES:
        advice = (
            "Much is swapped out, which looks like a slow model: close programs, then restart the machine."
        )
    return Finding("swap", f"{size(used)} of {size(total)} in use", advice)


def look_at_servers(processes: Iterable[tuple[int, list[str], int]]) -> Finding:
    """:param processes: id, command line and resident bytes of each."""
    held: dict[str, list[tuple[int, int]]] = {}
    for pid, command, resident in processes:
        if (name := server(command)) is not None:
            held.setdefault(name, []).append((pid, resident))
    if not held:
        return Finding("other model servers", "none")
    found = ", ".join(
        f"{name} ({size(sum(bytes_ for _, bytes_ in its))}, pid {' '.join(str(pid) for pid, _ in its)})"
        for name, its in held.items()
    )
    advice = "Other programs hold models and use the same device: stop those that you do not need."
    return Finding("other model servers", found, advice)


def server(command: list[str]) -> str | None:
    """Which model server a command line is, None for anything else."""
    if not command:
        return None
    program, *words = command
    name = Path(program).name.lower()
    if name.startswith("python"):
        words = [word for word in words if not word.startswith("-") or word == "-m"]
        if words[:1] == ["-m"]:
            words = words[1:]
        name, words = (Path(words[0]).name.lower(), words[1:]) if words else ("", [])
    if name == "vivavoce" and "serve" not in words:
        return None
    return next((label for start, label in SERVERS.items() if name.startswith(start)), None)


def look_at_device(probed: dict[str, Any] | None, error: str, *, gpu: bool) -> list[Finding]:
    """:param probed: what `PROBE` printed, or None with its `error`; `gpu`: whether there is one of NVIDIA's."""
    if probed is None:
        return [Finding("backend", f"MLX does not start: {error}", "Install vivavoce anew: MLX is broken.")]
    name, advice = probed["name"], ""
    if name == "cpu" and gpu:
        advice = "There is an NVIDIA GPU that MLX does not use: `pip install 'vivavoce[cuda13]'`."
    elif name == "cpu" and sys.platform == "darwin":
        advice = "MLX does not use Metal: use a Python for Apple silicon (not one under Rosetta)."
    found = [Finding("backend", f"{name}, {probed['description']}, {size(probed['memory_bytes'])}", advice)]
    if name == "cpu" and sys.platform == "linux":
        found.append(Finding("BLAS", probed["blas"] or "MLX's own, slow", " ".join(probed["hints"])))
    return found


def _probe() -> tuple[dict[str, Any] | None, str]:
    import msgspec

    told = subprocess.run([sys.executable, "-P", "-c", PROBE], capture_output=True, text=True)
    if told.returncode:
        return None, (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[-1]
    return msgspec.json.decode(told.stdout), ""


def _mac(memory: int) -> list[Finding]:
    return [
        look_at_wired_limit(_said("sysctl", "-n", "iogpu.wired_limit_mb"), memory),
        look_at_power(_said("pmset", "-g"), _said("pmset", "-g", "therm")),
    ]


def look_at_wired_limit(said: str, memory: int) -> Finding:
    """:param said: MiB, 0 for the system's own choice."""
    limit = int(said.strip() or 0) << 20
    if not limit:
        return Finding("GPU memory", "the system's limit, about three quarters of memory")
    low = f"Models may use less than half of memory: `sudo sysctl iogpu.wired_limit_mb={memory * 3 // 4 >> 20}`."
    return Finding("GPU memory", f"at most {size(limit)}", low if limit < memory // 2 else "")


def look_at_power(settings: str, thermal: str) -> Finding:
    """:param settings: what `pmset -g` says; `thermal`: what `pmset -g therm` says."""
    if "1" in _values(settings, "lowpowermode"):
        return Finding("clock", "low power mode", "Turn Low Power Mode off in the system settings.")
    limits = [int(value) for value in _values(thermal, "CPU_Speed_Limit") if value.isdigit()]
    if limits and limits[0] < 100:
        return Finding("clock", f"{limits[0]} % because of heat", "The machine is too hot: let it cool down.")
    return Finding("clock", "not reduced")


def _values(text: str, key: str) -> list[str]:
    return [line.split()[-1] for line in text.splitlines() if line.strip().startswith(key)]


def _linux() -> list[Finding]:
    folder = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    governor, driver = (
        file.read_text().strip() if file.is_file() else ""
        for file in (folder / "scaling_governor", folder / "scaling_driver")
    )
    reasons = "clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.sw_thermal_slowdown"
    told = _said("nvidia-smi", f"--query-gpu={reasons}", "--format=csv,noheader")
    return [look_at_governor(governor, driver), *([look_at_gpu_clock(told)] if told else [])]


def look_at_governor(governor: str, driver: str) -> Finding:
    if governor == "powersave" and driver not in STEPPED_DRIVERS:
        advice = "The processor stays at its lowest clock: `sudo cpupower frequency-set -g performance`."
        return Finding("clock", "governor powersave", advice)
    return Finding("clock", f"governor {governor}" if governor else "the machine's own choice")


def look_at_gpu_clock(told: str) -> Finding:
    """:param told: `Active` or `Not Active` for each reason to slow down."""
    slowed = any(reason.strip() == "Active" for reason in told.replace("\n", ",").split(","))
    advice = "The GPU slows itself down, from heat or for want of power: see `nvidia-smi -q -d PERFORMANCE`."
    return Finding("GPU clock", "reduced" if slowed else "not reduced", advice if slowed else "")


def _said(*command: str) -> str:
    """What a command prints, nothing where there is no such command or it fails."""
    if shutil.which(command[0]) is None:
        return ""
    told = subprocess.run(command, capture_output=True, text=True)
    return "" if told.returncode else told.stdout
