"""Training batches for the talker: endless, mixed, and of a few fixed shapes."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .prompts import NONE, Prompter, row
from .voices import PRESETS

Batch = tuple[Tensor, Tensor]
STREAMED, INSTRUCTED, CASUAL = 0.35, 0.08, 0.08
"""shares of rows with one text token a frame, with an instruction, and typed without capitals and final stop"""
INSTRUCTIONS = (
    "Speak clearly.",
    "Use a calm voice.",
    "Sound friendly.",
    "Speak in a happy tone.",
    "Read this like the news.",
    "Very happy.",
    "Speak slowly and clearly.",
    "Use a professional tone.",
)
LENGTHS = (48, 72, 88, 104, 136, 184, 264)
"""positions of a row; a batch holds rows of one length, and longer ones are left out"""


def load_codes(path: Path) -> tuple[NDArray[np.int16], dict[str, NDArray[Any]]]:
    """[frames, used] codes and the other arrays that the quantizer wrote."""
    with np.load(path) as arrays:
        rest = {name: arrays[name] for name in ("phones", "frames", "text", "voice")}
        codes = np.concatenate([arrays["first"][:, None], arrays["later"].T], 1).astype(np.int16)
    return codes, rest


class Rows(IterableDataset[Batch]):
    """Endless batches for training, or each held-out utterance once.

    A batch is [4, rows, positions] as prompts.row has them, and the flat positions [chosen] that the predictor
    learns from: it needs fewer examples than the talker, and each costs it a row of its own.
    """

    def __init__(
        self,
        tables: dict[str, NDArray[Any]],
        texts: list[str],
        tokenizer: Path,
        positions: int,
        share: float,
        held_out: int,
        seed: int,
    ) -> None:
        self.voice, self.frames = tables["voice"], tables["frames"]
        self.start = np.cumsum(self.frames) - self.frames
        self.tokenizer, self.positions, self.seed = tokenizer, positions, seed
        self.chosen = int(positions * share)
        prompter = Prompter(tokenizer)
        mine = [texts[i] for i in tables["text"]]
        plain = [text.rstrip(".!?").lower() for text in mine]
        self.tokens = [[e.ids for e in prompter.tokenizer.encode_batch(form)] for form in (mine, plain)]
        order = np.random.default_rng(0).permutation(len(self.frames)).tolist()
        self.held_out, self.trained = order[:held_out], order[held_out:]
        self.validating = False

    def _row(self, at: int, rng: random.Random, prompter: Prompter) -> NDArray[np.int32]:
        instruct = prompter.instruction(rng.choice(INSTRUCTIONS)) if rng.random() < INSTRUCTED else []
        language = "english" if rng.random() < 0.5 else None
        text = self.tokens[rng.random() < CASUAL][at]
        speaker = PRESETS[self.voice[at]].token
        prompt = prompter.prompt(text, speaker, language, rng.random() < STREAMED, instruct)
        return row(prompt, int(self.start[at]), int(self.frames[at]), prompter.pad)

    def _batch(self, part: list[NDArray[np.int32]], length: int, generator: np.random.Generator) -> Batch:
        batch = np.full((4, max(1, self.positions // length), length), NONE, np.int32)
        for i, one in enumerate(part):
            batch[:, i, : one.shape[1]] = one
        ahead = np.flatnonzero(batch[3] >= 0)
        return torch.from_numpy(batch), torch.from_numpy(generator.choice(ahead, self.chosen))

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number = self.seed * 1000 + (worker.id if worker and not self.validating else 0)
        rng, generator, prompter = (
            random.Random(number),
            np.random.default_rng(number),
            Prompter(self.tokenizer),
        )
        waiting: dict[int, list[NDArray[np.int32]]] = {length: [] for length in LENGTHS}
        while True:
            for at in self.held_out if self.validating else rng.choices(self.trained, k=2000):
                one = self._row(at, rng, prompter)
                length = next((length for length in LENGTHS if one.shape[1] <= length), None)
                if length is None:
                    continue
                waiting[length].append(one)
                if len(waiting[length]) == max(1, self.positions // length):
                    yield self._batch(waiting[length], length, generator)
                    waiting[length] = []
            if self.validating:
                yield from (self._batch(part, length, generator) for length, part in waiting.items() if part)
                return
