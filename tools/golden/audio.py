"""Vectors of the codec decoder."""

import copy

import numpy as np
import torch
from official import Qwen3TTSModel

FRAMES, FRAME = 200, 1920


def codec(tts: Qwen3TTSModel, seed: int) -> dict[str, np.ndarray]:
    """Audio of 200 random frames, decoded whole (the official pieces begin at 301 frames).

    Stored are every 7th sample (7 and 1920 share no factor, so every phase of a frame is met), three stretches in
    full, the level of every frame, and how far float32 is from float64 here: no comparison can be closer.
    """
    rng = np.random.default_rng(seed)
    size = tts.model.speech_tokenizer.model.config.decoder_config.codebook_size
    codes = rng.integers(0, size, (FRAMES, 16))
    codes[5] = 0
    codes[80:83, 0] = 0
    (pcm,), _rate = tts.model.speech_tokenizer.decode([{"audio_codes": torch.from_numpy(codes)}])
    exact = copy.deepcopy(tts.model.speech_tokenizer.model.decoder).double()
    with torch.no_grad():
        rounding = np.abs(exact(torch.from_numpy(codes.T[None]))[0, 0].numpy() - pcm).max()
    return {
        "codes": codes.astype(np.int16),
        "pcm_every_7": pcm[::7],
        "pcm_0_4": pcm[: 4 * FRAME],
        "pcm_70_78": pcm[70 * FRAME : 78 * FRAME],
        "pcm_196_200": pcm[196 * FRAME :],
        "rms": np.sqrt((pcm.reshape(FRAMES, FRAME).astype(np.float64) ** 2).mean(axis=1)).astype(np.float32),
        "rounding": np.float32(rounding),
    }
