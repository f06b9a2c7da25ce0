"""Vectors of the Base model: speaker encoder, codec encoder, clone prompts and clone generations."""

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cases import CLONES, Clone
from official import (
    MimiEuclideanCodebook,
    Qwen3TTSModel,
    mel_spectrogram,
    windowed_encoder,
    without_talker,
)
from speech import Arrays, recorded

RATE = 24000
CLIPS = {"one": 24000, "odd": 50001, "three": 72000, "twelve": 288000}


def clip() -> np.ndarray:
    """Twelve seconds of a gliding, pulsing harmonic tone with noise and a pause, int16."""
    rng = np.random.default_rng(41)
    time = np.arange(CLIPS["twelve"]) / RATE
    phase = (
        2
        * np.pi
        * np.cumsum(140 + 40 * np.sin(2 * np.pi * 0.35 * time) + 8 * np.sin(2 * np.pi * 3 * time))
        / RATE
    )
    tone = sum(np.sin(k * phase + k) / k for k in range(1, 25))
    level = 0.5 + 0.5 * np.sin(2 * np.pi * 1.7 * time)
    level[int(1.6 * RATE) : int(1.8 * RATE)] = 0.0
    noise = rng.standard_normal(len(time)) * (0.05 + 0.2 * (np.sin(2 * np.pi * 0.9 * time) > 0.7))
    return np.round(4000 * (level * tone + noise)).clip(-32768, 32767).astype(np.int16)


def heard(samples: int) -> np.ndarray:
    """The first samples of the clip as the official code gets them."""
    return clip()[:samples].astype(np.float32) / 32768


def encoders(tts: Qwen3TTSModel) -> Arrays:
    """Mel frames, speaker embeddings and codes of the clip's beginnings."""
    arrays: Arrays = {"clip": clip()}
    tokens = tts.model.speech_tokenizer
    for name, samples in CLIPS.items():
        audio = heard(samples)
        mel = mel_spectrogram(torch.from_numpy(audio)[None], 1024, 128, RATE, 256, 1024, 0, 12000)[0].T
        arrays[f"{name}.mel"] = mel[:: 1 if name == "one" else 16].numpy()
        arrays[f"{name}.speaker"] = tts.model.extract_speaker_embedding(audio, RATE).numpy()
        rows, codes, gaps = encoded(tts, audio)
        arrays |= {f"{name}.codes": codes, f"{name}.rows": rows, f"{name}.margins": gaps}
    with windowed_encoder():
        arrays["twelve.windowed_codes"] = (
            tokens.encode(heard(CLIPS["twelve"]), sr=RATE).audio_codes[0].numpy()
        )
    return {
        key: value.astype(np.int16) if value.dtype == np.int64 else value for key, value in arrays.items()
    }


def embedded_encoders(tts: Qwen3TTSModel) -> Arrays:
    """Speaker embedding, rows and codes of three seconds, for encoders that were trained."""
    audio = heard(CLIPS["three"])
    rows, codes, _ = encoded(tts, audio)
    speaker = tts.model.extract_speaker_embedding(audio, RATE).float().numpy()
    return {"three.speaker": speaker, "three.rows": rows, "three.codes": codes.astype(np.int16)}


def encoded(tts: Qwen3TTSModel, audio: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows before quantization [T, D], the codes [T, 16], and for each code how much further the second best is."""
    rows: list[torch.Tensor] = []
    gaps: list[torch.Tensor] = []
    downsample = tts.model.speech_tokenizer.model.encoder.downsample
    nearest = MimiEuclideanCodebook.quantize

    def watched(codebook: MimiEuclideanCodebook, states: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(states.double(), codebook.embed.double()).topk(2, largest=False).values
        gaps.append(near[:, 1] - near[:, 0])
        return nearest(codebook, states)

    hook = downsample.register_forward_hook(lambda _module, _inputs, out: rows.append(out[0].T))
    with patch.object(MimiEuclideanCodebook, "quantize", watched):
        codes = tts.model.speech_tokenizer.encode(audio, sr=RATE).audio_codes[0].numpy()
    hook.remove()
    return rows[0].numpy(), codes, torch.stack(gaps[:16], dim=1).numpy().astype(np.float32)


def request(tts: Qwen3TTSModel, case: Clone, **settings: Any) -> Any:
    """The official call for a case, as a thunk."""
    return lambda: tts.generate_voice_clone(
        text=case.text,
        language=case.language,
        ref_audio=(heard(CLIPS[case.clip]), RATE),
        ref_text=case.ref_text,
        x_vector_only_mode=case.ref_text is None,
        non_streaming_mode=case.full_text,
        **settings,
    )


def prompts(tts: Qwen3TTSModel) -> tuple[Arrays, dict[str, Any]]:
    """The embeddings that the talker is given for every way to clone."""
    arrays: Arrays = {}
    for name, case in CLONES.items():
        seen = without_talker(tts, request(tts, case))
        arrays[f"{name}.ids"] = tts._tokenize_texts([tts._build_assistant_text(case.text)])[0][0].numpy()
        if case.ref_text is not None:
            arrays[f"{name}.ref_ids"] = tts._tokenize_texts([tts._build_ref_text(case.ref_text)])[0][
                0
            ].numpy()
        arrays[f"{name}.embeds"] = seen["inputs_embeds"][0].numpy()
        arrays[f"{name}.trailing"] = seen["trailing_text_hidden"][0].numpy()
        arrays["pad"] = seen["tts_pad_embed"][0, 0].numpy()
    return arrays, {name: case._asdict() for name, case in CLONES.items()}


def generations(tts: Qwen3TTSModel, frames: int = 30) -> Arrays:
    """Greedy clones; the audio is what the official code keeps after the reference is cut off."""
    arrays: Arrays = {}
    for name, case in CLONES.items():
        if case.greedy:
            found = recorded(tts, lambda **settings: request(tts, case, **settings)(), frames)  # noqa: B023
            arrays |= {f"{name}.{part}": value for part, value in found.items()}
    return arrays
