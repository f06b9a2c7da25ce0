"""Reads an exported checkpoint back into the modules that were trained."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from .decoder import Decoder, DecoderSize
from .ids import TalkerSize
from .talker import Talker


def read_talker(folder: Path) -> Talker:
    """Talker and code predictor of a checkpoint, float32."""
    config = json.loads((folder / "config.json").read_text())["talker_config"]
    predictor = config["code_predictor_config"]
    size = TalkerSize(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head=config["head_dim"],
        inner=config["intermediate_size"],
        text_vocabulary=config["text_vocab_size"],
        text_hidden=config["text_hidden_size"],
        predictor_hidden=predictor["hidden_size"],
        predictor_layers=predictor["num_hidden_layers"],
        predictor_heads=predictor["num_attention_heads"],
        predictor_inner=predictor["intermediate_size"],
        predictor_vocabulary=predictor["vocab_size"],
        groups=config["num_code_groups"],
    )
    talker = Talker(size)
    weights = load_file(folder / "model.safetensors")
    talker.load_state_dict({name.removeprefix("talker."): value.float() for name, value in weights.items()})
    return talker


def read_decoder(folder: Path) -> Decoder:
    """The decoder of a speech tokenizer, float32."""
    config = json.loads((folder / "config.json").read_text())["decoder_config"]
    size = DecoderSize(
        table=config["codebook_dim"] // 2,
        latent=config["latent_dim"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        head=config["head_dim"],
        layers=config["num_hidden_layers"],
        inner=config["intermediate_size"],
        channels=config["decoder_dim"],
        window=config["sliding_window"],
    )
    decoder, state = Decoder(size), {}
    weights = {
        name.removeprefix("decoder."): v.float()
        for name, v in load_file(folder / "model.safetensors").items()
    }
    for part, groups in (("first", 1), ("rest", config["num_quantizers"] - 1)):
        books = [f"quantizer.rvq_{part}.vq.layers.{i}._codebook" for i in range(groups)]
        tables = [
            weights.pop(f"{book}.embedding_sum")
            / weights.pop(f"{book}.cluster_usage").clamp(min=1e-5)[:, None]
            for book in books
        ]
        state[f"{part}.tables"] = torch.stack(tables)
        state[f"{part}.output_proj.weight"] = weights.pop(f"quantizer.rvq_{part}.output_proj.weight")
        del weights[f"quantizer.rvq_{part}.input_proj.weight"]
    decoder.load_state_dict(state | weights)
    return decoder
