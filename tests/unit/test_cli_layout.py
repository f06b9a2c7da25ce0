"""`vivavoce layout explain`: everything a layout sets off, with figures that can be checked by hand."""

from pathlib import Path

import pytest

from vivavoce.api import cli, cli_checkpoint, cli_layout, cli_plan
from vivavoce.api.cli_terminal import columns, size
from vivavoce.bus.errors import StartError
from vivavoce.bus.layout import load, parse
from vivavoce.configs.models import find
from vivavoce.stages.bench import chat_weights

MINE = """
name = "mine"
[api]
api_key = "secret"
[speech]
lookahead_frames = 9
dtype = "bf16"
[[link]]
from = "prompt"
to = "talker"
capacity = 77
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
"""


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The words of every line."""
    assert cli.main(["layout", "explain", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_show_prints_a_file_that_serves_as_a_layout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["layout", "show", "cohost"]) == 0
    copy = tmp_path / "mine.toml"
    copy.write_text(capsys.readouterr().out)
    assert load(copy) == load("cohost")
    assert cli.main(["layout", "show", "nowhere"]) == 1
    assert "no layout 'nowhere'" in capsys.readouterr().err


def test_list_names_the_shipped_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["layout", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("speech ") and len(line.split()) > 3 for line in lines)


def test_explain_shows_processes_links_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explain(capsys, "speech")
    assert ["main", "event", "loop", "api,", "encoder"] in lines
    assert ["device", "thread", "prompt,", "talker,", "code_predictor,", "codec_decoder"] in lines
    talker = next(line for line in lines if line[:3] == ["prompt", "→", "talker"])
    assert talker[3] == "memory"
    assert talker[-2:] == ["64", "messages"]
    assert next(line for line in lines if line[:3] == ["api", "→", "prompt"])[3:5] == ["ZeroMQ", "inproc"]
    model = next(line for line in lines if line[:2] == ["embedded", "embedded"])
    assert model[2:4] == ["custom_voice", "12M"]
    assert model[-1] == str(find("embedded"))


def test_explain_says_where_each_setting_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    lines = explain(capsys, str(file), "--model", "again=embedded")
    assert ["speech.lookahead_frames", "9", str(file)] in lines
    assert ["speech.max_chunk_frames", "8", "default"] in lines
    assert ["speech.models", '["again=embedded"]', "command", "line"] in lines
    assert ["api.api_key", "(set)", str(file)] in lines
    assert ["keys", "null", "default"] in lines
    assert next(line for line in lines if line[:3] == ["prompt", "→", "talker"])[-2:] == ["77", "messages"]


@pytest.mark.parametrize(("name", "how"), [("together", "thread"), ("cohost", "lease")])
def test_explain_says_how_chat_and_speech_share_a_device(
    name: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat_weights.write(tmp_path / "chat", 1, 128, "bf16")
    lines = explain(capsys, name, "--chat-model", str(tmp_path / "chat"))
    turns = [line[2:] for line in lines if line[:2] == ["device", "turns"]]
    assert turns == [["deadline,", *cli_layout.SHARING[how].split()]] * (1 if how == "thread" else 2)
    assert ["schedule.slack_s", "0.12", "default"] in lines
    assert ["chat.slice_tokens", '"measured"', "default"] in lines


def test_explain_shows_chat_alone_without_what_is_speechs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat_weights.write(tmp_path / "tiny", 1, 128, "bf16")
    lines = explain(capsys, "chat", "--chat-model", str(tmp_path / "tiny"))
    model = next(line for line in lines if line[:1] == ["tiny"])
    assert model[1:3] == [str(tmp_path / "tiny"), "llama"]
    assert not any(line[0].startswith("speech.") for line in lines if line)
    assert ["chat.rows", "8", "default"] in lines
    assert [line[:-2] for line in lines if line[:1] == ["all"]] == [["all"]]
    assert not any(line[:1] == ["chat.rows"] for line in explain(capsys, "speech"))


def test_explain_refuses_a_model_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["layout", "explain", "speech", "--model", "./nowhere"]) == 1
    assert "no model folder './nowhere'" in capsys.readouterr().err


def test_explain_refuses_keys_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'keys = "{tmp_path}/none"\n{MINE}')
    assert cli.main(["layout", "explain", str(file)]) == 1
    assert f"no keys in {tmp_path}/none" in capsys.readouterr().err


def test_the_memory_plan_counts_what_is_loaded() -> None:
    layout = parse(MINE, "mine.toml")
    plan = cli_plan.model_plan("embedded", layout)
    folder = find("embedded")
    stored = sum(tensor.bytes for tensor in cli_checkpoint.tensors(folder))
    decoder = sum(tensor.bytes for tensor in cli_checkpoint.tensors(folder / "speech_tokenizer"))
    # Stored as 16-bit floats throughout, without an encoder: loading it as bf16 changes no size.
    assert plan.weights == stored + decoder
    # Keys and values of 2 bytes in every layer; 256 positions, and 4096 for 2048 frames.
    talker = plan.config.talker_config
    position = talker.num_hidden_layers * talker.num_key_value_heads * (talker.head_dim or 0) * 2 * 2
    assert plan.sentence == position * 256
    assert plan.longest == plan.sentence * 16
    assert plan.disk > plan.weights


def test_a_wider_dtype_doubles_all_but_the_text_embedding(tmp_path: Path) -> None:
    layout = parse(MINE.replace("bf16", "fp32"), "mine.toml")
    narrow, wide = (
        cli_plan.model_plan("embedded", parse(MINE, "mine.toml")),
        cli_plan.model_plan("embedded", layout),
    )
    text = sum(t.bytes for t in cli_checkpoint.tensors(find("embedded")) if "text_embedding" in t.name)
    assert wide.weights == 2 * narrow.weights - text
    assert wide.longest == 2 * narrow.longest


def test_a_broken_weight_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00nothing")
    with pytest.raises(StartError, match=r"model\.safetensors cannot be read"):
        list(cli_checkpoint.tensors(tmp_path))


def test_caches_have_a_documented_limit() -> None:
    layout = load("speech")
    assert cli_plan.mlx_cache(layout) == min(cli_plan.machine() // 4, 2 << 30)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_columns_line_up() -> None:
    assert columns([("a", "bb"), ("ccc", "")], indent="") == "a    bb\nccc"
    assert columns([]) == ""


def test_each_process_needs_what_its_stages_load(capsys: pytest.CaptureFixture[str]) -> None:
    layout = load("split")
    plan = cli_plan.model_plan("embedded", layout)
    main, codec = cli_plan.needs(layout, [plan])
    assert (main.process, codec.process) == ("main", "codec")
    assert main.rows[0][1] + codec.rows[0][1] == plan.weights
    assert codec.rows[0][1] == plan.parts["codec_decoder"] > 0
    assert plan.weights_of(("prompt",)) == plan.parts["prompt"] + plan.parts["shared"]
    assert main.most - main.least == layout.api.max_concurrent * plan.longest - plan.sentence
    lines = explain(capsys, "split")
    assert next(line for line in lines if line[:3] == ["codec_decoder", "→", "encoder"])[3:5] == [
        "ZeroMQ",
        "ipc",
    ]
    assert ["Memory", "of", "process", "codec"] in lines


def test_a_layout_larger_than_the_machine_is_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = load("split")
    cli_plan.refuse_if_too_large(layout)
    monkeypatch.setattr(cli_plan, "machine", lambda: 10 << 20)
    with pytest.raises(StartError, match=r"the weights need [\d.]+ MiB, this machine has 10.0 MiB"):
        cli_plan.refuse_if_too_large(parse(MINE.replace("bf16", "fp32"), "mine.toml"))
