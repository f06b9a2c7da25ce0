"""Train talker and code predictor:

    python -m tools.voice.train_talker CODES.npz TEXTS.jsonl TOKENIZER/ RUN/ --minutes 9

On a GPU the whole step is recorded and replayed (recorder.py). RUN/talker.pt is written every minute; a second call
resumes it. --start begins with the weights of an exported checkpoint.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from .average import Average
from .ids import CODEC_EOS, CODEC_VOCABULARY, TalkerSize
from .progress import Progress
from .prompts import END, VOICE
from .quantizer import FIRST
from .recorder import Recorder, set_rate
from .rows import Rows, load_codes
from .shards import FRAMES_AN_HOUR
from .talker import PhoneGuide, Talker, VoiceRow

IGNORED = -100


class Losses(nn.Module):
    """Talker, predictor, voice row and phone guide on one batch."""

    def __init__(self, talker: Talker, codes: Tensor, phones: Tensor, traits: Tensor, noise: float) -> None:
        super().__init__()
        self.talker, self.guide = talker, PhoneGuide(talker.size.hidden)
        self.voice_row = VoiceRow(talker.size.hidden)
        self.used, self.noise = codes.shape[1], noise
        weights = torch.linspace(1.6, 0.6, self.used - 1, device=codes.device)
        self.data = {"codes": codes, "phones": phones, "weights": weights / weights.sum() * 1.5}
        self.data["traits"] = traits

    def _disturbed(self, codes: Tensor) -> Tensor:
        """Some frames of some rows are swapped for others, so that a bad sample does not derail the speech."""
        (rows, length, _), device, pool = codes.shape, codes.device, self.data["codes"]
        strength = torch.rand(rows, 1, device=device) * 2 * self.noise
        strength = strength * (torch.rand(rows, 1, device=device) < 0.5)
        swap = torch.rand(rows, length, device=device) < strength
        other = pool[torch.randint(len(pool), (rows, length), device=device)]
        return torch.where(swap[..., None], other, codes)

    def _inputs(self, text: Tensor, special: Tensor, frame: Tensor, voices: Tensor) -> Tensor:
        """[rows, positions, hidden]: a product with rows that have a one for each vector in the sum."""
        codes = self.data["codes"][frame.clamp(min=0)]
        if self.training:
            codes = self._disturbed(codes)
        size = self.talker.size
        table = self.talker.input_table(self.used)
        nothing = len(table) - 1
        first = torch.where(frame >= 0, codes[..., 0].long(), special)
        offsets = torch.arange(self.used - 1, device=codes.device) * size.predictor_vocabulary
        later = codes[..., 1:].long() + size.text_vocabulary + CODEC_VOCABULARY + offsets
        columns = [
            torch.where(text >= 0, text, nothing)[..., None],
            torch.where(first >= 0, first + size.text_vocabulary, nothing)[..., None],
            torch.where(frame[..., None] >= 0, later, nothing),
        ]
        kind = torch.bfloat16 if table.is_cuda else table.dtype
        hot = torch.zeros(*frame.shape, len(table), dtype=kind, device=table.device)
        x = hot.scatter_(-1, torch.cat(columns, -1), 1) @ table.to(kind)
        rows = self.voice_row(self.data["traits"][voices])
        return x + (special == VOICE)[..., None] * rows[:, None].to(kind)

    def forward(self, batch: Tensor, chosen: Tensor, voices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cross entropy of group 0, of each later group [used - 1], and of the phones."""
        text, special, frame, wanted = batch.long()
        talker = self.talker
        hidden = talker.model(self._inputs(text, special, frame, voices))
        target = self.data["codes"][wanted.clamp(min=0)]
        # Only codes that exist and the end can be wanted: the other rows of the head stay out of it, but for a few
        # after the end that make the number of columns fit the matrix units.
        head = talker.codec_head.weight
        rows = torch.cat([head[:FIRST], head[CODEC_EOS : CODEC_EOS + 8]]).to(hidden.dtype)
        first = torch.where(wanted >= 0, target[..., 0].long(), torch.where(wanted == END, FIRST, IGNORED))
        first_loss = functional.cross_entropy((hidden @ rows.T).float().flatten(0, 1), first.flatten())
        phones = torch.where(wanted[..., None] >= 0, self.data["phones"][wanted.clamp(min=0)].long(), IGNORED)
        phone_loss = functional.cross_entropy(self.guide(hidden).float().flatten(0, 2), phones.flatten())
        hidden, target = (part.flatten(0, 1).index_select(0, chosen) for part in (hidden, target))
        later = talker.later_groups(hidden, target, self.used).float()
        losses = functional.cross_entropy(
            later.flatten(0, 1), target[:, 1:].long().flatten(), reduction="none"
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
    parser.add_argument("--start", type=Path, help="a checkpoint whose weights to begin with")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many, whatever the time")
    parser.add_argument("--positions", type=int, default=65536, help="a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=400, help="steps")
    parser.add_argument("--share", type=float, default=0.15, help="of the positions, for the predictor")
    parser.add_argument("--noise", type=float, default=0.08, help="frames disturbed")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--size", type=json.loads, default={}, help="widths as JSON, for a try in small")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args.run.mkdir(parents=True, exist_ok=True)
    codes, tables = load_codes(args.codes)
    texts = [json.loads(line)["raw"] for line in args.texts.read_text().splitlines()]
    rows = Rows(tables, texts, args.tokenizer, args.positions, args.share, args.held_out, args.seed)
    talker = Talker(TalkerSize(**args.size)).to(device)
    if args.start is not None:
        weights = load_file(args.start / "model.safetensors")
        talker.load_state_dict({n.removeprefix("talker."): w.float() for n, w in weights.items()})
    traits = np.stack([voice.traits for voice in rows.voices])
    on_device = [torch.from_numpy(array).to(device) for array in (codes, tables["phones"], traits)]
    losses = Losses(talker, *on_device, noise=args.noise).to(device)
    average = Average(losses, 0.995)
    matrices = [p for n, p in losses.named_parameters() if p.dim() == 2 and "embedding" not in n]
    others = [p for n, p in losses.named_parameters() if not (p.dim() == 2 and "embedding" not in n)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    first_rate, on_gpu = torch.tensor(args.rate, device=device), device == "cuda"
    optimizer = torch.optim.AdamW(groups, first_rate, (0.9, 0.98), fused=on_gpu, capturable=on_gpu)
    parts = {"losses": losses, "average": average.model, "optimizer": optimizer}
    done = Progress(args.run / "talker.pt", parts, device, args.minutes)
    if args.compile:
        # One layer is compiled and reused by all, for every length: seconds instead of minutes of compiling.
        for layer in [*talker.model.layers, *talker.code_predictor.model.layers]:
            layer.compile(dynamic=True)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            first, later, phones = losses(*inputs)
        optimizer.zero_grad(set_to_none=True)
        (first + (later * losses.data["weights"]).sum() + 0.3 * phones).backward()
        nn.utils.clip_grad_norm_(losses.parameters(), 1.0)
        optimizer.step()
        average.update()
        return first.detach(), later.detach().mean(), phones.detach()

    train = Recorder(run, [optimizer], args.graphs and on_gpu)

    def save() -> None:
        done.save(size=vars(talker.size), used=losses.used)

    def validate() -> str:
        rows.validating = True
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            found = [
                torch.stack([first, *later[:3], later.mean(), phones])
                for first, later, phones in (average.model(*(t.to(device) for t in batch)) for batch in rows)
            ]
        rows.validating = False
        return " ".join(f"{value:.3f}" for value in torch.stack(found).mean(0).tolist())

    many = {"num_workers": args.workers, "prefetch_factor": 8, "pin_memory": on_gpu} if args.workers else {}
    batches = iter(DataLoader(rows, batch_size=None, **many))
    count = sum(weight.numel() for weight in talker.parameters())
    hours = len(codes) / FRAMES_AN_HOUR
    print(f"{len(tables['frames'])} utterances, {hours:.1f} h, {count} weights", flush=True)
    while done.step < args.steps and (share := done.share) < 1:
        rate = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share))
        set_rate(optimizer, args.rate * rate * min(1, (done.step + 1) / args.warm_up))
        first, later, phones = train(*(part.to(device, non_blocking=True) for part in next(batches)))
        done.step += 1
        if done.step % 200 == 0 or done.step in (1, 20):
            print(
                f"step {done.step} {done.seconds:.0f} s group 0 {first:.3f} later {later:.3f} phones {phones:.3f} "
                f"rate {rate:.3f}",
                flush=True,
            )
        if done.look():
            save()
            print(f"held out: group 0, 1, 2, 3, later, phones: {validate()}", flush=True)
    save()
    print(f"{done.step} steps; held out: group 0, 1, 2, 3, later, phones: {validate()}", flush=True)


if __name__ == "__main__":
    main()
