"""Vectors of the codec decoder."""

import numpy as np
import torch
from official import Qwen3TTSModel

FRAMES, FRAME = 200, 1920


def codec(tts: Qwen3TTSModel, seed: int) -> dict[str, np.ndarray]:
    """Audio of 200 random frames, decoded whole (the official pieces begin at 301 frames).

    Stored are every 7th sample (7 and 1920 share no factor, so every phase of a frame is met), three stretches in
    full, and the level of every frame.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2048, (FRAMES, 16))
    codes[5] = 0
    codes[80:83, 0] = 0
    (pcm,), _rate = tts.model.speech_tokenizer.decode([{"audio_codes": torch.from_numpy(codes)}])
    return {
        "codes": codes.astype(np.int16),
        "pcm_every_7": pcm[::7],
        "pcm_0_4": pcm[: 4 * FRAME],
        "pcm_70_78": pcm[70 * FRAME : 78 * FRAME],
        "pcm_196_200": pcm[196 * FRAME :],
        "rms": np.sqrt((pcm.reshape(FRAMES, FRAME).astype(np.float64) ** 2).mean(axis=1)).astype(np.float32),
    }
