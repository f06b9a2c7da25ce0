"""Answers what nobody asked, so that the first who asks does not wait for libraries and kernels."""

import msgspec

from ...bus.messages import Sampling
from .conversation import plain
from .engine import Engine, EngineOptions
from .events import Request
from .model import ChatModel

LENGTHS = (8, 254, 264)
"""Of prompts, in tokens: from 256 positions on, which the second answer passes, MLX attends by cuDNN on CUDA."""
ANSWER = 4


def warm_up(model: ChatModel, options: EngineOptions, draft: ChatModel | None = None) -> None:
    """Read prompts and decode answers as an engine does, alone and in a batch; nothing of it is kept."""
    engine = Engine(model, msgspec.structs.replace(options, cache_bytes=0), draft)
    for seed in (None, 0):
        for length in LENGTHS:
            composed = plain(model, [0] * min(length, model.context - ANSWER))
            engine.submit(
                Request(
                    id=f"warm-up {seed} {length}",
                    prompt=composed.prompt,
                    style=composed.style,
                    max_tokens=ANSWER,
                    sampling=Sampling(seed=seed),
                )
            )
    while engine.busy:
        engine.step()
