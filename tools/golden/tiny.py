"""Configurations of the tiny random-weight checkpoints: the released layout and ids at toy widths."""

from typing import Any

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
TEXT_IDS = {
    "im_start_token_id": 2039,
    "im_end_token_id": 2040,
    "tts_pad_token_id": 2043,
    "tts_bos_token_id": 2044,
    "tts_eos_token_id": 2045,
}
GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 8192,
}


def transformer(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int
) -> dict[str, Any]:
    """What the talker and the code predictor have in common."""
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_code_groups": 16,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }


def talker(hidden: int, predictor_hidden: int, predictor_vocab: int, speakers: bool) -> dict[str, Any]:
    """The talker with its code predictor; 3072 first codes with the released special ids."""
    layers = 2
    predictor = transformer(predictor_hidden, 2 * predictor_hidden, layers, 4, 2, 16) | {
        "model_type": "qwen3_tts_talker_code_predictor",
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "rope_scaling": None,
        "vocab_size": predictor_vocab,
    }
    return transformer(hidden, 2 * hidden, 3, 4, 2, 32) | {
        "code_predictor_config": predictor,
        "model_type": "qwen3_tts_talker",
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_pad_id": 2148,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_language_id": LANGUAGES,
        "max_position_embeddings": 32768,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_type": "default",
            "type": "default",
        },
        "spk_id": SPEAKERS if speakers else {},
        "spk_is_dialect": {name: DIALECTS.get(name, False) for name in SPEAKERS} if speakers else {},
        "text_hidden_size": 48,
        "text_vocab_size": 2048,
        "vocab_size": 3072,
    }


def model(kind: str, size: str, talker_config: dict[str, Any]) -> dict[str, Any]:
    """`config.json` of a checkpoint."""
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size,
        "tts_model_type": kind,
        **TEXT_IDS,
        "talker_config": talker_config,
        "dtype": "bfloat16",
    }
    if kind == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": talker_config["hidden_size"],
            "sample_rate": 24000,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 12,
            "enc_se_channels": 12,
        }
    return config


def codec(encoder: bool, width: int = 32) -> dict[str, Any]:
    """`speech_tokenizer/config.json`: the released structure, window 72 in the decoder and 250 in the encoder."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "dtype": "float32",
        "decoder_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "latent_dim": width // 2,
            "codebook_dim": width // 8,
            "codebook_size": 2048,
            "decoder_dim": width,
            "hidden_act": "silu",
            "hidden_size": 16,
            "intermediate_size": 32,
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "head_dim": 8,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "num_quantizers": 16,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000,
            "semantic_codebook_size": 4096,
            "sliding_window": 72,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "vector_quantization_hidden_dimension": 8,
        },
    }
    if encoder:
        config["encoder_config"] = {
            "_frame_rate": 12.5,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "audio_channels": 1,
            "codebook_dim": 8,
            "codebook_size": 128,
            "compress": 2,
            "dilation_growth_rate": 2,
            "head_dim": 8,
            "hidden_act": "gelu",
            "hidden_size": 32,
            "intermediate_size": 64,
            "kernel_size": 7,
            "last_kernel_size": 3,
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "norm_eps": 1e-05,
            "num_attention_heads": 4,
            "num_filters": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "num_quantizers": 32,
            "num_residual_layers": 1,
            "num_semantic_quantizers": 1,
            "pad_mode": "constant",
            "residual_kernel_size": 3,
            "rope_theta": 10000,
            "sampling_rate": 24000,
            "sliding_window": 250,
            "trim_right_ratio": 1.0,
            "upsample_groups": 32,
            "upsampling_ratios": [8, 6, 5, 4],
            "use_cache": False,
            "use_causal_conv": True,
            "use_conv_shortcut": False,
            "vector_quantization_hidden_dimension": 8,
        }
    return config


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "custom": model("custom_voice", "1b7", talker(64, 32, 256, speakers=True)),
    "custom06": model("custom_voice", "0b6", talker(32, 32, 128, speakers=True)),
    "base": model("base", "0b6", talker(32, 32, 128, speakers=False)),
    "design": model("voice_design", "1b7", talker(32, 24, 128, speakers=False)),
}
