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

from .configs import KINDS, codec_config, generation, talker_config
from .decoder import Decoder, DecoderSize
from .ids import TalkerSize
from .quantizer import FIRST
from .talker import Talker

CODES = 2048
"""rows of the talker's vocabulary that a sampler takes for codes"""


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
