"""Prompt layouts of the released models, as rows for training and as tokens for speaking.

A row is a list of positions, each the sum of a text token (or none) and either a codec special, or a frame, or
none. With the text up front all of it stands before the first frame; streamed, one token joins each frame.

A clone with a reference speaks on where the reference stops: its prompt is that of the reference's words and the
new ones, followed by the reference's frames. With reference_first, pads fill the text until the reference is over.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .ids import CODEC_BOS, CODEC_PAD, LANGUAGES, NOTHINK, THINK, THINK_BOS, THINK_EOS

NONE, END, VOICE = -1, -2, -3
"""no token or frame; the end of the speech; the row of a voice that is not a preset (x-vector)"""
Ints = NDArray[np.int32]


@dataclass
class Prompt:
    """Positions before the first frame, and the text that joins the frames."""

    text: list[int]
    codec: list[int]
    trailing: list[int]
    """text tokens for the following frames, the pad for ever after"""


class Prompter:
    """Builds prompts with one tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self.pad, self.bos, self.eos = (
            self.tokenizer.token_to_id(token) for token in ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
        )
        self.role = self.encode("<|im_start|>assistant\n")

    def encode(self, text: str) -> list[int]:
        """Token ids."""
        return self.tokenizer.encode(text).ids

    def prompt(
        self, text: list[int], speaker: int | None, language: str | None, streamed: bool, instruct: list[int]
    ) -> Prompt:
        """A preset's token, VOICE or none; a language (or none: the model finds out); an instruction (or [])."""
        think = [NOTHINK, THINK_BOS, THINK_EOS]
        if language is not None:
            think = [THINK, THINK_BOS, LANGUAGES[language], THINK_EOS]
        codec = [*think, *([] if speaker is None else [speaker])]
        head = [*instruct, *self.role]
        tokens = [*head, *[self.pad] * len(codec), self.bos]
        codes = [*[NONE] * len(head), *codec, CODEC_PAD]
        text = [*text, self.eos]
        if streamed:
            return Prompt([*tokens, text[0]], [*codes, CODEC_BOS], text[1:])
        return Prompt([*tokens, *text, self.pad], [*codes, *[CODEC_PAD] * len(text), CODEC_BOS], [])

    def instruction(self, text: str) -> list[int]:
        """The turn that tells how to speak, or describes a voice."""
        return self.encode(f"<|im_start|>user\n{text}<|im_end|>\n")

    def reference_first(self, said: list[int], text: list[int], frames: int) -> list[int]:
        """What is streamed where the text waits for a reference of so many frames, in which `said` is said."""
        return [*said, *[self.pad] * (frames - len(said)), *text]


def row(prompt: Prompt, frames: Ints, wanted: Ints, pad: int) -> Ints:
    """[4, positions]: text token, codec special, input frame, frame to predict (NONE or END).

    wanted is what the last position of the prompt and each but the last of the frames should predict.
    """
    before = len(prompt.text)
    out = np.full((4, before + len(frames)), NONE, np.int32)
    out[0, :before], out[1, :before] = prompt.text, prompt.codec
    joined = prompt.trailing[: len(frames)]
    out[0, before:] = pad
    out[0, before : before + len(joined)] = joined
    out[2, before:] = frames
    out[3, before - 1 : -1] = wanted
    out[3, -1] = END
    return out
