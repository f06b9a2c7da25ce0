"""Train the codec's encoder: python -m tools.voice.train_encoder CROWD/ quantizer.npz RUN/ --minutes 6

It learns what the quantizer looks up, not the codes' way back to sound: for group 0 which entry is nearest when the
speaker's mean has been taken off, for the later groups the pitch and what is left behind the entry that it chose
itself. One voice in twenty is kept to validate with. RUN/encoder.pt is written every minute; a second call resumes.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .encoder import PITCH, Encoder, EncoderSize, closeness, pitch_points, scale_of
from .encoder_data import Streams, changed
from .encoder_loop import arguments, prepare, train
from .quantizer import Quantizer

SHARPNESS = 8.0
"""of the choice of group 0: half a squared distance is multiplied by it"""
RESIDUAL, PITCHES = 3.0, 1.0
"""weights of the later groups' losses beside group 0's"""


class Wanted:
    """What the encoder should say of each frame."""

    def __init__(self, streams: Streams, quantizer: Quantizer, size: EncoderSize, device: str) -> None:
        self.quantizer, self.vectors = quantizer, streams.vectors(quantizer)
        self.codes = quantizer.encode(
            streams.envelope, streams.voicing, streams.pitch, streams.voices, device
        )
        spectrum = self.vectors[:, : size.table - PITCH] / scale_of(quantizer)
        points = np.concatenate([pitch_points(*streams.pitches()), spectrum], 1, dtype=np.float32)
        self.first = torch.from_numpy(self.codes[:, 0]).to(device)
        self.points = torch.from_numpy(points).to(device)

    def compare(self, codes: NDArray[np.int16], places: NDArray[np.int64]) -> str:
        """How an encoder's codes [crops, frames, GROUPS] differ from the quantizer's."""
        at = (places[:, None] + np.arange(codes.shape[1])).flatten()
        mine, true, quantizer = codes.reshape(len(at), -1), self.codes[at], self.quantizer
        power = float(self.vectors[at].var(0).sum())

        def left(found: NDArray[np.int16]) -> float:
            return float(((quantizer.vectors(found) - self.vectors[at]) ** 2).sum(1).mean()) / power

        both = (mine[:, 1] > 0) & (true[:, 1] > 0)
        octaves = np.abs(quantizer.pitch[mine[both, 1], 0] - quantizer.pitch[true[both, 1], 0])
        agreement = " ".join(f"{share:.2f}" for share in (mine == true).mean(0)[: quantizer.used])
        return (
            f"agreement {agreement}; of the variance left {left(mine):.4f}, by the quantizer {left(true):.4f}; "
            f"voicing wrong {((mine[:, 1] > 0) != (true[:, 1] > 0)).mean():.3f}, "
            f"pitch off {1200 * np.median(octaves) if len(octaves) else 0:.0f} cents"
        )


def losses(encoder: Encoder, samples: Tensor, first: Tensor, points: Tensor) -> tuple[Tensor, ...]:
    """Their sum, the cross entropy of group 0, and squared errors of the pitch and of what group 0 leaves."""
    semantic, acoustic = encoder(samples)
    table = encoder.first.tables[0]  # pyright: ignore
    logits = SHARPNESS * closeness(semantic, table)
    chosen = table[logits.detach().argmax(-1)][..., : points.shape[-1] - PITCH]
    choice = functional.cross_entropy(logits.flatten(0, 1), first.flatten())
    pitch = (acoustic - points)[..., :PITCH].square().sum(-1).mean()
    left = (acoustic[..., PITCH:] - (points[..., PITCH:] - chosen)).square().sum(-1).mean()
    return choice + PITCHES * pitch + RESIDUAL * left, choice, pitch, left


@torch.no_grad()
def heard(
    encoder: nn.Module, streams: Streams, places: NDArray[np.int64], frames: int, device: str
) -> NDArray[np.int16]:
    """[crops, frames, GROUPS] codes of unchanged sound."""
    parts = torch.from_numpy(places).to(device).split(8)
    codes = [encoder.codes(streams.crops(part, frames)) for part in parts]  # pyright: ignore
    return torch.cat(codes).cpu().numpy().astype(np.int16)


def main() -> None:
    parser = arguments(__doc__ or "", minutes=6, rate=3e-3)
    parser.add_argument("quantizer", type=Path, help="with the means of all voices in the speech")
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=24, help="crops in a step")
    parser.add_argument("--frames", type=int, default=160, help="frames of 80 ms in a crop")
    args = parser.parse_args()
    device = prepare(args.seed)
    quantizer, size = Quantizer.load(args.quantizer), EncoderSize(**args.size)
    streams = Streams(args.speech, device, args.hours, args.wait_hours)
    wanted = Wanted(streams, quantizer, size, device)
    trained, held_out = streams.spans(args.frames)
    held_out = held_out[:: max(1, len(held_out) // 64)][:64]
    places = torch.from_numpy(trained).to(device)
    encoder = Encoder(size).to(device)
    encoder.take_tables(quantizer)

    def draw(step: int) -> tuple[Tensor, ...]:
        chosen = places[torch.randint(len(places), (args.batch,), device=device)]
        at = chosen[:, None] + torch.arange(args.frames, device=device)
        return streams.crops(chosen, args.frames), wanted.first[at].long(), wanted.points[at]

    def validate(model: nn.Module) -> None:
        if len(held_out):
            codes = heard(model, streams, held_out, args.frames, device)
            print(f"held out: {wanted.compare(codes, held_out)}", flush=True)

    train(
        args,
        encoder,
        args.run / "encoder.pt",
        draw,
        lambda samples, *rest: losses(encoder, changed(samples), *rest),
        validate,
    )


if __name__ == "__main__":
    main()
