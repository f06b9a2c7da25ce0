"""What config.json, speech_tokenizer/config.json and generation_config.json say, as frozen structs.

Keys that are not needed are ignored, keys that are needed have the released checkpoints' values as defaults only
where those checkpoints leave them out.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ....bus.errors import StartError
from .sampling import Sampling


class CheckpointError(StartError):
    """The checkpoint folder cannot be used; the message says what is wrong and what to do."""


class PredictorConfig(msgspec.Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int = 128
    num_code_groups: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6


class TalkerConfig(msgspec.Struct, frozen=True):
    code_predictor_config: PredictorConfig
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    text_hidden_size: int
    text_vocab_size: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_pad_id: int
    codec_bos_id: int
    head_dim: int = 128
    num_code_groups: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 32768
    codec_language_id: dict[str, int] = {}
    spk_id: dict[str, int | list[int]] = {}
    """Some converters write the id as a one-element list."""
    spk_is_dialect: dict[str, str | bool] = {}

    def speaker(self, name: str) -> int:
        row = self.spk_id[name]
        return row if isinstance(row, int) else row[0]


class SpeakerConfig(msgspec.Struct, frozen=True):
    """`speaker_encoder_config`; the released files give only `enc_dim` and `sample_rate`."""

    enc_dim: int = 1024
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = 24000


class ModelConfig(msgspec.Struct, frozen=True):
    model_type: str
    talker_config: TalkerConfig
    tts_model_type: str = "custom_voice"
    tts_model_size: str = "0b6"
    tokenizer_type: str = "qwen3_tts_tokenizer_12hz"
    im_start_token_id: int = 151644
    im_end_token_id: int = 151645
    tts_pad_token_id: int = 151671
    tts_bos_token_id: int = 151672
    tts_eos_token_id: int = 151673
    speaker_encoder_config: SpeakerConfig = SpeakerConfig()
    """Of base models; others have no speaker encoder."""
    quantization: dict[str, Any] | None = None
    """Written by MLX converters: group_size, bits, mode, and one entry per layer that differs."""

    @property
    def size(self) -> str:
        return {"0b6": "0.6B", "1b7": "1.7B"}.get(self.tts_model_size, self.tts_model_size)


class CodecConfig(msgspec.Struct, frozen=True):
    """`decoder_config` of the speech tokenizer."""

    latent_dim: int
    codebook_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    decoder_dim: int
    upsample_rates: list[int]
    upsampling_ratios: list[int]
    head_dim: int | None = None
    codebook_size: int = 2048
    num_quantizers: int = 16
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    sliding_window: int = 72

    @property
    def samples(self) -> int:
        """PCM samples of one frame."""
        total = 1
        for rate in (*self.upsample_rates, *self.upsampling_ratios):
            total *= rate
        return total

    @property
    def attention_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class EncoderConfig(msgspec.Struct, frozen=True):
    """`encoder_config` of the speech tokenizer: a Mimi model's. Defaults are the released values."""

    codebook_size: int = 2048
    compress: int = 2
    head_dim: int | None = None
    hidden_size: int = 512
    intermediate_size: int = 2048
    kernel_size: int = 7
    last_kernel_size: int = 3
    norm_eps: float = 1e-5
    num_attention_heads: int = 8
    num_filters: int = 64
    num_hidden_layers: int = 8
    residual_kernel_size: int = 3
    rope_theta: float = 10000.0
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    vector_quantization_hidden_dimension: int = 256

    @property
    def attention_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


class SpeechTokenizerConfig(msgspec.Struct, frozen=True):
    decoder_config: CodecConfig
    encoder_config: EncoderConfig | None = None
    model_type: str = "qwen3_tts_tokenizer_12hz"
    output_sample_rate: int = 24000


class GenerationConfig(msgspec.Struct, frozen=True):
    """Sampling defaults; the values are the official code's where the file leaves one out."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 2048

    @property
    def talker(self) -> Sampling:
        return Sampling(self.do_sample, self.temperature, self.top_k, self.top_p, self.repetition_penalty)

    @property
    def predictor(self) -> Sampling:
        return Sampling(
            self.subtalker_dosample,
            self.subtalker_temperature,
            self.subtalker_top_k,
            self.subtalker_top_p,
            1.0,
        )


Config = TypeVar("Config", ModelConfig, SpeechTokenizerConfig, GenerationConfig)


def read(path: Path, kind: type[Config]) -> Config:
    """Decode one JSON file of a checkpoint.

    :raises CheckpointError: the file is missing, is not JSON, or lacks or mistypes a needed key.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: the folder is not a complete Qwen3-TTS checkpoint."
        ) from None
    except (msgspec.DecodeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be used: {error}.") from error


def released(size: str) -> tuple[ModelConfig, SpeechTokenizerConfig]:
    """The dimensions of the released 0.6B and 1.7B CustomVoice checkpoints, for benchmarks without a file."""
    wide = {"0.6B": 1024, "1.7B": 2048}.get(size)
    if wide is None:
        raise ValueError(f"size is {size!r}, but only '0.6B' and '1.7B' were released.")
    predictor = PredictorConfig(1024, 3072, 5, 16, 8, 2048)
    talker = TalkerConfig(
        code_predictor_config=predictor,
        hidden_size=wide,
        intermediate_size=3 * wide,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=3072,
        text_hidden_size=2048,
        text_vocab_size=151936,
        codec_eos_token_id=2150,
        codec_think_id=2154,
        codec_nothink_id=2155,
        codec_think_bos_id=2156,
        codec_think_eos_id=2157,
        codec_pad_id=2148,
        codec_bos_id=2149,
        codec_language_id={"english": 2050, "chinese": 2055},
        spk_id={"ryan": 3061, "vivian": 3065},
        spk_is_dialect={"ryan": False, "vivian": False},
    )
    codec = CodecConfig(1024, 512, 512, 1024, 8, 16, 16, 1536, [8, 5, 4, 3], [2, 2], head_dim=64)
    model = ModelConfig("qwen3_tts", talker, "custom_voice", {"0.6B": "0b6", "1.7B": "1b7"}[size])
    return model, SpeechTokenizerConfig(codec)
