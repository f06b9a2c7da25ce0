"""The voice trainer: its text rules everywhere, and every step in small where PyTorch is installed."""

import importlib
import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.voice.descriptions import describe, levels  # noqa: E402
from tools.voice.features import RATE  # noqa: E402
from tools.voice.measure import pitch, speech_s  # noqa: E402
from tools.voice.prompts import END, NONE, VOICE, Prompt, row  # noqa: E402
from tools.voice.spoken import spoken, word_errors, words  # noqa: E402
from tools.voice.voices import crowd, everyone  # noqa: E402


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


def test_a_crowd_grows_at_its_end_and_traits_say_who_speaks() -> None:
    assert everyone(40)[:20] == everyone(11)
    assert crowd(5, seed=2) != crowd(5)
    for voice in everyone(40):
        traits = voice.traits.reshape(3, 4)
        assert traits[:, 0].sum() == 1
        assert np.all(traits[traits[:, 0] == 0] == 0)
        assert np.abs(traits).max() < 1.6


def test_descriptions_say_what_the_voice_is() -> None:
    rng, told = random.Random(0), 0
    for voice in crowd(300):
        one, (height, pace, _) = describe(voice, rng), levels(voice)
        text = f" {one.text.lower()} "
        assert one.woman in (None, voice.engine == "slt")
        assert one.pitch in (None, height)
        assert one.pace in (None, pace)
        if one.woman is not None:
            told += bool(re.search(r"\b(woman|female|lady)\b", text)) == one.woman
        if one.pace == -1:
            assert not re.search("slow|no hurry|his time", text)
    assert told > 200


def _hum(hertz: float, seconds: float, bright: float = 0.7) -> np.ndarray:
    """A tone with harmonics, and silence around it."""
    at = np.arange(int(seconds * RATE)) / RATE
    tone = sum(bright**n * np.sin(2 * np.pi * n * hertz * at) for n in range(1, 12))
    quiet = np.zeros(RATE // 5)
    return np.concatenate([quiet, 0.1 * np.asarray(tone), quiet]).astype(np.float32)


def test_pitch_and_length_are_measured_and_the_likest_reference_found() -> None:
    assert pitch(_hum(141, 1)) == pytest.approx(141, rel=0.01)
    assert pitch(np.zeros(RATE, np.float32)) == 0
    assert speech_s(_hum(100, 0.75)) == pytest.approx(0.75, abs=0.02)
    pytest.importorskip("scipy")
    module = importlib.import_module("tools.voice.likeness")
    assert len(module.read_descriptions(ROOT / "tools/voice/eval_descriptions.txt")) == 20
    originals = [_hum(100, 1), _hum(150, 1, 0.5), _hum(220, 1, 0.8)]
    same = [(i, sound) for i, sound in enumerate(originals)]
    assert module.likeness(originals, same) == (1.0, 0.0)
    wrong, semitones = module.likeness(originals, [(0, originals[2])])
    assert wrong < 1
    assert semitones == pytest.approx(13.65, abs=0.2)


def test_a_row_of_a_clone_predicts_the_reference_but_not_the_silence_behind_it() -> None:
    prompt = Prompt([7, 8], [VOICE, 2149], [5, 6])
    frames, wanted = np.array([30, 31, 31, 50], np.int32), np.array([30, 31, NONE, 50], np.int32)
    assert row(prompt, frames, wanted, 9).tolist() == [
        [7, 8, 5, 6, 9, 9],
        [VOICE, 2149, NONE, NONE, NONE, NONE],
        [NONE, NONE, 30, 31, 31, 50],
        [NONE, 30, 31, NONE, 50, END],
    ]


def _made_up_shard(path: Path, seed: int, voices: tuple[int, int] = (0, 9)) -> None:
    """Speech-like arrays as synth writes them, without an engine."""
    rng = np.random.default_rng(seed)
    frames = np.full(12, 30)
    total = int(frames.sum())
    np.savez(
        path,
        frames=frames,
        text=np.arange(12),
        voice=rng.integers(*voices, 12).astype(np.uint16),
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

    rng = np.random.default_rng(0)
    speech, texts, trained, out = (tmp_path / name for name in ("speech", "texts.jsonl", "run", "out"))
    tables, codes, tokenizer, wav = (tmp_path / name for name in ("q.npz", "codes.npz", "tok", "hello.wav"))
    crowd = tmp_path / "crowd"
    speech.mkdir()
    crowd.mkdir()
    for number in range(4):
        _made_up_shard(speech / f"00-{number:04d}.npz", number)
        _made_up_shard(crowd / f"00-{number:04d}.npz", number, voices=(9, 14))
    texts.write_text(
        "".join(json.dumps({"raw": f"Say number {n}.", "spoken": "x"}) + "\n" for n in range(12))
    )
    run("tokenizer", texts, tokenizer, "--size", 300)
    run("quantize", "fit", speech, tables, "--used", 4)
    run("quantize", "crowd", crowd, tables)
    run("quantize", "encode", speech, tables, codes, "--more", crowd)
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
    design = tmp_path / "design"
    run("export", trained, tokenizer, design, "--kind", "voice_design", "--codec", out)
    config = json.loads((design / "config.json").read_text())
    assert (config["tts_model_type"], config["talker_config"]["spk_id"]) == ("voice_design", {})
    generate = importlib.import_module("tools.voice.generate")
    speaker, codes = generate.Speaker(design), rng.integers(1, 200, (7, 16)).astype(np.int16)
    manners = [generate.Described("A woman."), generate.Cloned(np.ones(32, np.float32))]
    manners += [generate.Cloned(manners[1].row, "Hi.", codes, first) for first in (False, True)]
    spoken_rows = speaker.speak(["Hello."] * 4, manners, limit=5)
    assert [len(one.samples) for one in spoken_rows] == [len(one.codes) * 1920 for one in spoken_rows]
    assert (design / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
