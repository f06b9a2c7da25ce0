"""Write what a base checkpoint has more than others: python -m tools.voice.encoder_export RUN/ ROW.npy SHARED/ OUT/

OUT gets the encoders of RUN/encoder.pt and RUN/speaker.pt (averaged weights, float16) in files of their own, and
the configs of the checkpoint SHARED, changed to those of a base model. ROW.npy [hidden, TRAITS] is how the talker's
row of a voice follows from its traits. SHARED and OUT together are the checkpoint; --whole FOLDER also writes them
as one plain folder, for programs that know but one tensor file.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from .encoder import STRIDES, Encoder, EncoderSize
from .features import RATE
from .quantizer import FIRST, GROUPS
from .speaker import SpeakerEncoder, SpeakerSize

SPEAKER, CODEC = (
    Path("model-speaker_encoder.safetensors"),
    Path("speech_tokenizer", "model-encoder.safetensors"),
)
"""beside the files `model.safetensors` of the checkpoint and of its speech tokenizer"""


def load_encoder(run: Path) -> Encoder:
    """The trained codec encoder, averaged weights, rounded as they are stored."""
    state = torch.load(run / "encoder.pt", map_location="cpu")
    encoder = Encoder(EncoderSize(**state["size"]))
    encoder.load_state_dict(state["average"])
    return encoder.half().float().eval()


def load_speaker(run: Path, row: NDArray[np.float32]) -> SpeakerEncoder:
    """The trained speaker encoder, giving the talker's rows [hidden] instead of traits."""
    state = torch.load(run / "speaker.pt", map_location="cpu")
    encoder = SpeakerEncoder(SpeakerSize(**state["size"]))
    encoder.load_state_dict(state["average"])
    wide, matrix = encoder.fc, torch.from_numpy(row)
    encoder.fc = torch.nn.Conv1d(wide.in_channels, len(row), 1)
    encoder.fc.weight.data = (matrix @ wide.weight.data[..., 0])[..., None]
    encoder.fc.bias = torch.nn.Parameter(matrix @ wide.bias.data)  # pyright: ignore[reportOptionalMemberAccess]
    return encoder.half().float().eval()


def encoder_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """State under the released names; a codebook is its sum over its usage, here one."""
    out: dict[str, Tensor] = {}
    for name, value in encoder.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "layers":
            out[f"encoder.encoder.{name}"] = value
        elif part not in ("first", "rest"):
            out[f"encoder.{name}"] = value
        else:
            kind = {"first": "semantic", "rest": "acoustic"}[part]
            books = f"encoder.quantizer.{kind}_residual_vector_quantizer"
            if rest == "input_proj.weight":
                out[f"{books}.{rest}"] = value
                # Only the codes are wanted; the official loader expects the way out all the same.
                out[f"{books}.output_proj.weight"] = torch.zeros_like(value).transpose(0, 1)
                continue
            for layer, table in enumerate(value):
                book = f"{books}.layers.{layer}.codebook"
                out[f"{book}.embed_sum"] = table
                out[f"{book}.cluster_usage"] = torch.ones(len(table))
                out[f"{book}.initialized"] = torch.ones(1)
    return out


def encoder_config(size: EncoderSize) -> dict[str, Any]:
    """`encoder_config` of the speech tokenizer."""
    return {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": size.table,
        "codebook_size": FIRST,
        "compress": 2,
        "dilation_growth_rate": 2,
        "head_dim": size.head,
        "hidden_act": "gelu",
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "kernel_size": 7,
        "last_kernel_size": 1,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "num_attention_heads": size.heads,
        "num_filters": size.filters,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.heads,
        "num_quantizers": GROUPS,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000,
        "sampling_rate": RATE,
        # As in training, where each row sees all before it.
        "sliding_window": 8000,
        "trim_right_ratio": 1.0,
        "upsample_groups": size.hidden,
        "upsampling_ratios": list(reversed(STRIDES)),
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "vector_quantization_hidden_dimension": size.table,
    }


def speaker_config(size: SpeakerSize, hidden: int) -> dict[str, Any]:
    """`speaker_encoder_config` of the model."""
    return {
        "enc_dim": hidden,
        "sample_rate": RATE,
        "enc_channels": [size.channels] * 4 + [3 * size.channels],
        "enc_attention_channels": size.attention,
        "enc_se_channels": size.squeeze,
        "enc_res2net_scale": size.scale,
    }


def export(run: Path, row: NDArray[np.float32], shared: Path, out: Path) -> int:
    """Write the files in which the base checkpoint differs from `shared`; the bytes of its weights."""
    encoder, speaker = load_encoder(run), load_speaker(run, row)
    (out / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    config = json.loads((shared / "config.json").read_text())
    talker = config["talker_config"] | {"spk_id": {}, "spk_is_dialect": {}}
    config |= {"tts_model_type": "base", "talker_config": talker}
    config["speaker_encoder_config"] = speaker_config(speaker.size, len(row))
    place = Path("speech_tokenizer", "config.json")
    codec = json.loads((shared / place).read_text())
    codec["encoder_config"] = encoder_config(encoder.size)
    for path, content in ((out / "config.json", config), (out / place, codec)):
        path.write_text(json.dumps(content, indent=2) + "\n")
    rows = {f"speaker_encoder.{name}": value for name, value in speaker.state_dict().items()}
    for path, tensors in ((SPEAKER, rows), (CODEC, encoder_tensors(encoder))):
        halves = {name: value.half().contiguous() for name, value in tensors.items()}
        save_file(halves, out / path, metadata={"format": "pt"})
        (out / path).chmod(0o644)
    return sum((out / path).stat().st_size for path in (SPEAKER, CODEC))


def write_whole(parts: list[Path], target: Path) -> None:
    """One plain folder of several parts, the first one's files before others'; all tensors in model.safetensors."""
    for part in reversed(parts):
        shutil.copytree(part, target, dirs_exist_ok=True)
    for folder in (target, target / "speech_tokenizer"):
        beside = sorted(folder.glob("model-*.safetensors"))
        tensors = load_file(folder / "model.safetensors")
        for file in beside:
            tensors |= load_file(file)
            file.unlink()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("row", type=Path)
    parser.add_argument("shared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--whole", type=Path)
    args = parser.parse_args()
    size = export(args.run, np.load(args.row), args.shared, args.out)
    print(f"{args.out}: {size / 2**20:.2f} MiB of encoders")
    if args.whole is not None:
        write_whole([args.out, args.shared], args.whole)


if __name__ == "__main__":
    main()
