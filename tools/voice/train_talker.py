"""Train talker and code predictor:

    python -m tools.voice.train_talker CODES.npz TEXTS.jsonl TOKENIZER/ RUN/ --minutes 9

Every step is one batch of rows of about the same length. Rows mix the text up front with one token a frame, a
language with none, and now and then an instruction that changes nothing. RUN/talker.pt is written every minute; a
second call resumes it.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .ids import CODEC_EOS, TalkerSize
from .prompts import END, NONE, Prompter, row
from .shards import FRAMES_AN_HOUR
from .talker import PhoneGuide, Talker
from .voices import PRESETS

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
ROUND = 32


def load_codes(path: Path) -> tuple[NDArray[np.int16], dict[str, NDArray[Any]]]:
    """[frames, used] codes and the other arrays that the quantizer wrote."""
    with np.load(path) as arrays:
        rest = {name: arrays[name] for name in ("phones", "frames", "text", "voice")}
        codes = np.concatenate([arrays["first"][:, None], arrays["later"].T], 1).astype(np.int16)
    return codes, rest


class Rows(IterableDataset[Tensor]):
    """Endless batches [4, rows, positions] for training, or each held-out utterance once."""

    def __init__(
        self,
        tables: dict[str, NDArray[Any]],
        texts: list[str],
        tokenizer: Path,
        positions: int,
        held_out: int,
        seed: int,
    ) -> None:
        self.voice, self.frames = tables["voice"], tables["frames"]
        self.start = np.cumsum(self.frames) - self.frames
        self.tokenizer, self.positions, self.seed = tokenizer, positions, seed
        prompter = Prompter(tokenizer)
        mine = [texts[i] for i in tables["text"]]
        plain = [text.rstrip(".!?").lower() for text in mine]
        self.tokens = [[e.ids for e in prompter.tokenizer.encode_batch(form)] for form in (mine, plain)]
        order = np.random.default_rng(0).permutation(len(self.frames))
        self.held_out, self.trained = order[:held_out], order[held_out:]
        self.validating = False

    def _row(self, at: int, rng: random.Random, prompter: Prompter) -> NDArray[np.int32]:
        instruct = prompter.instruction(rng.choice(INSTRUCTIONS)) if rng.random() < INSTRUCTED else []
        language = "english" if rng.random() < 0.5 else None
        text = self.tokens[rng.random() < CASUAL][at]
        speaker = PRESETS[self.voice[at]].token
        prompt = prompter.prompt(text, speaker, language, rng.random() < STREAMED, instruct)
        return row(prompt, int(self.start[at]), int(self.frames[at]), prompter.pad)

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        rng = random.Random(self.seed * 1000 + (worker.id if worker and not self.validating else 0))
        prompter = Prompter(self.tokenizer)
        while True:
            # Long enough a list that sorting by length leaves the batches mixed in everything else.
            pick = self.held_out.tolist() if self.validating else rng.choices(self.trained.tolist(), k=6000)
            rows = sorted((self._row(at, rng, prompter) for at in pick), key=lambda r: r.shape[1])
            batches: list[Tensor] = []
            while rows:
                length = -(-rows[-1].shape[1] // ROUND) * ROUND
                count = max(1, self.positions // length)
                part, rows = rows[-count:], rows[:-count]
                batch = np.full((4, len(part), length), NONE, np.int32)
                for i, one in enumerate(part):
                    batch[:, i, : one.shape[1]] = one
                batches.append(torch.from_numpy(batch))
            rng.shuffle(batches)
            yield from batches
            if self.validating:
                return


class Losses(nn.Module):
    """Talker, predictor and phone guide on one batch."""

    def __init__(self, talker: Talker, codes: Tensor, phones: Tensor, share: float, noise: float) -> None:
        super().__init__()
        self.talker, self.guide = talker, PhoneGuide(talker.size.hidden)
        self.used, self.share, self.noise = codes.shape[1], share, noise
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("phones", phones, persistent=False)
        weights = torch.linspace(1.6, 0.6, self.used - 1)
        self.register_buffer("weights", weights / weights.sum() * 1.5, persistent=False)
        self.codes: Tensor
        self.phones: Tensor
        self.weights: Tensor

    def _disturbed(self, codes: Tensor, rows: int, where: Tensor) -> Tensor:
        """Some frames of some rows are swapped for others, so that a bad sample does not derail the speech."""
        strength = torch.rand(rows, 1, device=codes.device) * 2 * self.noise
        strength = strength * (torch.rand(rows, 1, device=codes.device) < 0.5)
        swap = torch.rand(len(codes), device=codes.device) < strength.expand_as(where)[where]
        other = self.codes[torch.randint(len(self.codes), (len(codes),), device=codes.device)].long()
        return torch.where(swap[:, None], other, codes)

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy of group 0, of each later group [used - 1], and of the phones."""
        text, special, frame, wanted = batch.long()
        talker = self.talker
        x = talker.text(text.clamp(min=0)) * (text >= 0)[..., None]
        x = x + talker.code(0, special.clamp(min=0)) * (special >= 0)[..., None]
        where = frame >= 0
        codes = self.codes[frame[where]].long()
        if self.training:
            codes = self._disturbed(codes, len(text), where)
        frames = talker.frames(codes, self.used)
        x = x + torch.zeros_like(x).index_put(where.nonzero(as_tuple=True), frames.to(x.dtype))
        hidden = talker.model(x)
        labelled = wanted != NONE
        hidden, wanted = hidden[labelled], wanted[labelled]
        target = self.codes[wanted.clamp(min=0)].long()
        first = torch.where(wanted == END, CODEC_EOS, target[:, 0])
        first_loss = functional.cross_entropy(talker.codec_head(hidden).float(), first)
        ahead = wanted != END
        phone_loss = functional.cross_entropy(
            self.guide(hidden).float().flatten(0, 1)[ahead.repeat_interleave(2)],
            self.phones[wanted[ahead]].long().flatten(),
        )
        if self.training:
            # The predictor needs fewer examples than the talker, and each costs it a row of its own.
            ahead = ahead & (torch.rand(wanted.shape, device=wanted.device) < self.share)
        later = talker.later_groups(hidden[ahead], target[ahead], self.used).float()
        losses = functional.cross_entropy(
            later.flatten(0, 1), target[ahead][:, 1:].flatten(), reduction="none"
        )
        return first_loss, losses.view(-1, self.used - 1).mean(0), phone_loss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("codes", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many, whatever the time")
    parser.add_argument("--positions", type=int, default=65536, help="a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=400, help="steps")
    parser.add_argument("--share", type=float, default=0.3, help="frames that the predictor learns from")
    parser.add_argument("--noise", type=float, default=0.08, help="frames disturbed")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--size", type=json.loads, default={}, help="widths as JSON, for a try in small")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args.run.mkdir(parents=True, exist_ok=True)
    codes, tables = load_codes(args.codes)
    texts = [json.loads(line)["raw"] for line in args.texts.read_text().splitlines()]
    rows = Rows(tables, texts, args.tokenizer, args.positions, args.held_out, args.seed)
    talker = Talker(TalkerSize(**args.size))
    losses = Losses(
        talker, torch.from_numpy(codes), torch.from_numpy(tables["phones"]), args.share, args.noise
    ).to(device)
    average = torch.optim.swa_utils.AveragedModel(
        losses, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995)
    )
    matrices = [p for n, p in losses.named_parameters() if p.dim() == 2 and "embedding" not in n]
    others = [p for n, p in losses.named_parameters() if not (p.dim() == 2 and "embedding" not in n)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, args.rate, (0.9, 0.98), fused=device == "cuda")
    saved, step, before = args.run / "talker.pt", 0, 0.0
    if saved.exists():
        state = torch.load(saved, map_location=device)
        losses.load_state_dict(state["losses"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        step, before = state["step"], state["seconds"]
    if args.compile:
        # One layer is compiled and reused by all, for every length: seconds instead of minutes of compiling.
        for layer in [*talker.model.layers, *talker.code_predictor.model.layers]:
            layer.compile(dynamic=True)
    began = time.monotonic()

    def save() -> None:
        state = {
            "losses": losses.state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        state |= {
            "step": step,
            "seconds": before + time.monotonic() - began,
            "size": vars(talker.size),
            "used": codes.shape[1],
        }
        torch.save(state, saved.with_suffix(".tmp"))
        saved.with_suffix(".tmp").rename(saved)

    def validate() -> str:
        rows.validating = True
        average.eval()
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found = [
                torch.stack([first, *later[:3], later.mean(), phones])
                for first, later, phones in (average(batch.to(device)) for batch in rows)
            ]
        rows.validating = False
        return " ".join(f"{value:.3f}" for value in torch.stack(found).mean(0).tolist())

    many = {"num_workers": args.workers, "prefetch_factor": 8, "pin_memory": True} if args.workers else {}
    batches = iter(DataLoader(rows, batch_size=None, **many))
    print(
        f"{len(tables['frames'])} utterances, {len(codes) / FRAMES_AN_HOUR:.1f} h, "
        f"{sum(p.numel() for p in talker.parameters())} weights",
        flush=True,
    )
    next_look = began + 60
    while step < args.steps:
        share = (before + time.monotonic() - began) / (60 * args.minutes)
        if share >= 1:
            break
        rate = (
            args.rate
            * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
            * min(1, (step + 1) / args.warm_up)
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = next(batches).to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            first, later, phones = losses(batch)
        optimizer.zero_grad(set_to_none=True)
        (first + (later * losses.weights).sum() + 0.3 * phones).backward()
        torch.nn.utils.clip_grad_norm_(losses.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(losses)
        step += 1
        if step % 200 == 0 or step in (1, 20):
            print(
                f"step {step} {time.monotonic() - began:.0f} s group 0 {first:.3f} later {later.mean():.3f} "
                f"phones {phones:.3f} rate {rate:.2e}",
                flush=True,
            )
        if time.monotonic() > next_look:
            next_look += 60
            save()
            print(f"held out: group 0, 1, 2, 3, later, phones: {validate()}", flush=True)
    save()
    print(f"{step} steps; held out: group 0, 1, 2, 3, later, phones: {validate()}", flush=True)


if __name__ == "__main__":
    main()
