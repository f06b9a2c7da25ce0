"""How much memory a layout needs, from its models' files: weights, the caches of requests, MLX's own cache."""

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from ..bus.errors import StartError
from ..bus.layout import Layout
from ..bus.messages import FAMILIES
from ..configs.models import find, refuse_other, split_name
from .cli_checkpoint import FLOATS, Config, Tensor, on_disk, read_config, tensors
from .cli_terminal import size as bytes_text

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
    parts: dict[str, int]
    """Weights by the stage that needs them; `shared` is a table that all but the codec decoder need."""
    sentence: int
    """Cache of one request of up to 190 frames (15 s)."""
    longest: int
    """Cache of one request at the model's frame limit."""

    @property
    def weights(self) -> int:
        return sum(self.parts.values())

    def weights_of(self, stages: Iterable[str]) -> int:
        """Weights that a process with these stages loads."""
        needed = set(stages)
        if self.config.tts_model_type == "base" and "prompt" in needed:
            needed.add("code_predictor")  # its tables make rows of a reference's codes
        if needed & {"prompt", "talker", "code_predictor"}:
            needed.add("shared")
        return sum(size for part, size in self.parts.items() if part in needed)


class Need(msgspec.Struct, frozen=True):
    """Bytes that one process of a layout needs."""

    process: str
    rows: list[tuple[str, int]]
    """What for, and how much of it."""
    least: int
    """With one request of 15 s."""
    most: int
    """With as many and as long requests as the layout allows."""


def needs(layout: Layout, plans: list[ModelPlan]) -> list[Need]:
    """Of each process that runs on this machine and uses a device. Raises StartError for a model not here."""
    found: list[Need] = []
    for process in layout.process:
        if not process.device or process.control is not None:
            continue
        rows = [
            (f"{plan.name}: weights as {plan.dtype}", weights)
            for plan in plans
            if (weights := plan.weights_of(process.device))
        ]
        if "chat" in process.device:
            for source in layout.chat.models:
                name, where = split_name(source)
                folder = find(where, download=False)
                refuse_other(folder, "chat")
                rows.append((f"{name}: weights as stored", sum(tensor.bytes for tensor in tensors(folder))))
                rows.append((f"{name}: prompt cache, at most", layout.chat.cache_bytes))
        rows.append(("MLX's cache of freed buffers, at most", mlx_cache(layout)))
        least = most = sum(size for _, size in rows)
        if "talker" in process.device:
            for plan in plans:
                rows.append((f"{plan.name}: cache of one request, 15 s", plan.sentence))
                rows.append((f"{plan.name}: cache of one request, longest", plan.longest))
            least += max((plan.sentence for plan in plans), default=0)
            most += layout.api.max_concurrent * max((plan.longest for plan in plans), default=0)
        found.append(Need(process.name, rows, least, most))
    return found


def refuse_if_too_large(layout: Layout) -> None:
    """Raises StartError, with the numbers, for a layout whose weights alone this machine cannot hold."""
    try:
        plans = (
            [model_plan(source, layout) for source in layout.speech.models] if layout.place("talker") else []
        )
        needed = needs(layout, plans)
    except StartError:
        return  # a model has to be fetched first, or cannot be had, which is told when it is loaded
    weights = sum(size for need in needed for what, size in need.rows if ": weights" in what)
    if weights > machine():
        raise StartError(
            f"the weights need {bytes_text(weights)}, this machine has {bytes_text(machine())}: leave some out or "
            "take quantised ones (`vivavoce layout explain` shows what needs how much)"
        )


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
    parts: dict[str, int] = dict.fromkeys((*FAMILIES["speech"], "shared"), 0)
    base = config.tts_model_type == "base"
    for tensor in tensors(folder):
        if "speaker_encoder" not in tensor.name:
            parts[_part(tensor.name)] += _loaded(tensor, width)
        elif base:
            parts["prompt"] += tensor.elements * WIDTH["fp32"]
    for tensor in tensors(folder / "speech_tokenizer"):
        if tensor.name.startswith("decoder."):
            parts["codec_decoder"] += _loaded(tensor, width)
        elif base:
            parts["prompt"] += tensor.elements * WIDTH["fp32"]
    return ModelPlan(
        name,
        where,
        folder,
        config,
        on_disk(folder),
        kind,
        parts,
        _cache(config, 190, width),
        _cache(config, _limit(folder), width),
    )


def _part(name: str) -> str:
    """The stage that needs a tensor."""
    if "code_predictor" in name:
        return "code_predictor"
    if "text_embedding" in name or "text_projection" in name:
        return "prompt"
    return "shared" if "codec_embedding" in name else "talker"


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
