"""Random weights for the tiny checkpoints: every value from one seed, scaled so that no path is degenerate."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import torch
from official import (
    Qwen3TTSConfig,
    Qwen3TTSForConditionalGeneration,
    Qwen3TTSTokenizerV2Config,
    Qwen3TTSTokenizerV2Model,
)
from safetensors.torch import save_file
from tiny import CHECKPOINTS, GENERATION, codec

TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json", "tokenizer.json")
SEEDS = {"custom": 1, "custom06": 2, "base": 3, "design": 4}

# Standard deviations of special parameters, by the end of their name; all others follow their fan-in.
SCALES = {
    "codec_head.weight": 4.0,
    "text_embedding.weight": 1.0,
    "talker.model.codec_embedding.weight": 0.5,
    "_codebook.embedding_sum": 1.0,
}


def random_value(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """One parameter: norms and gains near one, biases small, matrices and kernels keep the variance."""
    noise = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("cluster_usage"):
        return rng.uniform(0.5, 2.0, shape).astype(np.float32)
    if name.endswith((".alpha", ".beta")):
        return 0.3 * noise
    if name.endswith(("gamma", "layer_scale.scale")):
        return 0.5 + 0.1 * noise
    if "norm" in name.rsplit(".", 2)[-2] and name.endswith("weight"):
        return (1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0) + 0.2 * noise
    if name.endswith("bias"):
        return 0.05 * noise
    if name.endswith("embed_sum"):
        return noise
    for ending, scale in SCALES.items():
        if name.endswith(ending):
            return scale * noise / (np.sqrt(shape[1]) if ending.startswith("codec_head") else 1.0)
    if ".codec_embedding." in name:
        return 0.3 * noise
    if ".lm_head." in name:
        return 3.0 * noise / np.sqrt(shape[1])
    return gain(name) * noise / np.sqrt(fan_in(name, shape))


def fan_in(name: str, shape: tuple[int, ...]) -> float:
    """Inputs summed into one output; a transposed convolution of kernel 2r and stride r sums two taps."""
    if len(shape) == 2:
        return shape[1]
    if name.startswith("decoder.decoder.") and ".block.1." in name:
        return shape[0] * 2
    if name.startswith("decoder.upsample.") and ".0.conv." in name:
        return shape[0]
    return shape[1] * shape[2]


def gain(name: str) -> float:
    """The last convolution brings the audio to about a tenth of full scale; residual branches are damped."""
    if name == "decoder.decoder.6.conv.weight":
        return 0.02
    if name.endswith(("conv2.conv.weight", "o_proj.weight", "down_proj.weight")):
        return 0.5
    return 1.0


def fill(module: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """A state dict for `module`; each tensor has a stream of its own, so that adding one changes no other."""
    state: dict[str, torch.Tensor] = {}
    for name, old in module.state_dict().items():
        if not old.is_floating_point() or name.endswith("initialized"):
            state[name] = torch.ones_like(old)
            continue
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        state[name] = torch.from_numpy(random_value(name, tuple(old.shape), rng).astype(np.float32))
        if name.endswith("codec_head.weight"):
            state[name][2150] *= 1.5  # the end token: without this none would ever be chosen
    return state


def make(name: str, folder: Path, tokenizer: Path) -> None:
    """Writes checkpoint `name` into `folder`: talker in bfloat16, codec in float32, as released."""
    config = CHECKPOINTS[name]
    kind = config["tts_model_type"]
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for file in TOKENIZER_FILES:
        if not (folder / file).exists() and (file != "tokenizer.json" or name == "custom"):
            shutil.copyfile(tokenizer / file, folder / file)
            (folder / file).chmod(0o644)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", GENERATION)
    write_json(
        folder / "preprocessor_config.json", {"padding_side": "left", "processor_class": "Qwen3TTSProcessor"}
    )
    talker = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config))
    state = {key: value.to(torch.bfloat16) for key, value in fill(talker, SEEDS[name]).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    tokens = codec(encoder=kind == "base", width=64 if name == "custom" else 32)
    write_json(folder / "speech_tokenizer" / "config.json", tokens)
    features = {
        "chunk_length_s": None,
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "overlap": None,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 24000,
    }
    write_json(folder / "speech_tokenizer" / "preprocessor_config.json", features)
    model = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**tokens))
    state = fill(model, SEEDS[name])
    if kind != "base":
        state = {key: value for key, value in state.items() if not key.startswith("encoder.")}
    save_file(state, folder / "speech_tokenizer" / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, value: object) -> None:
    """Readable JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
