"""`vivavoce speak` with the embedded voice: real audio in files and pipes, and nothing left behind on failure."""

import re
import shutil
import signal
import subprocess
import sys
import wave
from importlib import resources
from pathlib import Path

import pytest

from vivavoce.api import cli

TEXT = "The red house."
REPORT = re.compile(r"([\d.]+) s of speech, first audio after (\d+) ms, RTF ([\d.]+), seed (\d+)\n$")


def command(*arguments: str) -> list[str]:
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    run = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from vivavoce.api.cli import main; sys.exit(main())"
    )
    return [sys.executable, "-P", "-c", run, *arguments]


def test_a_file_has_exact_sizes_and_the_report_fits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.wav"
    assert cli.main(["speak", TEXT, "-o", str(target), "--seed", "3", "--voice", "ryan"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no terminal, no progress
    assert captured.out.startswith(f"{target}: ")
    report = REPORT.search(captured.out)
    assert report is not None
    with wave.open(str(target)) as audio:
        samples = audio.getnframes()
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24_000, 1, 2)
        assert max(audio.readframes(samples)) > 0
    assert samples > 0
    assert samples % 1920 == 0
    assert float(report[1]) == pytest.approx(samples / 24_000, abs=0.01)
    assert int(report[2]) > 0
    assert float(report[3]) > 0
    assert report[4] == "3"
    assert list(tmp_path.iterdir()) == [target]


def test_a_stream_to_a_pipe_has_the_bytes_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.pcm"
    arguments = ["speak", TEXT, "--seed", "4", "--format", "pcm"]
    assert cli.main([*arguments, "-o", str(target)]) == 0
    done = subprocess.run(command(*arguments, "--stream"), capture_output=True)
    assert done.returncode == 0
    assert done.stdout == target.read_bytes()
    assert REPORT.search(done.stderr.decode())


@pytest.mark.parametrize("layout", ["cohost", "together"])
def test_of_a_layout_with_chat_only_speech_runs(tmp_path: Path, layout: str) -> None:
    assert cli.main(["speak", TEXT, "-o", str(tmp_path / "a.wav"), "--layout", layout]) == 0
    assert (tmp_path / "a.wav").stat().st_size > 44


def test_a_refused_request_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["speak", TEXT, "-o", str(tmp_path / "a.wav"), "--voice", "nobody"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vivavoce: There is no voice 'nobody'")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, target = tmp_path / "model", tmp_path / "a.wav"
    assert cli.main(["speak", TEXT, "-o", str(target), "--model", str(missing)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"vivavoce: no model folder '{missing}'")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [("--language", "klingon"), ("--voice", "nobody")])
def test_what_the_config_tells_is_refused_before_any_weight_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(str(resources.files("vivavoce.configs") / "voices" / "embedded" / "config.json"), model)
    assert cli.main(["speak", TEXT, "-o", str(tmp_path / "a.wav"), "--model", str(model), *wrong]) == 1
    assert f"There is no {wrong[0][2:]} {wrong[1]!r}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model]


def test_a_request_that_fails_in_a_stage_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["speak", TEXT, "-o", str(tmp_path / "a.wav"), "--instructions", "Sadly."]) == 1
    assert "takes no instructions" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_mid_stream_is_130_and_silent() -> None:
    """The pipe is not read to its end, so the command is certainly still at work."""
    with subprocess.Popen(
        command("speak", " ".join([TEXT] * 40), "--stream"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(1000)) == 1000
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_ends_the_command_without_complaint() -> None:
    with subprocess.Popen(
        command("speak", " ".join([TEXT] * 40), "--stream"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(15) == 1
        assert process.stderr.read() == b""
