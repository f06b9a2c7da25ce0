"""The folder that both sides load: the EOS id lies outside the vocabulary, so every run has the same frames.

Run as a module it writes random weights of released dimensions: `python -m …checkpoint SIZE DTYPE FOLDER [KIND]`.
"""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...configs.models import EMBEDDED, find

if TYPE_CHECKING:
    from ..speech.qwen3.config import ModelConfig, SpeechTokenizerConfig

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
SPECIAL = ("im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id")


def endless(source: Path, folder: Path) -> None:
    """Links to the checkpoint `source` in `folder`, with a config in which speech never ends."""
    for file in source.rglob("*"):
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            target.symlink_to(file.resolve())
    config = folder / "config.json"
    changed = _unending(msgspec.json.decode(config.read_bytes()))
    config.unlink()
    config.write_bytes(msgspec.json.encode(changed))


def voice(folder: Path) -> str | None:
    """The checkpoint's first preset voice, None where it has none."""
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    return min(config["talker_config"].get("spk_id") or {}, default=None)


def write_random(
    folder: Path, config: "ModelConfig", codec_config: "SpeechTokenizerConfig", dtype: str
) -> None:
    """A whole checkpoint of random tensors, as an MLX converter would write it; the codec is fp32 as released.

    `dtype` is bf16, 8bit or 4bit. The tokenizer, and so the ids of its special tokens, are the embedded voice's.
    """
    import mlx.core as mx

    from ..speech.qwen3.checkpoint import QUANTISED
    from ..speech.qwen3.config import GenerationConfig
    from ..speech.qwen3.model import Qwen3TTS
    from ..speech.qwen3.tokenizer import ByteTokenizer
    from .recording import Recording

    embedded = find(EMBEDDED)
    form = QUANTISED.get(dtype)
    described = msgspec.to_builtins(config)
    words = msgspec.json.decode((embedded / "config.json").read_bytes())
    described.update({key: words[key] for key in SPECIAL})
    described["quantization"] = form._asdict() if form else None
    weights, codec = Recording(mx.bfloat16), Recording(mx.float32)
    made = Qwen3TTS(config, codec_config, GenerationConfig(), ByteTokenizer(), weights, codec)
    if made.kind == "base":
        made.add_encoders(codec_config, weights, codec)
    (folder / "speech_tokenizer").mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights.tensors(form))
    mx.save_safetensors(str(folder / "speech_tokenizer" / "model.safetensors"), codec.tensors())
    for name in TOKENIZER:
        shutil.copyfile(embedded / name, folder / name)
    for name, content in (
        ("config.json", _unending(described)),
        ("generation_config.json", msgspec.to_builtins(GenerationConfig())),
        ("speech_tokenizer/config.json", msgspec.to_builtins(codec_config)),
    ):
        (folder / name).write_bytes(msgspec.json.encode(_without_nulls(content)))


def _without_nulls(config: dict[str, Any]) -> dict[str, Any]:
    """`config` without its nulls, at any depth: mlx-audio takes a key that is there for one that has a value."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value is not None
    }


def _unending(config: dict[str, Any]) -> dict[str, Any]:
    talker = config["talker_config"]
    return {**config, "talker_config": {**talker, "codec_eos_token_id": talker["vocab_size"]}}


def _of_kind(
    config: "ModelConfig", codec_config: "SpeechTokenizerConfig", kind: str = "custom_voice"
) -> "tuple[ModelConfig, SpeechTokenizerConfig]":
    """The configs of another member of the family, of the same dimensions."""
    from ..speech.qwen3.config import EncoderConfig, SpeakerConfig

    if kind == "custom_voice":
        return config, codec_config
    replace = msgspec.structs.replace
    talker = replace(config.talker_config, spk_id={}, spk_is_dialect={})
    speaker = SpeakerConfig(enc_dim=talker.hidden_size)
    made = replace(config, tts_model_type=kind, talker_config=talker, speaker_encoder_config=speaker)
    return made, replace(codec_config, encoder_config=EncoderConfig()) if kind == "base" else codec_config


if __name__ == "__main__":
    from ..speech.qwen3.config import released

    write_random(Path(sys.argv[3]), *_of_kind(*released(sys.argv[1]), *sys.argv[4:]), sys.argv[2])
