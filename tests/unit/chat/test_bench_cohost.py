"""`vivavoce bench cohost`: what it computes, and a run with the embedded voice and SmolLM2. No time is asserted."""

from pathlib import Path

import msgspec
import pytest

from vivavoce.api import cli
from vivavoce.bus.errors import VivavoceError
from vivavoce.stages.bench import chat_weights, cohost
from vivavoce.stages.bench.cohost_clients import Chatter
from vivavoce.stages.bench.cohost_records import (
    Policy,
    Reply,
    Result,
    Session,
    Talk,
    beside,
    hands,
    percentile,
    sum_up,
    table,
)
from vivavoce.stages.bench.timeline import Picture, draw
from vivavoce.stages.chat.model import load_model

SMOOTH = Reply(10.0, ((10.1, 0.08), (10.15, 0.16), (10.3, 0.32)))
STARVED = Reply(10.0, ((10.3, 0.08), (10.5, 0.16), (10.6, 0.16), (11.0, 0.08)))


def test_a_player_that_starts_with_the_first_chunk() -> None:
    assert SMOOTH.gaps() == []
    # 80 ms from 10.30 on, silence until 10.50, then 320 ms until 10.82.
    assert [round(ended - begun, 3) for begun, ended in STARVED.gaps()] == [0.12, 0.18]
    summed = sum_up([STARVED, SMOOTH])
    assert (summed.underruns, round(summed.underrun_s, 3)) == (2, 0.3)
    assert summed.ttfa_ms == pytest.approx([300, 100])
    assert (round(summed.ttfa_ms_p50), round(summed.ttfa_ms_p90)) == (100, 300)
    assert SMOOTH.rtf == pytest.approx(0.3 / 0.56)


def test_a_player_is_through_when_all_is_played() -> None:
    assert SMOOTH.played == pytest.approx(10.1 + 0.56)
    assert STARVED.played == pytest.approx(11.0 + 0.08)


def test_what_chat_kept() -> None:
    alone = Talk(0.0, 2.0, (0.5, 1.0, 1.5, 2.0), 100)
    both = Talk(5.0, 9.0, (5.5, 8.0), 90)
    session = Session([SMOOTH], [alone], [both])
    kept = beside([session], 0.5, {})
    assert (kept.chat_alone, kept.chat) == (50.0, 22.5)
    assert kept.longest_gap_ms == pytest.approx(2500)
    assert kept.sharing_efficiency == pytest.approx(22.5 / 25)
    assert kept.longest_gap_alone_ms == pytest.approx(500)
    assert beside([session], 1.2, {}).sharing_efficiency is None
    twice = beside([session, Session([STARVED], [alone], [alone])], 0.5, {})
    assert twice.speech.replies == 2
    assert twice.chat == pytest.approx(190 / 6)


def test_what_is_being_made_counts_by_its_share() -> None:
    times = iter((10.0, 12.0, 16.0, 17.0))
    chatter = Chatter(lambda: next(times))
    for tokens in (5, 100, 100, 1):
        chatter.take(tokens)
    talk = chatter.talk(11.0, 15.0)
    assert talk.times == (12.0,)
    assert talk.tokens == pytest.approx(50 + 75)
    assert chatter.talk(10.0, 16.0).tokens == pytest.approx(200)


def test_in_whose_hands_the_device_was() -> None:
    """During two talks, of 2 s and of 3 s; what lies outside of them does not count."""
    talks = [Talk(10.0, 12.0, (), 0), Talk(20.0, 23.0, (), 0)]
    speech = {"hold": [(0.0, 10.5), (21.0, 22.0)], "use": [(10.1, 10.4), (21.0, 21.8)]}
    chat = {
        "hold": [(10.6, 21.0), (22.1, 30.0)],
        "use": [(10.6, 11.6), (20.0, 20.9), (22.2, 23.0)],
        "handover": [(20.98, 21.0), (23.5, 23.9), (10.94, 11.0)],
    }
    found = hands({"speech": speech, "chat": chat}, talks)
    assert found.switches_per_s == pytest.approx(3 / 5)
    assert found.handover_ms == pytest.approx((20 + 60) / 2)
    assert found.speech == pytest.approx(1.5 / 5)
    assert found.chat == pytest.approx((1.4 + 1.0 + 0.9) / 5)
    assert found.unused == pytest.approx(1 - (0.3 + 1.0 + 0.9 + 0.8 + 0.8) / 5)
    # With race nothing is held, and both are at work at once.
    racing = {"speech": {"use": [(10.0, 11.0)]}, "chat": {"use": [(10.5, 12.0)]}}
    found = hands(racing, talks[:1])
    assert (found.handover_ms, found.speech, found.chat, found.unused) == (None, 0.5, 0.75, 0.0)


def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(1, 19)]
    assert (percentile(values, 0.5), percentile(values, 0.9)) == (9.0, 17.0)
    assert percentile([3.0], 0.9) == 3.0


def test_nothing_is_reported_of_a_machine_that_swaps() -> None:
    cohost.refuse_if_swapping(1 << 20)
    with pytest.raises(VivavoceError, match="swapped 64 MiB"):
        cohost.refuse_if_swapping(64 << 20)


def test_the_table_has_a_row_a_policy_and_load() -> None:
    talk = Talk(0.0, 1.0, (0.5,), 10)
    both = beside([Session([SMOOTH], [talk], [talk])], 0.5, {})
    policies = [
        Policy(
            policy=name, idle=sum_up([SMOOTH]), decoding=both, prefilling=None, memory_bytes={"main": 2**20}
        )
        for name in ("race", "deadline")
    ]
    result = Result(
        hardware="a machine", layout="cohost", speech="s", chat="c", rounds=1, measures={}, policies=policies
    )
    lines = table(result).splitlines()
    assert [line.split()[:2] for line in lines[4:8]] == [
        ["idle", "race"],
        ["idle", "deadline"],
        ["decoding", "race"],
        ["decoding", "deadline"],
    ]
    assert lines[7].split()[-1] == "2.00"


def test_the_picture_joins_what_touches_and_cuts_what_lies_outside() -> None:
    uses = {"speech": [(0.0, 1.0), (1.0, 2.0), (3.0, 9.0)], "chat": [(8.0, 9.0)]}
    svg = draw([Picture("deadline", 0.0, 4.0, uses)])
    assert svg.count("#2b6cb0") == 2
    assert svg.count("#dd8a1d") == 0
    assert svg.count("</text>") == 3 + 5


@pytest.mark.parametrize("dtype", ["bf16", "4bit"])
def test_random_chat_weights_are_a_model_that_loads(dtype: str, tmp_path: Path) -> None:
    chat_weights.write(tmp_path / "chat", 1, 128, dtype)
    model = load_model(str(tmp_path / "chat"))
    assert model.vocab == chat_weights.VOCABULARY
    assert model.decode(model.tokenizer.encode("Hello.", add_special_tokens=False)) == "Hello."
    assert ("quantization" in model.config) == (dtype == "4bit")


@pytest.mark.parametrize("seconds", ["nan", "-3", "0", "inf", "x"])
def test_a_time_that_is_none_is_wrong_usage(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "cohost", "--chat-layers", "1", f"--alone={seconds}"])
    assert ended.value.code == 2
    assert "--alone" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["missing/file", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "cohost", "--chat-layers", "1", option, str(tmp_path / name)])
    assert ended.value.code == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["speech", "chat"])
def test_a_layout_without_one_of_them_is_refused_before_any_model(
    layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "cohost", "--chat-model", "/no/such/folder", "--layout", layout]) == 1
    assert f"the layout {layout} does not run both chat and speech" in capsys.readouterr().err


def test_a_run(smollm2_folder: Path, tmp_path: Path) -> None:
    result, picture = tmp_path / "result.json", tmp_path / "picture.svg"
    words = ["bench", "cohost", "--chat-model", str(smollm2_folder), "--layout", "together", "--frames", "2"]
    words += ["--policy", "deadline", "--policy", "deadline", "--rounds", "1", "--alone", "0.2"]
    words += ["--prefill", "--prompt-tokens", "24"]
    assert cli.main([*words, "--json", str(result), "--plot", str(picture)]) == 0
    (policy,) = msgspec.json.decode(result.read_bytes(), type=Result).policies
    assert policy.prefilling is not None
    for speech in (policy.idle, policy.decoding.speech, policy.prefilling.speech):
        assert speech.replies == len(speech.ttfa_ms) == 6
    assert policy.decoding.chat > 0
    assert policy.memory_bytes["main"] > 100 << 20
    assert picture.read_text().count("#dd8a1d") > 0
