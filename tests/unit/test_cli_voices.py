"""`vivavoce voices` and the voices of `vivavoce speak`, with tiny models."""

from pathlib import Path

import pytest

from vivavoce.api import cli
from vivavoce.configs.voice_store import VoiceStore

from .test_references import voice, wav

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VoiceStore:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "a.wav").write_bytes(wav(voice(44100, 1.0), 44100))
    return VoiceStore()


def test_voices_are_added_listed_and_removed(
    tmp_path: Path, store: VoiceStore, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--model", str(CHECKPOINTS / "base")]
    assert cli.main(["voices", "add", "Ada", str(tmp_path / "a.wav"), "--text", "Hello."]) == 0
    assert capsys.readouterr().out == "Ada: 1.0 s, with transcript\n"
    for command in (["voices", *base], ["voices", "list", *base]):
        assert cli.main(command) == 0
        assert "  Ada (1.0 s, with transcript)" in capsys.readouterr().out
    assert cli.main(["voices", "remove", "ada"]) == 0
    assert store.all() == []
    assert cli.main(["voices", "remove", "ada"]) == 1
    assert "no stored voice 'ada'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["voices", "add", "../x", "FILE"], "name"),
        (["voices", "add", "x", "/no/such/file"], "/no/such/file: No such file"),
        (["voices", "add", "x", __file__], "no audio"),
        (["speak", "Hi.", "--ref-text", "Hello."], "--ref-audio, which is missing"),
        (["speak", "Hi.", "--ref-audio", "FILE", "--voice", "ryan"], "two voices"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    given = [str(tmp_path / "a.wav") if word == "FILE" else word for word in arguments]
    if given[0] == "speak":
        given += ["-o", str(tmp_path / "out.wav")]
    assert cli.main(given) == 1
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_a_recording_is_imitated_and_its_voice_stored(
    tmp_path: Path, store: VoiceStore, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["speak", "Hi.", "--model", str(CHECKPOINTS / "base"), "--seed", "1"]
    clip = ["--ref-audio", str(tmp_path / "a.wav")]
    out = [tmp_path / f"{name}.wav" for name in ("first", "stored", "x")]
    assert cli.main([*common, *clip, "--ref-text", "Hello.", "--save-voice", "Ada", "-o", str(out[0])]) == 0
    assert cli.main([*common, "--voice", "ada", "-o", str(out[1])]) == 0
    assert cli.main([*common, *clip, "--x-vector", "-o", str(out[2])]) == 0
    assert out[0].read_bytes() == out[1].read_bytes() != out[2].read_bytes()
    assert [voice.text for voice in store.all()] == ["Hello."]


def test_a_described_voice_is_spoken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.wav"
    design = ["speak", "Hi.", "--model", str(CHECKPOINTS / "design"), "--seed", "1", "-o", str(out)]
    assert cli.main(design) == 1
    assert "description" in capsys.readouterr().err
    assert cli.main([*design, "--describe", "A calm old man."]) == 0
    assert out.stat().st_size > 4000
