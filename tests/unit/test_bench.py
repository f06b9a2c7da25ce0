"""The benchmark: what it makes, counts and computes. No test looks at how long anything took."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from vivavoce.api import cli
from vivavoce.bus.child import PARENT_GONE
from vivavoce.bus.errors import StartError
from vivavoce.configs.models import find
from vivavoce.stages.bench import checkpoint, worker
from vivavoce.stages.bench.compare import Worker, alternate, compare, spread, sum_up
from vivavoce.stages.bench.records import MEASURES, About, Piece, Pieces, Plan, Result, Run, Side, Waits
from vivavoce.stages.bench.table import table

ABOUT = About("cpu", "", "libopenblas.so.0", "1.2.3", 0.5)


def side(scale: float, chunked: bool = True) -> Side:
    """A side whose every time is `scale` times that of side(1)."""
    runs = [Run(11, 0.1 * scale * n, 0.6 * scale * n, 0.22 * scale, int(1000 * scale)) for n in (1, 2, 3)]
    piece = Piece([0.001 * scale, 0.002 * scale], [0.010 * scale, 0.020 * scale])
    pieces = Pieces(piece, piece, piece, [0.004 * scale] if chunked else None)
    return sum_up(ABOUT, runs, Waits(1.5, 0.25), pieces)


def result(with_theirs: bool) -> Result:
    ours, theirs = side(1), side(4, chunked=False) if with_theirs else None
    return Result(
        hardware="a machine",
        model="embedded",
        text="Hello.",
        frames=11,
        runs=3,
        measures=MEASURES,
        vivavoce=ours,
        mlx_audio=theirs,
        ratio=None if theirs is None else compare(ours, theirs),
    )


def test_times_of_one_side() -> None:
    summed = side(1)
    # Runs of 100, 200, 300 ms to the first audio and 50, 100, 150 ms for each of the ten frames after it.
    assert summed.ttfa_ms.median == pytest.approx(200)
    assert summed.ttfa_ms.p95 == pytest.approx(300)
    assert summed.ms_per_frame.median == pytest.approx(100)
    assert summed.cpu_ms_per_frame.median == pytest.approx(20)
    assert summed.rtf.median == pytest.approx(1.2 / 0.88)
    assert summed.stage_ms["talker"].median == pytest.approx(15)
    assert summed.stage_ms["codec_decoder_8"].median == pytest.approx(4)
    assert summed.python_ms_per_frame == pytest.approx(3 * 1.5)
    assert summed.frames == [11, 11, 11]


def test_ratios_are_theirs_divided_by_ours() -> None:
    ratio = result(with_theirs=True).ratio
    assert ratio is not None
    assert ratio.ms_per_frame == pytest.approx(4)
    assert ratio.ttfa == pytest.approx(4)
    assert ratio.rtf == pytest.approx(4)
    assert ratio.peak_memory == pytest.approx(4)


@pytest.mark.parametrize(
    ("values", "median", "p95"),
    [([3.0], 3, 3), ([2.0, 1.0], 1.5, 2), ([float(n) for n in range(1, 101)], 50.5, 95)],
)
def test_spread(values: list[float], median: float, p95: float) -> None:
    assert spread(values) == spread(values[::-1])
    assert (spread(values).median, spread(values).p95) == (median, p95)


def test_the_table_has_a_column_a_side() -> None:
    alone, both = table(result(with_theirs=False)), table(result(with_theirs=True))
    assert "a machine" in alone
    assert "theirs" not in alone
    assert "theirs ÷ ours" in both
    line = next(line for line in both.splitlines() if line.startswith("ms per frame"))
    assert line.split()[-1] == "4.00"
    assert line.split()[-5:-1] == ["100.00", "(150.00)", "400.00", "(600.00)"]


class Recorded:
    def __init__(self, name: str, log: list[str]) -> None:
        self.side = name
        self.runs: list[Run] = []
        self._log = log

    def ask(self, word: str, kind: type[Run]) -> Run:
        assert (word, kind) == ("run", Run)
        self._log.append(self.side)
        return Run(len(self._log), 0.1, 0.2, 0.1, 0)


def test_runs_alternate_and_the_first_is_discarded() -> None:
    log: list[str] = []
    workers: list[Any] = [Recorded("a", log), Recorded("b", log)]
    alternate(workers, 3, lambda _: None)
    assert "".join(log) == "ab" + "ab" + "ba" + "ab"
    assert [[run.frames for run in worker.runs] for worker in workers] == [[3, 6, 7], [4, 5, 8]]


def test_an_endless_copy_changes_nothing_but_the_end(tmp_path: Path) -> None:
    source = find("embedded")
    before = (source / "config.json").read_bytes()
    checkpoint.endless(source, tmp_path / "copy")
    assert (source / "config.json").read_bytes() == before
    original, changed = json.loads(before), json.loads((tmp_path / "copy" / "config.json").read_bytes())
    assert changed["talker_config"].pop("codec_eos_token_id") == original["talker_config"]["vocab_size"]
    original["talker_config"].pop("codec_eos_token_id")
    assert changed == original
    assert (tmp_path / "copy" / "speech_tokenizer" / "model.safetensors").is_file()
    assert checkpoint.voice(tmp_path / "copy") == "aiden"


def write_random(folder: Path, dtype: str) -> None:
    """Random weights of the embedded voice's talker and of a narrow codec of the released frame length."""
    from vivavoce.stages.speech.qwen3.config import CodecConfig, ModelConfig, SpeechTokenizerConfig, read

    config = read(find("embedded") / "config.json", ModelConfig)
    codec = CodecConfig(32, 32, 32, 32, 1, 2, 2, 32, [8, 5, 4, 3], [2, 2], head_dim=16)
    checkpoint.write_random(folder, config, SpeechTokenizerConfig(codec), dtype)


@pytest.mark.parametrize("dtype", ["bf16", "4bit"])
def test_random_weights_are_a_checkpoint_that_loads(dtype: str, tmp_path: Path) -> None:
    from vivavoce.stages.speech.qwen3 import checkpoint as reader
    from vivavoce.stages.speech.qwen3.config import ModelConfig, read

    config = read(find("embedded") / "config.json", ModelConfig)
    write_random(tmp_path / "model", dtype)
    model = reader.load(tmp_path / "model")
    assert model.config.talker_config.codec_eos_token_id == config.talker_config.vocab_size
    assert (model.config.quantization is not None) == (dtype == "4bit")
    assert model.voices == sorted(config.talker_config.spk_id)
    sizes = {f.name: f.stat().st_size for f in (tmp_path / "model").iterdir() if f.is_file()}
    assert sizes["model.safetensors"] > 1_000_000


def test_counting_sees_every_way_to_wait() -> None:
    import mlx.core as mx

    from vivavoce.stages.bench.counting import Counting

    original = mx.eval
    with Counting() as counting:
        value = mx.array(3) + 1
        assert value.item() == 4
        assert int(value) == 4
        assert bool(value)
        assert np.array(value) == 4
        assert counting.reads == 4
        assert counting.barriers == 0
        mx.eval(value)
        mx.async_eval(value)
        np.array([1, 2])
        assert (counting.reads, counting.barriers) == (4, 1)
    assert mx.eval is original
    assert value.item() == 4
    assert counting.reads == 4


def test_a_worker_that_cannot_load_says_why(tmp_path: Path) -> None:
    plan = Plan("vivavoce", str(tmp_path / "nowhere"), "speech", "Hello.", "ryan", 2)
    with pytest.raises(StartError, match="vivavoce could not be measured: no model folder"), Worker(plan):
        pass


@pytest.mark.parametrize(("words", "status"), [(b"", 0), (b"run\n", PARENT_GONE)])
def test_a_worker_ends_with_its_parent_also_at_work(words: bytes, status: int, tmp_path: Path) -> None:
    """A run of so many frames takes hours."""
    checkpoint.endless(find("embedded"), tmp_path / "model")
    plan = Plan("vivavoce", str(tmp_path / "model"), "speech", "Hello.", "ryan", 1_000_000)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", worker.__name__, msgspec.json.encode(plan).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            msgspec.json.decode(process.stdout.readline(), type=About)  # it is ready
            process.stdin.write(words)
            process.stdin.close()
            assert process.wait(15) == status
        finally:
            process.kill()


def test_mlx_audio_s_reason_is_told(tmp_path: Path) -> None:
    config = tmp_path / "model" / "speech_tokenizer" / "config.json"
    checkpoint.endless(find("embedded"), tmp_path / "model")
    config.unlink()
    config.write_text('{"decoder_config": null}')
    plan = Plan("mlx-audio", str(tmp_path / "model"), "speech", "Hello.", "ryan", 2)
    reason = "mlx-audio cannot use the checkpoint: .*Could not load speech tokenizer: 'NoneType'"
    with pytest.raises(StartError, match=reason), Worker(plan):
        pass


@pytest.mark.parametrize("source", ["embedded", "random"])
def test_mlx_audio_runs_its_own_loop(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_random(folder, "bf16") if source == "random" else checkpoint.endless(find(source), folder)
    with Worker(Plan("mlx-audio", str(folder), "speech", "Hello there.", "ryan", 3)) as worker:
        assert worker.about.version == "0.6.2"
        run = worker.ask("run", Run)
        assert run.frames == 3
        assert 0 < run.ttfa_s < run.total_s
        assert run.peak_bytes > 1_000_000
        waits = worker.ask("count", Waits)
        assert waits.reads >= 2
        assert waits.barriers >= 1
        pieces = worker.ask("pieces", Pieces)
        assert {
            len(piece.total) for piece in (pieces.talker, pieces.code_predictor, pieces.codec_decoder)
        } == {3}


def test_the_command_prints_json_for_our_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "speech", "--frames", "9", "--runs", "1", "--text", "Hello.", "--json"]) == 0
    captured = capsys.readouterr()
    measured = msgspec.json.decode(captured.out, type=Result)
    assert measured.vivavoce.frames == [9]
    assert set(measured.vivavoce.stage_ms) == {"talker", "code_predictor", "codec_decoder", "codec_decoder_8"}
    assert measured.vivavoce.host_reads_per_frame > 0
    assert measured.mlx_audio is None
    assert measured.ratio is None
    assert "mlx" in measured.hardware
    assert "ms per frame" in captured.err
