"""Smaller checkpoints: MLX's affine quantisation of the talker and the code predictor, in named mixtures.

The codec, the encoders, the norms and the embeddings stay as they are. The predictor's body is read fifteen times a
frame, so its size counts most; its errors, and those of the heads, are heard most.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from .checkpoint import tensors
from .config import CheckpointError, ModelConfig, read

GROUP_SIZE = 64
PREDICTOR, HEADS = "talker.code_predictor.", ("codec_head", "lm_head")


class Preset(msgspec.Struct, frozen=True):
    """Bits of each kind of layer."""

    talker: int
    predictor: int
    heads: int


PRESETS = {"8bit": Preset(8, 8, 8), "mixed": Preset(4, 8, 8), "4bit": Preset(4, 4, 4)}


def quantize(
    source: Path, target: Path, preset: str, progress: Callable[[float], None] = lambda done: None
) -> None:
    """Write the float checkpoint `source` to the new folder `target` in a preset of `PRESETS`.

    `target` appears when it is complete. Raises CheckpointError if the source cannot be used or copied, and if the
    target exists or is inside the source.
    """
    config = read(source / "config.json", ModelConfig)
    if config.quantization is not None:
        raise CheckpointError(f"{source} is quantised already: give the original.")
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists: name a new folder.")
    if target.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(
            f"{target} is inside {source}, of which it would be a copy: name a folder elsewhere."
        )
    arrays, forms = dict[str, mx.array](), dict[str, dict[str, Any]]()
    found = tensors(source)
    for done, (name, tensor) in enumerate(found.items(), 1):
        layer = name.removesuffix(".weight")
        bits = _bits(layer, PRESETS[preset])
        size = next((size for size in (GROUP_SIZE, 32) if tensor.shape[-1] % size == 0), None)
        if bits is None or size is None or tensor.ndim != 2 or layer == name:
            arrays[name] = tensor
        else:
            words, scales, zeros = mx.quantize(tensor.astype(mx.float32), group_size=size, bits=bits)
            scales, zeros = scales.astype(tensor.dtype), zeros.astype(tensor.dtype)
            arrays |= {name: words, f"{layer}.scales": scales, f"{layer}.biases": zeros}
            forms[layer] = {"group_size": size, "bits": bits}
        mx.eval(arrays[name])
        progress(done / len(found))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        made = Path(folder) / target.name
        try:
            shutil.copytree(source, made, ignore=_weights_of(source))
        except shutil.Error as error:
            file, _, why = error.args[0][0]
            raise CheckpointError(f"{file} cannot be copied: {why}.") from None
        mx.save_safetensors(str(made / "model.safetensors"), arrays, {"format": "mlx"})
        settings = msgspec.json.decode((source / "config.json").read_bytes())
        settings["quantization"] = {"group_size": GROUP_SIZE, "bits": PRESETS[preset].talker, **forms}
        (made / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
        made.rename(target)


def _bits(layer: str, preset: Preset) -> int | None:
    """None for what stays as it is."""
    if not layer.startswith("talker.") or "embedding" in layer or "norm" in layer:
        return None
    if any(head in layer for head in HEADS):
        return preset.heads
    return preset.predictor if layer.startswith(PREDICTOR) else preset.talker


def _weights_of(source: Path) -> Callable[[str, list[str]], list[str]]:
    def ignored(folder: str, names: list[str]) -> list[str]:
        top = Path(folder) == source
        return [name for name in names if top and ".safetensors" in name]

    return ignored
