"""Training batches for the talker: endless, mixed, and of a few fixed shapes.

A preset mostly speaks by its name; its other utterances, and all of the crowd's, are prompted by the voice's row
alone, by that and other utterances of the voice as the reference, or by a description.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .descriptions import describe
from .prompts import NONE, VOICE, Ints, Prompter, row
from .voices import PRESETS, everyone

Batch = tuple[Tensor, Tensor, Tensor]
STREAMED, INSTRUCTED, CASUAL = 0.35, 0.08, 0.08
"""shares of rows with one text token a frame, with an instruction, and typed without capitals and final stop"""
NAMED, KINDS = 0.7, {"x_vector": 0.33, "reference": 0.37, "description": 0.3}
"""share of a preset's rows with its name, and how the other rows are prompted"""
CLONE_STREAMED = 0.6
"""share of the rows with an x-vector alone that have one text token a frame: there that is the official default"""
PRESETS_SHARE = 0.4
"""of the rows, where there is a crowd"""
REFERENCE = (20, 150)
"""frames of a reference, drawn evenly; it is made of whole utterances and may be a little longer"""
SILENCE = 7
"""frames at most that the end of a reference lasts longer: the server puts half a second of silence there"""
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
LENGTHS = (48, 72, 88, 104, 136, 184, 264, 344)
"""positions of a row; a batch holds rows of one length, and longer ones are left out"""


def load_codes(path: Path) -> tuple[NDArray[np.int16], dict[str, NDArray[Any]]]:
    """[frames, used] codes and the other arrays that the quantizer wrote."""
    with np.load(path) as arrays:
        rest = {name: arrays[name] for name in ("phones", "frames", "text", "voice")}
        codes = np.concatenate([arrays["first"][:, None], arrays["later"].T], 1).astype(np.int16)
    return codes, rest


class Rows(IterableDataset[Batch]):
    """Endless batches for training, or each held-out utterance once.

    A batch is [4, rows, positions] as prompts.row has them, the flat positions [chosen] that the predictor learns
    from (it needs fewer examples than the talker, and each costs it a row of its own), and the voices [rows].
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
        self.voices = everyone(max(0, int(self.voice.max()) + 1 - len(PRESETS)))
        self.start = np.cumsum(self.frames) - self.frames
        self.tokenizer, self.positions, self.seed = tokenizer, positions, seed
        self.chosen = int(positions * share)
        prompter = Prompter(tokenizer)
        mine = [texts[i] for i in tables["text"]]
        plain = [text.rstrip(".!?").lower() for text in mine]
        self.tokens = [[e.ids for e in prompter.tokenizer.encode_batch(form)] for form in (mine, plain)]
        order = np.random.default_rng(0).permutation(len(self.frames)).tolist()
        self.held_out, self.trained = order[:held_out], np.array(order[held_out:])
        named = self.voice[self.trained] < len(PRESETS)
        self.pools = [self.trained[named], self.trained[~named]]
        self.by_voice: dict[int, list[int]] = {}
        for at in self.trained.tolist():
            self.by_voice.setdefault(int(self.voice[at]), []).append(at)
        self.validating = False

    def _draw(self, rng: random.Random) -> int:
        presets, others = self.pools
        pool = presets if not len(others) or (len(presets) and rng.random() < PRESETS_SHARE) else others
        return int(pool[rng.randrange(len(pool))])

    def _span(self, at: int) -> Ints:
        return np.arange(self.start[at], self.start[at] + self.frames[at], dtype=np.int32)

    def _reference(self, at: int, rng: random.Random) -> tuple[list[int], Ints]:
        """What is said and the frames, of other utterances of a voice; none where the voice has none."""
        wanted, said, parts = rng.randint(*REFERENCE), list[int](), [np.zeros(0, np.int32)]
        mine = self.by_voice.get(int(self.voice[at]), [])
        while sum(map(len, parts)) < wanted and any(one != at for one in mine):
            one = mine[rng.randrange(len(mine))]
            if one != at:
                said += self.tokens[0][one]
                parts.append(self._span(one))
        return said, np.concatenate(parts)

    def _row(self, at: int, rng: random.Random, prompter: Prompter) -> NDArray[np.int32]:
        voice, language = int(self.voice[at]), "english" if rng.random() < 0.5 else None
        text, frames = self.tokens[rng.random() < CASUAL][at], self._span(at)
        streamed, speaker, instruct = rng.random() < STREAMED, VOICE, list[int]()
        wanted = frames
        if voice < len(PRESETS) and rng.random() < NAMED:
            speaker = PRESETS[voice].token
            if rng.random() < INSTRUCTED:
                instruct = prompter.instruction(rng.choice(INSTRUCTIONS))
        else:
            kind = rng.choices(list(KINDS), KINDS.values())[0]
            if kind == "description":
                speaker, instruct = None, prompter.instruction(describe(self.voices[voice], rng).text)
            elif kind == "x_vector":
                streamed = rng.random() < CLONE_STREAMED
            else:
                text, frames, wanted, streamed = self._cloned(at, text, frames, rng, prompter)
        prompt = prompter.prompt(text, speaker, language, streamed, instruct)
        return row(prompt, frames, wanted, prompter.pad)

    def _cloned(
        self, at: int, text: list[int], frames: Ints, rng: random.Random, prompter: Prompter
    ) -> tuple[list[int], Ints, Ints, bool]:
        """Text, frames, those to predict and whether the text is streamed, behind a reference."""
        said, reference = self._reference(at, rng)
        longer = reference[-1:].repeat(rng.randint(0, SILENCE))
        quiet = np.full(len(longer), NONE, np.int32)
        layout = rng.choice(("streaming", "full", "reference_first"))
        if layout == "reference_first":
            text = prompter.reference_first(said, text, len(reference) + len(longer))
        else:
            text = [*said, *text]
        return (
            text,
            np.concatenate([reference, longer, frames]),
            np.concatenate([reference, quiet, frames]),
            layout != "full",
        )

    def _batch(
        self, part: list[tuple[NDArray[np.int32], int]], length: int, generator: np.random.Generator
    ) -> Batch:
        rows = max(1, self.positions // length)
        batch, voices = np.full((4, rows, length), NONE, np.int32), np.zeros(rows, np.int64)
        for i, (one, voices[i]) in enumerate(part):
            batch[:, i, : one.shape[1]] = one
        chosen = generator.choice(np.flatnonzero(batch[3] >= 0), self.chosen)
        return torch.from_numpy(batch), torch.from_numpy(chosen), torch.from_numpy(voices)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number = self.seed * 1000 + (worker.id if worker and not self.validating else 0)
        rng, generator, prompter = (
            random.Random(number),
            np.random.default_rng(number),
            Prompter(self.tokenizer),
        )
        waiting: dict[int, list[tuple[NDArray[np.int32], int]]] = {length: [] for length in LENGTHS}
        while True:
            for at in self.held_out if self.validating else (self._draw(rng) for _ in range(2000)):
                one = self._row(at, rng, prompter)
                length = next((length for length in LENGTHS if one.shape[1] <= length), None)
                if length is None:
                    continue
                waiting[length].append((one, int(self.voice[at])))
                if len(waiting[length]) == max(1, self.positions // length):
                    yield self._batch(waiting[length], length, generator)
                    waiting[length] = []
            if self.validating:
                yield from (self._batch(part, length, generator) for length, part in waiting.items() if part)
                return
