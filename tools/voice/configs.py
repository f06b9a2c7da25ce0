"""The configs of a checkpoint, in the released layout."""

from typing import Any

from tokenizers import Tokenizer

from . import ids
from .decoder import RATES, UPSAMPLE, DecoderSize
from .ids import TalkerSize
from .quantizer import FIRST, GROUPS
from .voices import PRESETS

KINDS = ("custom_voice", "voice_design", "base")
GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.0,
    "temperature": 0.4,
    "top_k": 20,
    "top_p": 1.0,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.4,
    "subtalker_top_k": 20,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 2048,
}
DESIGN_TEMPERATURE = 0.2
"""Of voice_design: a voice is drawn in the first frames, and a colder one keeps nearer to its description."""


def codec_config(size: DecoderSize) -> dict[str, Any]:
    """speech_tokenizer/config.json. There is no encoder yet, so no encoder_config."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": GROUPS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "dtype": "float16",
        "decoder_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "latent_dim": size.latent,
            "codebook_dim": 2 * size.table,
            "codebook_size": FIRST,
            "decoder_dim": size.channels,
            "hidden_act": "silu",
            "hidden_size": size.hidden,
            "intermediate_size": size.inner,
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "head_dim": size.head,
            "num_attention_heads": size.heads,
            "num_hidden_layers": size.layers,
            "num_key_value_heads": size.heads,
            "num_quantizers": GROUPS,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "semantic_codebook_size": 4096,
            "sliding_window": size.window,
            "upsample_rates": list(RATES),
            "upsampling_ratios": list(UPSAMPLE),
            "vector_quantization_hidden_dimension": 512,
        },
    }


def talker_config(size: TalkerSize, tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """config.json of a checkpoint of one of KINDS."""
    presets = PRESETS if kind == "custom_voice" else ()
    common = {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": size.head,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "sliding_window": None,
        "use_sliding_window": False,
        "rope_theta": size.theta,
        "num_code_groups": size.groups,
    }
    predictor = common | {
        "model_type": "qwen3_tts_talker_code_predictor",
        "hidden_size": size.predictor_hidden,
        "intermediate_size": size.predictor_inner,
        "layer_types": ["full_attention"] * size.predictor_layers,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "num_attention_heads": size.predictor_heads,
        "num_key_value_heads": size.predictor_heads,
        "num_hidden_layers": size.predictor_layers,
        "rope_scaling": None,
        "vocab_size": size.predictor_vocabulary,
    }
    third = size.head // 6
    talker = common | {
        "code_predictor_config": predictor,
        "model_type": "qwen3_tts_talker",
        "codec_bos_id": ids.CODEC_BOS,
        "codec_eos_token_id": ids.CODEC_EOS,
        "codec_pad_id": ids.CODEC_PAD,
        "codec_think_id": ids.THINK,
        "codec_nothink_id": ids.NOTHINK,
        "codec_think_bos_id": ids.THINK_BOS,
        "codec_think_eos_id": ids.THINK_EOS,
        "codec_language_id": ids.LANGUAGES,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "max_position_embeddings": 32768,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "num_hidden_layers": size.layers,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [size.head // 2 - 2 * third, third, third],
            "rope_type": "default",
            "type": "default",
        },
        "text_hidden_size": size.text_hidden,
        "text_vocab_size": size.text_vocabulary,
        "vocab_size": ids.CODEC_VOCABULARY,
        "spk_id": {preset.name: preset.token for preset in presets},
        "spk_is_dialect": {preset.name: False for preset in presets},
    }
    token = tokenizer.token_to_id
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "12M",
        "tts_model_type": kind,
        "assistant_token_id": tokenizer.encode("assistant").ids[0],
        "im_start_token_id": token("<|im_start|>"),
        "im_end_token_id": token("<|im_end|>"),
        "tts_pad_token_id": token("<tts_pad>"),
        "tts_bos_token_id": token("<tts_text_bos>"),
        "tts_eos_token_id": token("<tts_text_eod>"),
        "talker_config": talker,
        "dtype": "bfloat16",
    }


def generation(kind: str) -> dict[str, Any]:
    """generation_config.json of a checkpoint of one of KINDS."""
    if kind != "voice_design":
        return GENERATION
    return GENERATION | dict.fromkeys(("temperature", "subtalker_temperature"), DESIGN_TEMPERATURE)
