"""`vivavoce chat`: commands; with `--speak` each answer printed and spoken, here into files."""

import io
import wave
from pathlib import Path

import pytest

from vivavoce.api import cli


def test_answers_are_spoken_into_files(
    smollm2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Say hello.\nSay it again.\n/exit\n"))
    target = tmp_path / "told.wav"
    words = ["chat", "--model", str(smollm2_folder), "--voice", "ryan", "-o", str(target)]
    assert cli.main([*words, "--max-tokens", "2", "--temperature", "0", "--seed", "1"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["told-2.wav", "told.wav"]
    for file in tmp_path.iterdir():
        with wave.open(str(file)) as audio:
            assert audio.getnframes() > 0
            assert audio.getnframes() % 1920 == 0


def test_an_unknown_command_is_no_turn(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["/help", "/etc/hosts is a file.", "/new", "/ is a slash", "/Quit", "/exit"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    words = ["chat", "--model", str(tiny_folder), "--max-tokens", "1", "--temperature", "0"]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert len(told.out.strip("\n").split("\n")) == 2
    errors = [line for line in told.err.splitlines() if "no command" in line]
    assert [line.split(":")[0].split()[-1] for line in errors] == ["/help", "/Quit"]
    assert all("/new" in line and "/exit" in line for line in errors)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_turn_that_is_refused_is_left_out(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["chat", "--model", str(tiny_folder), "--max-tokens", "1", "--temperature", "0"]
    lines = ["Hi.", "too long " * 9000, "Hi again."]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(lines)))
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert len(told.out.strip("\n").split("\n")) == 3
    assert "context holds 8192" in told.err
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert cli.main(words) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--voice", "nobody", "-o", "x.wav"], "no voice 'nobody'"),
        (["--layout", "chat", "--speak", "-o", "x.wav"], "runs no speech"),
        (["-o", "x.txt"], "names no format"),
    ],
)
def test_what_cannot_be_is_told(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert cli.main(["chat", "--model", str(tiny_folder), *words]) == 1
    assert told in capsys.readouterr().err
