"""`vivavoce voices` and the voices of `vivavoce speak`, with tiny models."""

import json
from pathlib import Path

import numpy as np
import pytest

from vivavoce.api import cli, cli_voice
from vivavoce.bus.control import ModelInfo
from vivavoce.bus.errors import VivavoceError
from vivavoce.bus.layout import load
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
        (["voices", "add", "Serena", "FILE"], "'Serena' is a preset voice: choose another name"),
        (["voices", "add", "x", "/no/such/file"], "/no/such/file: No such file"),
        (["voices", "add", "x", __file__], "no audio"),
        (["voices", "add", "x", "/dev/zero"], "/dev/zero is no regular file"),
        (["voices", "add", "x", "LARGE"], "large.wav is too large: at most 16.0 MiB are taken"),
        (["speak", "Hi.", "--ref-audio", "/dev/zero"], "/dev/zero is no regular file"),
        (["speak", "Hi.", "--ref-audio", "LARGE"], "large.wav is too large: at most 16.0 MiB are taken"),
        (["speak", "Hi.", "--speaker-embedding", "/dev/zero"], "/dev/zero is no regular file"),
        (["speak", "Hi.", "--ref-text", "Hello."], "--ref-audio, which is missing"),
        (["speak", "Hi.", "--ref-audio", "FILE", "--voice", "ryan"], "--voice and --ref-audio are 2 voices"),
        (["speak", "Hi.", "--speaker-embedding", "FILE", "--voice", "ryan"], "are 2 voices"),
        (["speak", "Hi.", "--speaker-embedding", "/no/such.npy"], "/no/such.npy: No such file"),
        (["speak", "Hi.", "--speaker-embedding", __file__], "holds no numbers"),
        (["speak", "Hi.", "--describe", "An old man."], "embedded cannot make voices from descriptions"),
        (["speak", "Hi.", "--describe", "An old man."], "use --model embedded-design"),
        (["speak", "Hi.", "--save-voice", "../x"], "name"),
        (["speak", "Hi.", "--save-voice", "ryan"], "is a preset voice"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    files = {"FILE": tmp_path / "a.wav", "LARGE": tmp_path / "large.wav"}
    with files["LARGE"].open("wb") as large:
        large.truncate((16 << 20) + 1)
    given = [str(files.get(word, word)) for word in arguments]
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


def test_an_embedding_is_imitated_from_either_file(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 32, dtype=np.float32)
    np.save(tmp_path / "e.npy", values[None])
    (tmp_path / "e.json").write_text(json.dumps(values.tolist()))
    (tmp_path / "other.json").write_text(json.dumps(values[::-1].tolist()))
    (tmp_path / "short.json").write_text("[1.0, 2.0]")
    common = ["speak", "Hi.", "--model", str(CHECKPOINTS / "base"), "--seed", "1"]
    found: list[bytes] = []
    for name in ("e.npy", "e.json", "other.json"):
        out = tmp_path / f"{name}.wav"
        assert cli.main([*common, "--speaker-embedding", str(tmp_path / name), "-o", str(out)]) == 0
        found.append(out.read_bytes())
    assert found[0] == found[1] != found[2]
    assert cli.main([*common, "--speaker-embedding", str(tmp_path / "short.json")]) == 1


@pytest.mark.parametrize("kind", ["wav", "pcm"])
def test_a_designed_voice_is_kept_with_the_words_that_it_spoke(kind: str, store: VoiceStore) -> None:
    """Whole, else not at all: a transcript that says more than is heard spoils every clone of it."""
    heard, layout = voice(24000, 1.0), load("speech")
    data = wav(heard, 24000) if kind == "wav" else np.round(heard * 32767).astype("<i2").tobytes()
    with pytest.raises(VivavoceError, match="its speech was cut"):
        cli_voice.save("Grandpa", layout, None, data, kind, "Good morning.", "length")
    cli_voice.save("Grandpa", layout, None, data, kind, "Good morning.", "stop")
    (kept,) = store.all()
    assert (kept.name, kept.text, round(kept.seconds, 2)) == ("Grandpa", "Good morning.", 1.0)


def test_a_name_that_is_taken_is_told_before_anything_is_spoken(
    tmp_path: Path, store: VoiceStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add("Ada", bytes(48000))
    assert cli.main(["speak", "Hi.", "--save-voice", "ada", "-o", str(tmp_path / "out.wav")]) == 1
    assert "a voice 'ada' already" in capsys.readouterr().err


def test_a_server_says_which_voices_it_has(store: VoiceStore) -> None:
    layout, base = load("speech"), ModelInfo(name="b", family="speech", kind="base", size="0.6B", source="b")
    assert cli_voice.summary(layout, (base,)) == []
    store.add("Ada", bytes(48000))
    (store.folder / "bob.voice").write_bytes(b"nothing")
    assert cli_voice.summary(layout, (base,)) == [
        "stored voices: Ada",
        f"damaged voices in {store.folder}: bob.voice",
    ]
    assert cli_voice.summary(layout, ())[0] == "stored voices: Ada (no model here can imitate them)"
