"""Speak with an exported checkpoint in plain PyTorch: the reference for the server, and the means to measure.

    python -m tools.voice.generate CHECKPOINT/ "Hello there." ryan out.wav

Several sentences are spoken at once, as rows of a batch padded on the left, each in a voice of its own if need be.
"""

import argparse
import json
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .checkpoint import read_decoder, read_talker
from .ids import CODEC_EOS
from .prompts import VOICE, Prompt, Prompter
from .quantizer import FIRST
from .talker import Cache
from .voices import PRESETS

MIN_FRAMES = 2


@dataclass
class Sampling:
    """generation_config.json, as far as it matters here."""

    temperature: float
    top_k: int
    subtalker_temperature: float
    subtalker_top_k: int
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Described:
    """A voice made from a description."""

    text: str


@dataclass(frozen=True)
class Cloned:
    """A voice given by its row and, with a reference, by what it said before."""

    row: NDArray[np.float32]
    """x-vector, [hidden]"""
    said: str = ""
    codes: NDArray[np.int16] | None = None
    """[frames, groups] of the reference"""
    reference_first: bool = False
    """the text begins where the reference ends, one token a frame"""


Manner = str | Described | Cloned
"""a preset's name, or one of the others"""


@dataclass
class Utterance:
    """One sentence spoken."""

    codes: NDArray[np.int16]
    """[frames, groups]"""
    samples: NDArray[np.float32]
    ended: bool
    """the model said so itself, before the limit"""


def _sample(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    """[n, vocabulary] -> [n]; temperature 0 takes the likeliest."""
    logits = logits.float()
    if temperature == 0:
        return logits.argmax(-1)
    least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
    chances = (logits.masked_fill(logits < least, -torch.inf) / temperature).softmax(-1)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


class Speaker:
    """A checkpoint folder, loaded in float32."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.device = device
        self.talker = read_talker(folder).to(device).eval()
        self.decoder = read_decoder(folder / "speech_tokenizer").to(device).eval()
        self.prompter = Prompter(folder)
        settings: dict[str, Any] = json.loads((folder / "generation_config.json").read_text())
        self.sampling = Sampling(**{name: settings[name] for name in Sampling.__dataclass_fields__})

    @torch.no_grad()
    def speak(
        self,
        texts: list[str],
        voice: Manner | Sequence[Manner],
        seed: int = 0,
        language: str | None = "english",
        streamed: bool = False,
        limit: int = 250,
        sound: bool = True,
    ) -> list[Utterance]:
        """Say texts in one voice, or each in its own; at most limit frames each."""
        device, talker = self.device, self.talker
        voices = [voice] * len(texts) if isinstance(voice, (str, Described, Cloned)) else voice
        rows: list[Tensor] = []
        after = torch.full((limit, len(texts)), self.prompter.pad)
        for i, (text, manner) in enumerate(zip(texts, voices, strict=True)):
            start, later = self._prefill(manner, self._prompt(text, manner, language, streamed))
            rows.append(start)
            after[: len(later), i] = torch.tensor(later[:limit], dtype=torch.long)
        trailing = talker.text(after.to(device))
        longest = max(map(len, rows))
        x = torch.stack([functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
        seen = torch.arange(longest, device=device) >= torch.tensor(
            [[longest - len(row)] for row in rows], device=device
        )

        generator = torch.Generator(device).manual_seed(seed)
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        # A padded query would have nothing to look at, and give NaN: it looks at itself.
        mask = (causal & seen[:, None]) | torch.eye(longest, dtype=torch.bool, device=device)
        cache: Cache = []
        hidden = self._step(x, cache, mask[:, None])
        frames: list[Tensor] = []
        length = torch.full((len(texts),), limit)
        barred = torch.zeros(talker.codec_head.out_features, dtype=torch.bool, device=device)
        barred[2048:] = True
        barred[CODEC_EOS] = False
        for frame in range(limit):
            logits = talker.codec_head(hidden).masked_fill(barred, -torch.inf)
            if frame < MIN_FRAMES:
                logits[:, CODEC_EOS] = -torch.inf
            first = _sample(logits, self.sampling.temperature, self.sampling.top_k, generator)
            done = ((first == CODEC_EOS) & (length.to(device) == limit)).cpu()
            length[done] = frame
            if (length < limit).all():
                break
            # A finished row goes on with the rest of the batch; what it says is dropped.
            codes = self._frame(hidden, first.clamp(max=FIRST - 1), generator)
            frames.append(codes)
            seen = torch.cat([seen, torch.ones(len(texts), 1, dtype=torch.bool, device=device)], 1)
            x = talker.frames(codes) + trailing[frame]
            hidden = self._step(x[:, None], cache, seen[:, None, None])
        spoken = torch.stack(frames, 1).cpu()
        out: list[Utterance] = []
        for i, count in enumerate(length.tolist()):
            codes = spoken[i, :count]
            samples = (
                self.decoder(codes.T[None].to(device))[0].cpu().numpy() if sound else np.zeros(0, np.float32)
            )
            out.append(Utterance(codes.numpy().astype(np.int16), samples, count < limit))
        return out

    def _prompt(self, text: str, manner: Manner, language: str | None, streamed: bool) -> Prompt:
        prompter, tokens, instruct = self.prompter, self.prompter.encode(text), list[int]()
        match manner:
            case str():
                speaker = next(preset.token for preset in PRESETS if preset.name == manner)
            case Described():
                speaker, instruct = None, prompter.instruction(manner.text)
            case Cloned():
                speaker, said = VOICE, prompter.encode(manner.said)
                if manner.codes is not None and manner.reference_first:
                    tokens = prompter.reference_first(said, tokens, len(manner.codes))
                else:
                    tokens = [*said, *tokens]
                streamed = streamed or manner.reference_first
        return prompter.prompt(tokens, speaker, language, streamed, instruct)

    def _prefill(self, manner: Manner, prompt: Prompt) -> tuple[Tensor, list[int]]:
        """[positions, hidden] of the prompt and the reference's frames, and the text tokens after those."""
        text, codec = (torch.tensor(part, device=self.device) for part in (prompt.text, prompt.codec))
        x = self.talker.text(text)
        x = x + self.talker.code(0, codec.clamp(min=0)) * (codec >= 0)[:, None]
        if not isinstance(manner, Cloned):
            return x, prompt.trailing
        x = x + (codec == VOICE)[:, None] * torch.from_numpy(manner.row).to(self.device)
        if manner.codes is None:
            return x, prompt.trailing
        count = len(manner.codes)
        beside = [*prompt.trailing[:count], *[self.prompter.pad] * (count - len(prompt.trailing))]
        frames = self.talker.frames(torch.from_numpy(manner.codes).long().to(self.device))
        frames = frames + self.talker.text(torch.tensor(beside, device=self.device))
        return torch.cat([x, frames]), prompt.trailing[count:]

    def _step(self, x: Tensor, cache: Cache, mask: Tensor) -> Tensor:
        """[batch, time, hidden] -> [batch, hidden] of the last position."""
        return self.talker.model(x, cache, mask)[:, -1]

    def _frame(self, hidden: Tensor, first: Tensor, generator: torch.Generator) -> Tensor:
        """[batch, groups] all codes of one frame."""
        predictor, talker = self.talker.code_predictor, self.talker
        project, cache, codes = predictor.small_to_mtp_projection, [], [first]
        y = predictor.model(project(torch.stack([hidden, talker.code(0, first)], 1)), cache)
        for group in range(1, talker.size.groups):
            logits = predictor.lm_head[group - 1](y[:, -1])
            settings = self.sampling
            codes.append(_sample(logits, settings.subtalker_temperature, settings.subtalker_top_k, generator))
            if group < talker.size.groups - 1:
                y = predictor.model(project(talker.code(group, codes[-1])[:, None]), cache)
        return torch.stack(codes, 1)


def write_wav(path: Path, samples: NDArray[np.float32]) -> None:
    """24 kHz mono, 16 bit."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24000)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text")
    parser.add_argument("voice", choices=[preset.name for preset in PRESETS])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streamed", action="store_true", help="one text token a frame")
    args = parser.parse_args()
    utterance = Speaker(args.checkpoint).speak([args.text], args.voice, args.seed, streamed=args.streamed)[0]
    write_wav(args.out, utterance.samples)
    print(f"{len(utterance.codes)} frames, {'ended' if utterance.ended else 'cut at the limit'}")


if __name__ == "__main__":
    main()
