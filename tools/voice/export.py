"""Write the checkpoint: python -m tools.voice.export RUN/ TOKENIZER/ OUT/

Takes the averaged weights of RUN/codec.pt and RUN/talker.pt and writes the folder in the released layout: talker in
bfloat16, codec in float16, configs, tokenizer. Neither needs the quantizer any more: the tables are in the decoder.
With --codec CHECKPOINT the codec is that of an exported checkpoint. One talker serves all kinds of checkpoint:
--kind voice_design and base differ in config.json. RUN/voice_row.npy, [hidden, TRAITS], is what a speaker encoder
needs to turn traits into the talker's row of a voice.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from . import ids
from .decoder import RATES, UPSAMPLE, Decoder, DecoderSize
from .ids import TalkerSize
from .quantizer import FIRST, GROUPS
from .talker import Talker
from .voices import PRESETS

KINDS = ("custom_voice", "voice_design", "base")
CODES = 2048
"""rows of the talker's vocabulary that a sampler takes for codes"""
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


def load_decoder(run: Path) -> Decoder:
    """The trained decoder, averaged weights; whatever a group without meaning says changes nothing."""
    state = torch.load(run / "codec.pt", map_location="cpu")
    decoder = Decoder(DecoderSize(**state["size"]))
    decoder.load_state_dict(state["average"])
    unused = decoder.rest.tables.data[state["used"] - 1 :]
    unused.copy_(unused[:, :1].expand_as(unused))
    return decoder.eval()


def load_talker(run: Path) -> tuple[Talker, Tensor]:
    """The trained talker and voice row [hidden, TRAITS], averaged weights.

    Groups without meaning come out at random and go in as zero vectors.
    """
    state = torch.load(run / "talker.pt", map_location="cpu")
    talker = Talker(TalkerSize(**state["size"]))
    weights = {name: value for name, value in state["average"].items() if name.startswith("talker.")}
    talker.load_state_dict({name.removeprefix("talker."): value for name, value in weights.items()})
    # Codes that do not exist were never trained: they get the logit of code 0, which is never wanted either.
    head = talker.codec_head.weight.data
    head[FIRST:CODES] = head[:1]
    predictor = talker.code_predictor
    for group in range(state["used"], talker.size.groups):
        nn.init.zeros_(predictor.model.codec_embedding[group - 1].weight)  # pyright: ignore
        nn.init.zeros_(predictor.lm_head[group - 1].weight)  # pyright: ignore[reportArgumentType]
    return talker.eval(), state["average"]["voice_row.weight"]


def decoder_tensors(decoder: Decoder) -> dict[str, Tensor]:
    """State under the released names; a codebook is its sum over its usage, here one."""
    out: dict[str, Tensor] = {}
    for name, value in decoder.state_dict().items():
        part, _, rest = name.partition(".")
        if part not in ("first", "rest"):
            out[f"decoder.{name}"] = value
        elif rest == "output_proj.weight":
            out[f"decoder.quantizer.rvq_{part}.output_proj.weight"] = value
            # Only an encoder would use the way in; the official loader expects it all the same.
            out[f"decoder.quantizer.rvq_{part}.input_proj.weight"] = torch.zeros_like(value).transpose(0, 1)
        else:
            for layer, table in enumerate(value):
                book = f"decoder.quantizer.rvq_{part}.vq.layers.{layer}._codebook"
                out[f"{book}.embedding_sum"] = table
                out[f"{book}.cluster_usage"] = torch.ones(len(table))
    return out


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
        "tts_model_size": "0b6",
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


def export(
    run: Path, tokenizer: Path, out: Path, kind: str = KINDS[0], codec_from: Path | None = None
) -> int:
    """Write the folder; the bytes of its files."""
    talker, voice_row = load_talker(run)
    np.save(run / "voice_row.npy", voice_row.numpy())
    codec = out / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    weights = {f"talker.{name}": value.bfloat16().contiguous() for name, value in talker.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        if (tokenizer / name).resolve() != (out / name).resolve():
            shutil.copyfile(tokenizer / name, out / name)
    written = {
        out / "config.json": talker_config(
            talker.size, Tokenizer.from_file(str(tokenizer / "tokenizer.json")), kind
        ),
        out / "generation_config.json": generation(kind),
        out / "preprocessor_config.json": {"processor_class": "Qwen3TTSProcessor", "padding_side": "left"},
    }
    if codec_from is not None:
        shutil.copytree(codec_from / "speech_tokenizer", codec, dirs_exist_ok=True)
    else:
        written |= export_codec(load_decoder(run), codec)
    for path, content in written.items():
        path.write_text(json.dumps(content, indent=2) + "\n")
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def export_codec(decoder: Decoder, codec: Path) -> dict[Path, dict[str, Any]]:
    """Write the codec's weights; its configs."""
    tensors = {name: value.half().contiguous() for name, value in decoder_tensors(decoder).items()}
    save_file(tensors, codec / "model.safetensors", metadata={"format": "pt"})
    return {
        codec / "config.json": codec_config(decoder.size),
        codec / "preprocessor_config.json": {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24000,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--codec", type=Path, help="a checkpoint whose codec to take")
    args = parser.parse_args()
    size = export(args.run, args.tokenizer, args.out, args.kind, args.codec)
    print(f"{args.out}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
