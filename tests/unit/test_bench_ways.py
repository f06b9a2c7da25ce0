"""`vivavoce bench speech --path`: tiny models, so that only the form of the result is looked at."""

import json
from pathlib import Path

import pytest

from vivavoce.api import cli

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
SHORT = ["--runs", "1", "--frames", "3", "--text", "Hi.", "--json"]


@pytest.mark.parametrize(
    ("path", "name"),
    [("clone-icl", "base"), ("clone-xvector", "base"), ("design", "design"), ("preset", "custom")],
)
def test_first_audio_of_first_and_second_request(
    path: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model", str(CHECKPOINTS / name), "--preset-model", str(CHECKPOINTS / "custom06")]
    assert cli.main(["bench", "speech", "--path", path, *models, *SHORT]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert min(report["first_ms"], report["second_ms"], report["preset_ms"]) > 0
    assert report["second_to_preset"] == pytest.approx(report["second_ms"] / report["preset_ms"])
    assert "second ÷ preset" in captured.err


def test_a_model_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "speech", "--path", "clone-icl", "--model", str(CHECKPOINTS / "design"), *SHORT]
    assert cli.main(command) == 1
    assert "needs a base model" in capsys.readouterr().err
