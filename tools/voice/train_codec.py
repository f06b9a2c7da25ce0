"""Train the decoder on fixed codes: python -m tools.voice.train_codec SPEECH/ quantizer.npz RUN/ --minutes 7

The codes come from the quantizer, so nothing has to be agreed between an encoder and a decoder: the decoder learns
to make sound of known codes, first by spectral distance alone, from --critics of the time on with critics as well.
New shards are picked up while synth still runs. On a GPU the steps are recorded and replayed (recorder.py).
RUN/codec.pt is written every minute; a second call resumes it.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .average import Average
from .decoder import Decoder, DecoderSize
from .features import FRAME
from .losses import Critics, critics_loss, deception_loss, spectral_distance
from .progress import Progress
from .quantizer import Quantizer
from .recorder import Recorder, set_rate
from .shards import FRAMES_AN_HOUR, Shard, read

CONTEXT, CROP, COLD = 96, 24, 2
"""frames the transformer sees, frames that become sound, and frames of those whose start is not judged"""


class Pool:
    """Codes and samples of all utterances long enough for a crop, on the device."""

    def __init__(self, folder: Path, quantizer: Quantizer, device: str, hours: float) -> None:
        self.folder, self.quantizer, self.device, self.hours = folder, quantizer, device, hours
        self.known: set[str] = set()
        self.codes = torch.zeros(0, 16, dtype=torch.int16, device=device)
        self.samples = torch.zeros(0, dtype=torch.int16, device=device)
        self.start = torch.zeros(0, dtype=torch.long, device=device)
        self.length = torch.zeros(0, dtype=torch.long, device=device)

    def _add(self, shards: list[Shard]) -> None:
        self.known |= {shard.name for shard in shards}
        length = np.concatenate([shard.frames for shard in shards])
        start = np.cumsum(length) - length + len(self.codes)
        keep = length >= CROP
        codes = np.concatenate([self.quantizer.encode_shard(shard, self.device) for shard in shards])
        samples = np.concatenate([shard.samples for shard in shards if shard.samples is not None])
        for name, array in (
            ("codes", codes),
            ("samples", samples),
            ("start", start[keep]),
            ("length", length[keep]),
        ):
            setattr(self, name, torch.cat([getattr(self, name), torch.from_numpy(array).to(self.device)]))

    def refresh(self, at_least_h: float = 0.0) -> None:
        """Take in new shards, up to the hours wanted; wait until there are at_least_h of them."""
        while True:
            room = self.hours - len(self.codes) / FRAMES_AN_HOUR
            if shards := list(read(self.folder, room, audio=True, known=self.known)):
                self._add(shards)
            if len(self.codes) >= at_least_h * FRAMES_AN_HOUR and len(self.start):
                return
            time.sleep(2)

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Codes [count, 16, CONTEXT], where the crop begins in them [count], samples, which of them are judged."""
        device = self.device
        pick = torch.randint(len(self.start), (count,), device=device)
        start, length = self.start[pick], self.length[pick]
        crop = (torch.rand(count, device=device) * (length - CROP + 1)).long()
        crop = torch.where(torch.rand(count, device=device) < 0.15, 0, crop)
        first = (crop + CROP - CONTEXT).clamp(min=0)
        frame = first[:, None] + torch.arange(CONTEXT, device=device)
        codes = self.codes[start[:, None] + torch.minimum(frame, length[:, None] - 1)].long().transpose(1, 2)
        at = (start + crop)[:, None] * FRAME + torch.arange(CROP * FRAME, device=device)
        judged = (
            torch.arange(CROP * FRAME, device=device)[None]
            >= torch.where(crop == 0, 0, COLD * FRAME)[:, None]
        )
        return codes, crop - first, self.samples[at].float() / 32768, judged


def crop_latents(latents: Tensor, begin: Tensor) -> Tensor:
    """The crop's part of [batch, latent, CONTEXT * 4], each row from its own frame."""
    at = begin[:, None] * 4 + torch.arange(CROP * 4, device=latents.device)
    return latents.gather(2, at[:, None].expand(-1, latents.shape[1], -1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path)
    parser.add_argument("quantizer", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many, whatever the time")
    parser.add_argument("--batch", type=int, default=32, help="crops of 1.92 s in a step")
    parser.add_argument(
        "--critics", type=float, default=0.25, help="share of the time before the critics join"
    )
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--hours", type=float, default=12, help="speech held on the device")
    parser.add_argument(
        "--wait-hours", type=float, default=0.5, help="speech to wait for before the first step"
    )
    parser.add_argument("--start", type=Path, help="a codec.pt whose weights to begin with")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--size", type=json.loads, default={}, help="widths as JSON, for a try in small")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    args.run.mkdir(parents=True, exist_ok=True)
    quantizer = Quantizer.load(args.quantizer)
    pool = Pool(args.speech, quantizer, device, args.hours)
    pool.refresh(args.wait_hours)

    decoder, critics = Decoder(DecoderSize(**args.size)).to(device), Critics().to(device)
    if args.start is None:
        decoder.start_from(quantizer)
    else:
        decoder.load_state_dict({k: v.float() for k, v in torch.load(args.start)["average"].items()})
    average, on_gpu = Average(decoder, 0.998), device == "cuda"
    maker, judge = (
        torch.optim.AdamW(
            model.parameters(), torch.tensor(0.0, device=device), (0.8, 0.98), fused=on_gpu, capturable=on_gpu
        )
        for model in (decoder, critics)
    )
    parts = {"decoder": decoder, "critics": critics, "average": average.model, "maker": maker, "judge": judge}
    done = Progress(args.run / "codec.pt", parts, device, args.minutes)

    def save() -> None:
        done.save(size=vars(decoder.size), used=quantizer.used)

    def make(codes: Tensor, begin: Tensor, real: Tensor, judged: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = decoder.sound(crop_latents(decoder.latents(codes), begin)) * judged
        real = real * judged
        return made, real, spectral_distance(made, real)

    def improve(loss: Tensor) -> None:
        maker.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        maker.step()
        average.update()

    def alone(*batch: Tensor) -> tuple[Tensor, ...]:
        _, _, distance = make(*batch)
        improve(distance)
        return distance.detach(), torch.zeros_like(distance)

    def judged_too(weight: Tensor, *batch: Tensor) -> tuple[Tensor, ...]:
        made, real, distance = make(*batch)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            judging = critics_loss(critics(real), critics(made.detach()))
        judge.zero_grad(set_to_none=True)
        judging.backward()
        judge.step()
        critics.requires_grad_(False)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            verdict, layers = deception_loss(critics(real), critics(made))
        critics.requires_grad_(True)
        improve(distance + weight * (0.1 * verdict + 0.25 * layers))
        return distance.detach(), verdict.detach()

    first = Recorder(alone, [maker], args.graphs and on_gpu)
    then = Recorder(judged_too, [maker, judge], args.graphs and on_gpu)
    while done.step < args.steps and (share := done.share) < 1:
        rate = (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * share))) * min(1, (done.step + 1) / 200)
        set_rate(maker, args.rate * rate)
        set_rate(judge, args.rate / 2 * rate)
        batch = pool.batch(args.batch)
        if share < args.critics:
            distance, verdict = first(*batch)
        else:
            ramp = min(1.0, (share - args.critics) / 0.05)
            distance, verdict = then(torch.tensor(ramp, device=device), *batch)
        done.step += 1
        if done.step % 100 == 0 or done.step == 1:
            print(
                f"step {done.step} {done.seconds:.0f} s spectral {distance:.4f} critics {verdict:.3f} "
                f"rate {rate:.3f}",
                flush=True,
            )
        if done.look():
            pool.refresh()
            save()
    save()
    print(f"{done.step} steps, {len(pool.codes) / FRAMES_AN_HOUR:.1f} h of speech on the device", flush=True)


if __name__ == "__main__":
    main()
