"""How much memory a layout's models need, from their files: weights, the caches of requests, MLX's own cache."""

import sys
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from ..bus.layout import Layout
from ..configs.models import find, split_name
from .cli_checkpoint import FLOATS, Config, Tensor, on_disk, read_config, tensors

WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2}
PROMPT_POSITIONS = 64
"""A usual prompt: prefix and one or two sentences."""
SMALLEST_CACHE = 256
"""Positions of the smallest key-value cache; larger ones double."""


class ModelPlan(msgspec.Struct, frozen=True):
    """Bytes that one speech model needs in the process that runs it."""

    name: str
    source: str
    folder: Path
    config: Config
    disk: int
    dtype: str
    weights: int
    sentence: int
    """Cache of one request of up to 190 frames (15 s)."""
    longest: int
    """Cache of one request at the model's frame limit."""


def dtype(layout: Layout) -> str:
    """The dtype of the float weights once loaded: as set, or what `auto` means for the installed MLX."""
    if layout.speech.dtype != "auto":
        return layout.speech.dtype
    return (
        "bf16"
        if sys.platform == "darwin" or _installed("mlx-cuda-13") or _installed("mlx-cuda-12")
        else "fp32"
    )


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def model_plan(source: str, layout: Layout) -> ModelPlan:
    """Raises StartError where the model is not on this machine."""
    name, where = split_name(source)
    folder = find(where, download=False)
    config, kind = read_config(folder), dtype(layout)
    width = WIDTH[kind]
    weights = sum(
        _loaded(tensor, width) for tensor in tensors(folder) if "speaker_encoder" not in tensor.name
    )
    weights += sum(
        _loaded(tensor, width)
        for tensor in tensors(folder / "speech_tokenizer")
        if tensor.name.startswith("decoder.")
    )
    return ModelPlan(
        name,
        where,
        folder,
        config,
        on_disk(folder),
        kind,
        weights,
        _cache(config, 190, width),
        _cache(config, _limit(folder), width),
    )


def _loaded(tensor: Tensor, width: int) -> int:
    # The text embedding stays as it is stored: a request reads only a few of its rows.
    if tensor.dtype in FLOATS and "text_embedding" not in tensor.name:
        return tensor.elements * width
    return tensor.bytes


def _cache(config: Config, frames: int, width: int) -> int:
    talker, positions = config.talker_config, SMALLEST_CACHE
    while positions < frames + PROMPT_POSITIONS:
        positions *= 2
    return (
        2
        * talker.num_hidden_layers
        * talker.num_key_value_heads
        * (talker.head_dim or 128)
        * positions
        * width
    )


def _limit(folder: Path) -> int:
    file = folder / "generation_config.json"
    if not file.is_file():
        return 2048
    return int(msgspec.json.decode(file.read_bytes()).get("max_new_tokens", 2048))


def mlx_cache(layout: Layout) -> int:
    """Most bytes of freed buffers that MLX keeps."""
    return layout.device.cache_limit_bytes or min(machine() // 4, 2 << 30)


def machine() -> int:
    """Bytes of memory of this machine."""
    return psutil.virtual_memory().total
