"""Find the codec's tables, and the codes of speech by them.

python -m tools.voice.quantize fit SPEECH/ quantizer.npz
python -m tools.voice.quantize crowd CROWD/ quantizer.npz             add the means of a crowd's voices
python -m tools.voice.quantize encode SPEECH/ quantizer.npz CODES.npz --more CROWD/
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .quantizer import DIMS, FIRST, REST, Quantizer, nearest, pitch_vectors, raw_vectors
from .shards import FRAMES_AN_HOUR, Shard, read
from .voices import ENGINES, PRESETS, everyone


def k_means(points: Tensor, count: int, rounds: int, generator: torch.Generator) -> Tensor:
    """[count, dims] centroids; an empty one is put on a random point."""
    pick = torch.randperm(len(points), generator=generator)[:count].to(points.device)
    centroids = points[pick].clone()
    for _ in range(rounds):
        index = nearest(points, centroids)
        size = torch.bincount(index, minlength=count)
        total = torch.zeros_like(centroids).index_add_(0, index, points)
        centroids = total / size.clamp(min=1)[:, None]
        empty = (size == 0).nonzero()[:, 0]
        if len(empty):
            spare = torch.randint(len(points), (len(empty),), generator=generator).to(points.device)
            centroids[empty] = points[spare]
    return centroids


def fit(shards: list[Shard], used: int, seed: int, device: str, rounds: int = 25) -> Quantizer:
    """Find all tables from some hours of speech."""
    generator = torch.Generator().manual_seed(seed)
    raw = np.concatenate([raw_vectors(s.envelope, s.voicing) for s in shards])
    voices = torch.from_numpy(np.concatenate([s.voices for s in shards])).long().to(device)
    mean = raw.mean(0)
    _, basis = np.linalg.eigh(np.cov((raw - mean).T))
    basis = np.ascontiguousarray(basis[:, ::-1][:, :DIMS], np.float32)
    vectors = torch.from_numpy((raw - mean) @ basis).to(device)
    size = torch.bincount(voices, minlength=len(PRESETS)).clamp(min=1)
    speakers = torch.zeros(len(PRESETS), DIMS, device=device).index_add_(0, voices, vectors) / size[:, None]
    neutral = vectors - speakers[voices]
    first = torch.cat([torch.zeros(1, DIMS, device=device), k_means(neutral, FIRST - 1, rounds, generator)])
    left = vectors - first[nearest(neutral, first[1:]) + 1]
    power = float(vectors.var(0).sum())
    rest: list[NDArray[np.float32]] = []
    for group in range(2, used):
        table = k_means(left, REST, rounds, generator)
        left = left - table[nearest(left, table)]
        print(f"group {group}: {float((left**2).sum(1).mean()) / power:.4f} of the variance left", flush=True)
        rest.append(table.cpu().numpy())
    points = np.concatenate([p[v] for p, v in (pitch_vectors(s.pitch) for s in shards)])
    pitch = k_means(torch.from_numpy(points), REST - 1, rounds, generator).numpy()
    pitch = np.concatenate([np.zeros((1, 2), np.float32), pitch])
    return Quantizer(mean, basis, speakers.cpu().numpy(), first.cpu().numpy(), pitch, np.stack(rest))


def add_crowd(quantizer: Quantizer, shards: list[Shard]) -> None:
    """Give the voices of a crowd their means.

    Each says too little for a mean of its own that would not depend on what it says: for each engine the mean is a
    quadratic function of the traits, found by least squares over all that it said.
    """
    voices = everyone(max(int(shard.voice.max()) for shard in shards) + 1 - len(PRESETS))
    count, total = np.zeros(len(voices)), np.zeros((len(voices), DIMS))
    for shard in shards:
        vectors = (raw_vectors(shard.envelope, shard.voicing) - quantizer.mean) @ quantizer.basis
        np.add.at(total, shard.voices, vectors)
        count += np.bincount(shard.voices, minlength=len(voices))
    means = np.zeros_like(total)
    traits = np.stack([voice.traits.reshape(len(ENGINES), -1) for voice in voices]).astype(float)
    for number, name in enumerate(ENGINES):
        mine = np.array([voice.engine == name for voice in voices])
        own = traits[mine, number]
        first, second = np.triu_indices(own.shape[1])
        products = own[:, first] * own[:, second]
        weight = np.sqrt(count[mine, None])
        spoken = total[mine] / np.maximum(count[mine, None], 1)
        means[mine] = products @ np.linalg.lstsq(products * weight, spoken * weight, rcond=None)[0]
    crowd = means[len(PRESETS) :].astype(np.float32)
    quantizer.speakers = np.concatenate([quantizer.speakers[: len(PRESETS)], crowd])


def encode_all(folders: list[Path], quantizer: Quantizer, out: Path, device: str) -> None:
    """Codes, phones and lengths of all finished shards, in one file for the talker."""
    parts: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("codes", "phones", "frames", "text", "voice")
    }
    for shard in (shard for folder in folders for shard in read(folder)):
        parts["codes"].append(quantizer.encode_shard(shard, device)[:, : quantizer.used])
        for name in ("phones", "frames", "text", "voice"):
            parts[name].append(getattr(shard, name))
    arrays = {name: np.concatenate(part) for name, part in parts.items()}
    codes = arrays.pop("codes")
    # Bytes as planes compress to what the codes are worth.
    planes = {"first": codes[:, 0], "later": np.ascontiguousarray(codes[:, 1:].T.astype(np.uint8))}
    np.savez_compressed(out, **arrays, **planes)
    print(f"{len(codes) / FRAMES_AN_HOUR:.1f} h, {len(arrays['frames'])} utterances in {out}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("fit", "crowd", "encode"))
    parser.add_argument("speech", type=Path)
    parser.add_argument("quantizer", type=Path)
    parser.add_argument("codes", type=Path, nargs="?")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="more speech to encode")
    parser.add_argument("--hours", type=float, default=6, help="speech to fit on")
    parser.add_argument(
        "--wait", type=float, default=0, help="seconds to wait for that much, while synth runs"
    )
    parser.add_argument("--used", type=int, default=10, help="code groups that carry anything, of 16")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    if args.step == "fit":
        while True:
            shards = list(read(args.speech, args.hours))
            hours = sum(int(shard.frames.sum()) for shard in shards) / FRAMES_AN_HOUR
            if hours >= args.hours or time.monotonic() - began >= args.wait:
                break
            time.sleep(2)
        print(f"fitting on {hours:.1f} h", flush=True)
        fit(shards, args.used, args.seed, device).save(args.quantizer)
    elif args.step == "crowd":
        quantizer = Quantizer.load(args.quantizer)
        add_crowd(quantizer, list(read(args.speech)))
        quantizer.save(args.quantizer)
    elif args.codes is None:
        parser.error("encode needs the file to write the codes to")
    else:
        encode_all([args.speech, *args.more], Quantizer.load(args.quantizer), args.codes, device)
    print(f"{args.step}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
