"""The command line around the pipeline: what it accepts, says, refuses and never imports."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vivavoce.api import cli, cli_serve, cli_speak
from vivavoce.api.cli_terminal import interrupted_by
from vivavoce.bus.errors import LayoutError, StartError, VivavoceError
from vivavoce.configs.models import SHIPPED

Said = Callable[[], tuple[str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """(stdout, stderr) since the last call."""

    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def refused(said: Said, *arguments: str) -> str:
    """The one sentence with which a command fails."""
    assert cli.main(arguments) == 1
    out, err = said()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("vivavoce: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_benchmark_as_ctrl_c_does(name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupted_by(number):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_building_the_parser_imports_nothing_heavy() -> None:
    code = (
        "import sys; from vivavoce.api import cli; cli.parser(); "
        "print([n for n in ('mlx', 'anyio', 'msgspec', 'zmq', 'numpy', 'quart', 'asyncio', 'huggingface_hub') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_commands_are_imported_where_ctrl_c_is_no_traceback() -> None:
    code = "import sys; from vivavoce.api import cli; print([n for n in sys.modules if 'vivavoce.api.cli_' in n])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("speak",),
        ("serve",),
        ("voices",),
        ("download",),
        ("layout",),
        ("layout", "explain"),
        ("layout", "list"),
        ("bench",),
        ("bench", "speech"),
    ],
)
def test_every_command_explains_itself(command: tuple[str, ...], said: Said) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([*command, "--help"])
    assert left.value.code == 0
    assert " ".join(("usage: vivavoce", *command)) in said()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("sing",),
        ("speak",),
        ("speak", "hello", "--format", "midi"),
        ("speak", "hello", "--play", "-o", "a.wav"),
        ("speak", "hello", "--seed", "-4"),
        ("speak", "hello", "--seed", str(2**63)),
        ("bench", "speech", "--size", "9B"),
        ("bench", "speech", "--runs", "0"),
    ],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...], said: Said) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert "usage: vivavoce" in said()[1]


@pytest.mark.parametrize(
    "command", [("speak", "hello"), ("voices", "add", "ada", "a.wav"), ("voices",), ("bench", "speech")]
)
def test_an_unknown_option_shows_its_command_s_usage(command: tuple[str, ...], said: Said) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([*command, "--sing"])
    assert left.value.code == 2
    words = [word for word in command if word not in ("hello", "ada", "a.wav")]
    told = said()[1]
    assert told.startswith(f"usage: vivavoce {' '.join(words)} [-h]")
    assert told.endswith(f"vivavoce {' '.join(words)}: error: unrecognized arguments: --sing\n")


@pytest.mark.parametrize(
    "command",
    [
        *(("speak", "hello", option) for option in ("--describe", "--instructions", "--ref-text")),
        *(("voices", "add", "ada", "a.wav", option) for option in ("--text", "--consent", "--description")),
    ],
)
def test_words_about_a_voice_are_as_long_as_over_http(command: tuple[str, ...], said: Said) -> None:
    assert (
        len(getattr(cli.parser().parse_args([*command, "x" * 4096]), command[-1][2:].replace("-", "_")))
        == 4096
    )
    with pytest.raises(SystemExit) as left:
        cli.main([*command, "x" * 4097])
    assert left.value.code == 2
    assert f"argument {command[-1]}: 4,097 letters are too many: at most 4,096 are taken" in said()[1]


def _raise(error: BaseException) -> Callable[[Any], int]:
    def run(_args: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (StartError("no model\nfolder 'x'"), "vivavoce: no model folder 'x'\n"),
        (
            ExceptionGroup("tasks", [ExceptionGroup("more", [LayoutError("a.toml: wrong")])]),
            "vivavoce: a.toml: wrong\n",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            "vivavoce: a.txt: No such file or directory\n",
        ),
        (KeyError("k"), "vivavoce: KeyError: 'k' (--debug shows where)\n"),
    ],
)
def test_a_failure_is_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr("vivavoce.api.cli_layout.run_list", _raise(error))
    assert cli.main(["layout", "list"]) == 1
    assert said() == ("", sentence)
    with pytest.raises(type(error)):
        cli.main(["layout", "list", "--debug"])


def test_ctrl_c_is_130_and_silent(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr("vivavoce.api.cli_layout.run_list", _raise(KeyboardInterrupt()))
    assert cli.main(["layout", "list"]) == 130
    assert said() == ("", "")


def test_voices_needs_no_weights(tmp_path: Path, said: Said) -> None:
    talker = {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "spk_id": {"zoe": 1, "abe": [2]},
        "spk_is_dialect": {"zoe": False, "abe": "sichuan_dialect"},
        "codec_language_id": {"german": 3},
    }
    config = {"model_type": "qwen3_tts", "tts_model_type": "custom_voice", "talker_config": talker}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["voices", "--model", f"mine={tmp_path}"]) == 0
    out, _ = said()
    assert out.splitlines()[1:] == ["  abe (sichuan_dialect)", "  zoe", "languages: auto, german"]
    assert out.startswith("mine: custom_voice")


@pytest.mark.parametrize("name", SHIPPED)
def test_voices_name_the_other_embedded_models(name: str, said: Said) -> None:
    assert cli.main(["voices", "--model", name]) == 0
    out, _ = said()
    assert out.startswith(f"{name}: ")
    assert ("  no preset voices\n" in out) == (name != "embedded")
    assert f"also embedded: {', '.join(sorted(set(SHIPPED) - {name}))}\n" in out


def test_voices_of_what_is_no_model(tmp_path: Path, said: Said) -> None:
    assert "not a model folder" in refused(said, "voices", "--model", str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "not that of a Qwen3-TTS model" in refused(said, "voices", "--model", str(tmp_path))
    assert "no model folder" in refused(said, "voices", "--model", "./nowhere")


def test_download_prints_the_folder(said: Said) -> None:
    assert cli.main(["download", "embedded"]) == 0
    folder = Path(said()[0].strip())
    assert (folder / "config.json").is_file()


@pytest.mark.parametrize(
    ("output", "given", "kind"),
    [
        ("a.wav", None, "wav"),
        ("a.WAV", None, "wav"),
        ("a.ogg", None, "opus"),
        ("a.mp3", None, "mp3"),
        ("a.raw", None, "pcm"),
        ("a.raw", "pcm", "pcm"),
        ("a.xyz", "flac", "flac"),
        ("-", None, "wav"),
        (None, None, "wav"),
    ],
)
def test_the_ending_chooses_the_format(output: str | None, given: str | None, kind: str) -> None:
    arguments = ["speak", "x", *(["-o", output] if output else []), *(["--format", given] if given else [])]
    assert cli_speak.chosen_format(cli.parser().parse_args(arguments)) == kind


@pytest.mark.parametrize("output", ["a.xyz", "noending"])
def test_an_unknown_ending_is_refused(output: str, said: Said) -> None:
    assert "--format" in refused(said, "speak", "hello", "-o", output)


def test_an_ending_and_a_format_that_disagree_are_refused(said: Said) -> None:
    told = refused(said, "speak", "hello", "-o", "x.mp3", "--format", "wav")
    assert "x.mp3: its ending says mp3, --format says wav" in told


def test_chat_names_no_option_that_it_lacks(said: Said) -> None:
    told = refused(said, "chat", "--model", "m", "--speak", "-o", "a.xyz")
    assert "its ending names no format" in told
    assert "--format" not in told


def test_a_layout_without_speech_cannot_speak(said: Said) -> None:
    for words in (["speak", "hello"], ["serve", "--model", "embedded"], ["chat", "--speak", "--model", "m"]):
        assert "the layout chat runs no speech: use --layout" in refused(said, *words, "--layout", "chat")


def test_text_from_argument_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Grüße, ", "utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Öl".encode())))
    assert cli_speak.read_text(str(file)) == "Grüße, "
    assert cli_speak.read_text("-") == "Öl"
    assert cli_speak.read_text("Hello there.") == "Hello there."
    long = "word " * 200
    assert cli_speak.read_text(long) == long


def test_text_that_is_none(tmp_path: Path, said: Said) -> None:
    assert "no text" in refused(said, "speak", "  ")
    assert "there is no file letter.txt" in refused(said, "speak", "letter.txt")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xff")
    assert "not UTF-8" in refused(said, "speak", str(tmp_path / "bad.txt"))
    for missing in ("/none/such.bin", "./a.Txt", "letters/1.md"):
        assert f"there is no file {missing}" in refused(said, "speak", missing)
    for text in ("and/or.", "Read a/b.txt please.", "https://a.test/b.html", "3/4.5"):
        assert cli_speak.read_text(text) == text


def test_playing_without_the_extra(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    told = refused(said, "speak", "hello", "--play")
    assert "pip install 'vivavoce[play]', or give -o FILE" in told
    assert "or give -o FILE" in refused(said, "chat", "--speak", "--model", "m")


def test_serve_replaces_settings_of_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIVAVOCE_API_KEY", raising=False)

    def configured(*arguments: str) -> Any:
        return cli_serve.configured(cli.parser().parse_args(["serve", *arguments]))

    layout = configured("--port", "0", "--host", "::1", "--model", "a=b", "--speech-model", "embedded")
    assert (layout.api.port, layout.api.host, layout.api.api_key) == (0, "::1", None)
    assert layout.speech.models == ("a=b", "embedded")
    assert configured().speech.models == ("embedded",)
    assert configured().api.port == 8000
    assert configured("--api-key", "k").api.api_key == "k"
    monkeypatch.setenv("VIVAVOCE_API_KEY", "from the environment")
    assert configured().api.api_key == "from the environment"
    with pytest.raises(VivavoceError, match="api_key: it is empty"):
        configured("--api-key", "")
    monkeypatch.setenv("VIVAVOCE_API_KEY", "")
    with pytest.raises(VivavoceError, match="api_key: it is empty"):
        configured()


def test_serve_refuses_before_anything_starts(tmp_path: Path, said: Said) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nloud = true\n')
    assert "loud" in refused(said, "serve", "--layout", str(file))
    with pytest.raises(VivavoceError):
        cli_serve.configured(cli.parser().parse_args(["serve", "--layout", "nowhere"]))


def test_a_setting_out_of_range_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["serve", "--port", "99999"]) == 1
    assert "api.port: 99999 is out of range" in capsys.readouterr().err


def test_a_model_of_the_other_family_is_told_where_it_belongs(tmp_path: Path, said: Said) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    told = refused(said, "speak", "hello", "-o", str(tmp_path / "a.wav"), "--model", str(tmp_path))
    assert "not that of a Qwen3-TTS model but of 'llama': a chat model is given with --chat-model" in told
    told = refused(said, "chat", "--model", "one=embedded")
    assert "holds a speech model, which cannot chat: `serve` takes it with --speech-model" in told
