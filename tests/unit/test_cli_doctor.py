"""`vivavoce doctor`: what it takes for wrong, and that it runs here."""

import pytest

from vivavoce.api import cli, cli_doctor
from vivavoce.api.cli_doctor import Finding

GIB = 1 << 30
DEVICE = {
    "name": "cpu",
    "description": "cpu",
    "memory_bytes": 8 * GIB,
    "blas": "libopenblas.so.0",
    "hints": [],
}


@pytest.mark.parametrize(
    ("finding", "found", "advice"),
    [
        (cli_doctor.look_at_memory(16 * GIB, 8 * GIB), "8.0 GiB of 16.0 GiB", ""),
        (cli_doctor.look_at_memory(16 * GIB, GIB), "1.0 GiB of 16.0 GiB", "close programs"),
        (cli_doctor.look_at_swap(0, 0), "0 B of 0 B", ""),
        (cli_doctor.look_at_swap(51 * GIB, 52 * GIB), "51.0 GiB of 52.0 GiB", "restart"),
        (cli_doctor.look_at_wired_limit("0\n", 64 * GIB), "the system's limit", ""),
        (cli_doctor.look_at_wired_limit("16384\n", 64 * GIB), "16.0 GiB", "iogpu.wired_limit_mb=49152"),
        (cli_doctor.look_at_power(" lowpowermode         1\n", ""), "low power", "Turn Low Power Mode off"),
        (cli_doctor.look_at_power("", "CPU_Speed_Limit \t= 60\n"), "60 %", "cool down"),
        (cli_doctor.look_at_power(" lowpowermode 0\n", "CPU_Speed_Limit = 100\n"), "not reduced", ""),
        (cli_doctor.look_at_governor("powersave", "acpi-cpufreq"), "powersave", "cpupower"),
        (cli_doctor.look_at_governor("powersave", "intel_pstate"), "powersave", ""),
        (cli_doctor.look_at_governor("", ""), "own choice", ""),
        (cli_doctor.look_at_gpu_clock("Not Active, Not Active\n"), "not reduced", ""),
        (cli_doctor.look_at_gpu_clock("Not Active, Active\n"), "reduced", "nvidia-smi"),
    ],
)
def test_findings(finding: Finding, found: str, advice: str) -> None:
    assert found in finding.found
    assert advice in finding.advice
    assert bool(finding.advice) == bool(advice)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/local/bin/ollama", "serve"], "Ollama"),
        (["/Applications/LM Studio.app/Contents/MacOS/LM Studio"], "LM Studio"),
        (["/opt/venv/bin/python3.12", "-u", "-m", "mlx_lm.server", "--port", "8080"], "mlx-lm"),
        (["/opt/venv/bin/python", "/opt/venv/bin/mlx_audio.server"], "mlx-audio"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "vLLM"),
        (["./llama-server", "-m", "model.gguf"], "llama.cpp"),
        (["/opt/venv/bin/python3", "/opt/venv/bin/vivavoce", "serve"], "vivavoce"),
        (["/opt/venv/bin/python3", "-P", "-m", "vivavoce.bus.child"], "vivavoce"),
        (["/opt/venv/bin/python3", "/opt/venv/bin/vivavoce", "doctor"], None),
        (["vim", "ollama.md"], None),
        (["python3", "-c", "import mlx_lm"], None),
        ([], None),
    ],
)
def test_which_commands_are_model_servers(command: list[str], name: str | None) -> None:
    assert cli_doctor.server(command) == name


def test_servers_are_named_with_what_all_their_processes_hold() -> None:
    ollama, editor = ["ollama", "serve"], ["vim"]
    found = cli_doctor.look_at_servers([(7, ollama, GIB), (9, ollama, 3 * GIB), (8, editor, 9 * GIB)])
    assert found.found == "Ollama (4.0 GiB, pid 7 9)"
    assert "stop" in found.advice
    assert cli_doctor.look_at_servers([(8, editor, GIB)]) == Finding("other model servers", "none")


def test_a_backend_that_is_not_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_doctor.sys, "platform", "linux")
    assert [finding.advice for finding in cli_doctor.look_at_device(DEVICE, "", gpu=False)] == ["", ""]
    (backend, _) = cli_doctor.look_at_device(DEVICE, "", gpu=True)
    assert "cuda13" in backend.advice
    slow = {**DEVICE, "blas": None, "hints": ["Install OpenBLAS."]}
    assert cli_doctor.look_at_device(slow, "", gpu=False)[1].advice == "Install OpenBLAS."
    (broken,) = cli_doctor.look_at_device(None, "ImportError: libcuda.so.1", gpu=True)
    assert "libcuda.so.1" in broken.found
    assert broken.advice
    monkeypatch.setattr(cli_doctor.sys, "platform", "darwin")
    assert "Rosetta" in cli_doctor.look_at_device(DEVICE, "", gpu=False)[0].advice


@pytest.mark.parametrize(("advice", "code"), [("", 0), ("Mend it.", 1)])
def test_the_exit_code(
    advice: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_doctor, "examine", lambda: [Finding("thing", "as it is", advice)])
    assert cli.main(["doctor"]) == code
    assert ("- Mend it." in capsys.readouterr().out) == bool(code)


def test_this_machine_can_be_examined() -> None:
    found = {finding.what: finding for finding in cli_doctor.examine()}
    assert {"memory", "swap", "other model servers", "backend", "clock"} <= set(found)
    assert found["backend"].found.split(",")[0] in ("cpu", "metal", "cuda")
