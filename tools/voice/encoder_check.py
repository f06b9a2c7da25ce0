"""Measure both encoders on strangers: python -m tools.voice.encoder_check RUN/ CHECKPOINT/ --whisper DIR_OR_NAME

Strangers are random voices that no training has heard (likeness.py). Their sentences go through the encoder and the
decoder of CHECKPOINT and are heard by a recogniser (evaluate.py). Of the traits heard in one half of a stranger's
sentences, the nearest should be those heard in the other half.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .encoder_export import load_encoder, load_speaker
from .evaluate import SENTENCES, Listener
from .features import FRAME
from .flite import Flite
from .generate import Speaker
from .likeness import Reference, references
from .measure import pitch
from .voices import TRAITS

Sound = NDArray[np.float32]


def _percent(counts: tuple[int, int]) -> str:
    return f"{100 * counts[0] / max(1, counts[1]):.1f} %"


def _own_is_nearest(one: Sound, other: Sound) -> float:
    """Share of the pairs in which a row of `one` is nearer to its own in `other` than to another stranger's."""
    distance = np.linalg.norm(one[:, None] - other[None], axis=2)
    nearer = distance.diagonal()[:, None] < distance
    return float(nearer.sum() / (len(one) * (len(one) - 1)))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--strangers", type=int, default=20)
    parser.add_argument("--whisper", default="tiny.en", help="a faster-whisper model's name or folder")
    parser.add_argument("--show", action="store_true", help="print what was misheard")
    args = parser.parse_args()
    encoder, speaker = load_encoder(args.run), load_speaker(args.run, np.eye(TRAITS, dtype=np.float32))
    decoder, listener = Speaker(args.checkpoint).decoder, Listener(args.whisper)
    found = references(Flite(), SENTENCES, args.strangers)

    def again(reference: Reference) -> Sound:
        whole = np.pad(reference.samples, (0, -len(reference.samples) % FRAME))
        codes = encoder.codes(torch.from_numpy(whole)[None])
        return decoder(codes.transpose(1, 2))[0].numpy()

    resynthesised = [again(reference) for reference in found]
    plain = [(reference.said, reference.samples) for reference in found]
    coded = [(reference.said, sound) for reference, sound in zip(found, resynthesised, strict=True)]
    print(f"words wrong: engines {_percent(listener.rate(plain, False))}", flush=True)
    print(f"words wrong: encoder and decoder {_percent(listener.rate(coded, args.show))}", flush=True)
    heard = np.array(
        [
            [pitch(reference.samples), pitch(sound)]
            for (reference, (_, sound)) in zip(found, coded, strict=True)
        ]
    )
    print(
        f"pitch off by {np.median(np.abs(12 * np.log2(heard[:, 1] / heard[:, 0]))):.2f} semitones", flush=True
    )
    halves = [np.array_split(reference.samples, 2) for reference in found]
    rows = [
        np.stack([speaker(torch.from_numpy(half[i])[None])[0].numpy() for half in halves]) for i in (0, 1)
    ]
    true = np.stack([reference.voice.traits for reference in found])
    off = np.sqrt(((rows[0] - true) ** 2).mean(0)).reshape(-1, 4).mean(0)
    print(f"own half is nearer in {100 * _own_is_nearest(*rows):.1f} % of the pairs")
    print(f"traits (engine, size, pitch, slowness) off by {' '.join(f'{value:.3f}' for value in off)}")


if __name__ == "__main__":
    main()
