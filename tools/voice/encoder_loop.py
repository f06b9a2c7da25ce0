"""The training loop that both encoders share: seeded, resumable, on a GPU recorded and replayed (recorder.py)."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from .average import Average
from .progress import Progress
from .recorder import Recorder, set_rate


def arguments(description: str, minutes: float, rate: float) -> argparse.ArgumentParser:
    """What both commands take."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("speech", type=Path, nargs="+", help="folders of shards with samples")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--steps", type=int, default=10**9, help="stop after so many, whatever the time")
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--hours", type=float, default=12, help="speech held on the device")
    parser.add_argument("--wait-hours", type=float, default=0, help="speech to wait for, while synth runs")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--size", type=json.loads, default={}, help="widths as JSON, for a try in small")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def prepare(seed: int) -> str:
    """Seed everything; the name of the device."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(
    args: argparse.Namespace,
    model: nn.Module,
    saved: Path,
    draw: Callable[[int], tuple[Tensor, ...]],
    losses: Callable[..., tuple[Tensor, ...]],
    validate: Callable[[nn.Module], None],
) -> None:
    """Train until the time is over; `saved` holds all to go on from, and the averaged weights.

    :param draw: the batch of a step.
    :param losses: of the model on such a batch: the one to make small, and others to show.
    :param validate: told of the averaged model every minute and at the end.
    """
    device, on_gpu = next(model.parameters()).device, torch.cuda.is_available()
    average = Average(model, 0.998)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        torch.tensor(0.0, device=device),
        (0.9, 0.98),
        weight_decay=0.01,
        fused=on_gpu,
        capturable=on_gpu,
    )
    parts = {"model": model, "average": average.model, "optimizer": optimizer}
    done = Progress(saved, parts, device, args.minutes)

    def save() -> None:
        done.save(size=vars(model.size))
        validate(average.model)

    def improve(*batch: Tensor) -> tuple[Tensor, ...]:
        found = losses(*batch)
        optimizer.zero_grad(set_to_none=True)
        found[0].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update()
        return tuple(value.detach() for value in found)

    run = Recorder(improve, [optimizer], args.graphs and on_gpu)
    while done.step < args.steps and (share := done.share) < 1:
        rate = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share))
        set_rate(optimizer, args.rate * rate * min(1, (done.step + 1) / 300))
        found = run(*draw(done.step))
        done.step += 1
        if done.step % 200 == 0 or done.step == 1:
            told = " ".join(f"{float(value):.4f}" for value in found)
            print(f"step {done.step} {done.seconds:.0f} s losses {told}", flush=True)
        if done.look():
            save()
    save()
    print(f"{done.step} steps", flush=True)
