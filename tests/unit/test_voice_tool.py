"""The voice trainer: its text rules everywhere, and every step in small where PyTorch is installed."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.voice.spoken import spoken, word_errors, words  # noqa: E402


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("It costs $12.50.", "It costs twelve dollars and fifty cents."),
        ("At 7:05 PM, gate 12.", "At seven oh five p m, gate twelve."),
        ("The 21st of May, 1998", "The twenty first of May, nineteen ninety eight"),
        (
            "1,234 people, 3.5 km, 40%",
            "one thousand two hundred thirty four people, three point five kilometers, forty percent",
        ),
        ("Call 555-0199.", "Call five five five, oh one nine nine."),
        ("Dr. Smith, 64°", "Doctor Smith, sixty four degrees"),
    ],
)
def test_numbers_and_signs_are_written_out(typed: str, said: str) -> None:
    assert spoken(typed) == said


def test_words_ignore_spelling_of_numbers_case_and_marks() -> None:
    assert words("It's 9:45 p.m.") == words("its nine forty-five PM")
    assert word_errors(words("one two three"), words("one three four")) == 2
    assert word_errors([], ["extra"]) == 1


def _made_up_shard(path: Path, seed: int) -> None:
    """Speech-like arrays as synth writes them, without an engine."""
    rng = np.random.default_rng(seed)
    frames = np.full(12, 30)
    total = int(frames.sum())
    np.savez(
        path,
        frames=frames,
        text=np.arange(12),
        voice=rng.integers(0, 9, 12).astype(np.uint8),
        envelope=rng.normal(size=(total, 160)).astype(np.float16),
        voicing=rng.integers(0, 2, (total, 8)).astype(np.float16),
        pitch=(rng.integers(0, 2, (total, 8)) * rng.normal(7, 0.3, (total, 8))).astype(np.float16),
        phones=rng.integers(0, 41, (total, 2)).astype(np.uint8),
        samples=(rng.normal(size=total * 1920) * 3000).astype(np.int16),
    )


@pytest.mark.filterwarnings("ignore")
def test_every_step_runs_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("torch", "scipy", "safetensors"):
        pytest.importorskip(package)

    def run(module: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
        importlib.import_module(f"tools.voice.{module}").main()
        return capsys.readouterr().out

    speech, texts, trained, out = (tmp_path / name for name in ("speech", "texts.jsonl", "run", "out"))
    tables, codes, tokenizer, wav = (tmp_path / name for name in ("q.npz", "codes.npz", "tok", "hello.wav"))
    speech.mkdir()
    for number in range(4):
        _made_up_shard(speech / f"00-{number:04d}.npz", number)
    texts.write_text(
        "".join(json.dumps({"raw": f"Say number {n}.", "spoken": "x"}) + "\n" for n in range(12))
    )
    run("tokenizer", texts, tokenizer, "--size", 300)
    run("quantizer", "fit", speech, tables, "--used", 4)
    run("quantizer", "encode", speech, tables, codes)
    small = {"latent": 16, "hidden": 16, "heads": 1, "head": 16, "layers": 1, "inner": 16, "channels": 16}
    codec = ("train_codec", speech, tables, trained, "--batch", 1, "--wait-hours", 0, "--critics", 0)
    run(*codec, "--minutes", 9, "--size", json.dumps(small), "--steps", 1)
    resumed = run(*codec, "--minutes", 9, "--size", json.dumps(small), "--steps", 2)
    assert "2 steps" in resumed
    assert "step 1 " not in resumed
    narrow = {
        "hidden": 32,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "head": 16,
        "inner": 32,
        "text_vocabulary": 300,
    }
    narrow |= {"text_hidden": 16, "predictor_hidden": 32, "predictor_layers": 1, "predictor_heads": 1}
    talker = (
        "train_talker",
        codes,
        texts,
        tokenizer,
        trained,
        "--positions",
        200,
        "--workers",
        0,
        "--no-compile",
    )
    assert "held out" in run(*talker, "--held-out", 2, "--steps", 2, "--size", json.dumps(narrow))
    run("export", trained, tokenizer, out)
    config = json.loads((out / "config.json").read_text())
    assert config["talker_config"]["spk_id"]["ryan"] == 3061
    assert (out / "speech_tokenizer" / "model.safetensors").stat().st_size > 10_000
    assert "frames" in run("generate", out, "Hello.", "ryan", wav)
    assert wav.stat().st_size > 1920
