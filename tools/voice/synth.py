"""Synthesise the training speech: python -m tools.voice.synth TEXTS.jsonl SPEECH/ --processes 16

Every sentence is spoken once, by a preset drawn from the seed; with --crowd by one of so many random voices.
Workers write shards of about ten minutes (SPEECH/<worker>-<number>.npz) under a temporary name and rename them, so
training can begin on what is there and a second call goes on where the first stopped. Only the first --audio-hours
keep their samples, for the codec; the talker needs the features alone.
"""

import argparse
import json
import random
import time
from fractions import Fraction
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from .features import FRAME, RATE, Analysis, analyse
from .flite import Flite
from .voices import PRESETS, Voice, everyone

LEAD_S, TAIL_S = 0.09, 0.17
LONGEST_S = 13.0
SHARD_FRAMES = 7500


def say(engine: Flite, voice: Voice, text: str) -> Analysis | None:
    """One sentence by one voice, cut into frames; None where the engine's result is of no use."""
    size = voice.size
    speech = engine.speak(voice.engine, text, voice.stretch * float(size), voice.pitch)
    ratio = Fraction(RATE, speech.rate) / size
    samples = resample_poly(speech.samples, ratio.numerator, ratio.denominator).astype(np.float32)
    result = analyse(samples, speech.pitch, speech.phones, float(size), LEAD_S, TAIL_S)
    return result if result is not None and len(result.samples) <= LONGEST_S * RATE else None


class _Shard:
    def __init__(self) -> None:
        self.rows: list[tuple[Analysis, int, int]] = []
        self.frames = 0

    def add(self, analysis: Analysis, text: int, voice: int) -> None:
        self.rows.append((analysis, text, voice))
        self.frames += len(analysis.envelope)

    def write(self, path: Path, audio: bool) -> None:
        parts = [row[0] for row in self.rows]
        arrays: dict[str, NDArray[Any]] = {
            "frames": np.array([len(part.envelope) for part in parts]),
            "text": np.array([row[1] for row in self.rows]),
            "voice": np.array([row[2] for row in self.rows], np.uint16),
            "envelope": np.concatenate([part.envelope for part in parts]).astype(np.float16),
            "voicing": np.concatenate([part.voicing for part in parts]).astype(np.float16),
            "pitch": np.concatenate([part.pitch for part in parts]).astype(np.float16),
            "phones": np.concatenate([part.phones for part in parts]),
        }
        if audio:
            arrays["samples"] = np.concatenate([part.samples for part in parts])
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]
        temporary.rename(path)


def _work(
    worker: int,
    workers: int,
    texts: list[str],
    first: int,
    voices: dict[int, Voice],
    out: Path,
    seed: int,
    audio_frames: int,
) -> None:
    engine, numbers = Flite(), list(voices)
    mine = range(worker, len(texts), workers)
    number, shard, written, done = 0, _Shard(), 0, first
    while (path := out / f"{worker:02d}-{number:04d}.npz").exists():
        finished = np.load(path)
        done, written = int(finished["text"].max()) + 1, written + int(finished["frames"].sum())
        number += 1
    began = time.monotonic()
    for order, text in enumerate(mine):
        if text < done:
            continue
        voice = numbers[random.Random(f"{seed}-{text}").randrange(len(numbers))]
        analysis = say(engine, voices[voice], texts[text])
        if analysis is not None:
            shard.add(analysis, text, voice)
        # The first shard is short, so that training can begin early.
        full = shard.frames > (SHARD_FRAMES if number else SHARD_FRAMES // 5)
        if shard.rows and (full or order == len(mine) - 1):
            shard.write(out / f"{worker:02d}-{number:04d}.npz", audio=written < audio_frames)
            number, written, shard = number + 1, written + shard.frames, _Shard()
            if worker == 0:
                hours = written * FRAME / RATE / 3600
                print(f"worker 0: {hours:.2f} h in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="sentence to begin with")
    parser.add_argument("--limit", type=int, help="sentence to end before")
    parser.add_argument("--crowd", type=int, default=0, help="random voices, numbered on from the presets")
    parser.add_argument("--audio-hours", type=float, default=12)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    texts = [json.loads(line)["spoken"] for line in args.texts.read_text().splitlines()[: args.limit]]
    args.out.mkdir(parents=True, exist_ok=True)
    voices = dict(enumerate(everyone(args.crowd)))
    if args.crowd:
        voices = {number: voice for number, voice in voices.items() if number >= len(PRESETS)}
    audio = int(args.audio_hours * 3600 * RATE / FRAME / args.processes)
    workers = [
        Process(
            target=_work,
            args=(i, args.processes, texts, args.first, voices, args.out, args.seed, audio),
        )
        for i in range(args.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("A synthesis worker failed: its error is above; run the command again to go on.")


if __name__ == "__main__":
    main()
