"""Writes the golden data: `make.py [NAME ...]`, by default every checkpoint and the embedded ones.

Checkpoints are made only when they are not there (or with --weights): the vectors belong to the stored weights.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import audio
import choice
import clone
import numpy as np
import official
import speech
import text
import weights
from tiny import CHECKPOINTS

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from tools.voice.encoder_export import write_whole  # noqa: E402

DATA = PROJECT / "tests" / "golden" / "data"
VOICES = PROJECT / "configs" / "voices"
EMBEDDED, BASE = VOICES / "embedded", "embedded-base"


def save(folder: Path, name: str, arrays: dict[str, np.ndarray], about: Any = None) -> None:
    """`name`.npz, and `name`.json where the arrays need a description."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    if about is not None:
        weights.write_json(folder / f"{name}.json", about)
    print(f"{folder.name}/{name}: {len(arrays)} arrays", flush=True)


def vectors(name: str, checkpoint: Path, parts: list[str]) -> None:
    """All vectors of one checkpoint, or those named in `parts`."""
    folder = DATA / name
    tts = official.load(checkpoint)
    presets = tts.model.tts_model_type == "custom_voice"
    spoken = tts.model.tts_model_type != "base"
    if spoken and "prompts" in parts:
        save(folder, "prompts", *speech.prompts(tts))
    if spoken and "talker" in parts:
        arrays = speech.talker(tts, whole_logits=name == "custom")
        save(folder, "talker", arrays)
        save(folder, "predictor", speech.predictor(tts, arrays["full.hidden"], arrays["codes"]))
    if spoken and "greedy" in parts:
        save(folder, "greedy", *speech.generations(tts, name))
    if name == BASE:
        save(folder, "encoders", clone.embedded_encoders(tts))
    elif not spoken and "clone" in parts:
        save(folder, "encoders", clone.encoders(tts))
        save(folder, "prompts", *clone.prompts(tts))
        save(folder, "greedy", clone.generations(tts))
    if "codec" in parts and name in ("custom", "custom06", "embedded"):
        save(folder, "codec", audio.codec(tts, seed=31))
    if "sampling" in parts and name == "custom":
        save(folder, "sampling", *choice.sampling(tts))
    if presets and "text" in parts and name in ("custom", "embedded"):
        weights.write_json(folder / "text.json", text.texts(tts))


def main() -> None:
    """The command."""
    everything = [*CHECKPOINTS, "embedded", BASE]
    parts = ["prompts", "talker", "greedy", "codec", "sampling", "text", "clone"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(everything)}")
    parser.add_argument("--weights", action="store_true", help="make the random weights anew")
    parser.add_argument(
        "--tokenizer", type=Path, default=EMBEDDED, help="where a new checkpoint takes its tokenizer from"
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    for name in options.names or everything:
        if name == BASE:
            with tempfile.TemporaryDirectory() as made:
                write_whole([VOICES / BASE, EMBEDDED], Path(made))
                vectors(name, Path(made), options.only)
            continue
        checkpoint = EMBEDDED if name == "embedded" else DATA / "checkpoints" / name
        if name != "embedded" and (options.weights or not (checkpoint / "model.safetensors").exists()):
            weights.make(name, checkpoint, options.tokenizer)
        vectors(name, checkpoint, options.only)


if __name__ == "__main__":
    main()
