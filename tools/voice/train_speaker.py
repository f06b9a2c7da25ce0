"""Train the speaker encoder: python -m tools.voice.train_speaker CROWD/ RUN/ --minutes 2

It learns to hear a voice's traits (voices.py) in crops of 2 to 8 s. One voice in twenty is kept to validate with.
RUN/speaker.pt is written every minute; a second call resumes it.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .encoder_data import Streams, changed
from .encoder_loop import arguments, prepare, train
from .speaker import SpeakerEncoder, SpeakerSize
from .voices import ENGINES, PRESETS, everyone

LENGTHS = (25, 38, 63, 100)
"""frames of a crop"""


def main() -> None:
    parser = arguments(__doc__ or "", minutes=2, rate=3e-3)
    parser.add_argument("run", type=Path)
    parser.add_argument("--frames", type=int, default=4000, help="frames of 80 ms in a step")
    args = parser.parse_args()
    device = prepare(args.seed)
    streams = Streams(args.speech, device, args.hours, args.wait_hours)
    everybody = everyone(max(0, int(streams.voices.max()) + 1 - len(PRESETS)))
    traits = torch.from_numpy(np.stack([voice.traits for voice in everybody])).to(device)
    voices = torch.from_numpy(streams.voices).to(device)
    places = [(frames, *map(torch.from_numpy, streams.spans(frames))) for frames in LENGTHS]
    places = [(n, trained.to(device), held.to(device)) for n, trained, held in places if len(trained)]
    encoder = SpeakerEncoder(SpeakerSize(**args.size)).to(device)

    def draw(step: int) -> tuple[Tensor, ...]:
        frames, trained, _ = places[step % len(places)]
        chosen = trained[torch.randint(len(trained), (max(1, args.frames // frames),), device=device)]
        return streams.crops(chosen, frames), traits[voices[chosen]]

    def losses(samples: Tensor, wanted: Tensor) -> tuple[Tensor]:
        return ((encoder(changed(samples)) - wanted).square().mean(),)

    @torch.no_grad()
    def validate(model: nn.Module) -> None:
        for frames, _, held in places:
            at = held[:: max(1, len(held) // 400)]
            if not len(at):
                continue
            found = torch.cat([model(streams.crops(part, frames)) for part in at.split(50)])
            off = (found - traits[voices[at]]).square().mean(0).sqrt().view(len(ENGINES), -1)
            told = "; ".join(" ".join(f"{value:.3f}" for value in row) for row in off.tolist())
            print(f"held out, {frames * 0.08:.0f} s: traits off by {told}", flush=True)

    train(args, encoder, args.run / "speaker.pt", draw, losses, validate)


if __name__ == "__main__":
    main()
