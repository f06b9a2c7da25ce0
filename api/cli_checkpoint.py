"""A speech checkpoint as its JSON files and tensor headers describe it, without reading a weight."""

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

import msgspec

from ..bus.control import ModelInfo
from ..bus.errors import StartError
from ..configs.models import refuse_other

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
"""Bytes of an element by its safetensors name; all others are one byte."""
FLOATS = ("F64", "F32", "F16", "BF16")


class Attention(msgspec.Struct, frozen=True):
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int | None = 128


class Talker(Attention, frozen=True, kw_only=True):
    spk_id: dict[str, int | list[int]] = {}
    spk_is_dialect: dict[str, str | bool] = {}
    codec_language_id: dict[str, int] = {}


class Config(msgspec.Struct, frozen=True):
    """The part of config.json that people ask about."""

    model_type: str
    talker_config: Talker
    tts_model_type: str = "base"
    tts_model_size: str = ""
    quantization: dict[str, object] | None = None

    @property
    def size(self) -> str:
        return {"0b6": "0.6B", "1b7": "1.7B"}.get(self.tts_model_size, self.tts_model_size)

    def described(self, name: str, source: str) -> ModelInfo:
        """As far as this tells."""
        return ModelInfo(
            name=name,
            family="speech",
            kind=self.tts_model_type,
            size=self.size,
            source=source,
            voices=tuple(sorted(self.talker_config.spk_id)),
            languages=("auto", *sorted(self.talker_config.codec_language_id)),
        )


class Tensor(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    """As safetensors names it."""
    elements: int
    bytes: int


def read_config(folder: Path) -> Config:
    """Raises StartError where the folder holds no Qwen3-TTS model."""
    file = folder / "config.json"
    refuse_other(folder, "speech")
    try:
        return msgspec.json.decode(file.read_bytes(), type=Config)
    except FileNotFoundError:
        raise StartError(f"{folder} has no config.json: it is not a model folder") from None
    except msgspec.DecodeError as error:
        raise StartError(f"{file} is not that of a Qwen3-TTS model: {error}") from None


def tensors(folder: Path) -> Iterator[Tensor]:
    """Every tensor of the folder's safetensors files, from their headers (8 bytes of length, then JSON)."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as opened:
                (length,) = struct.unpack("<Q", opened.read(8))
                head = json.loads(opened.read(length))
        except (OSError, struct.error, ValueError) as error:
            raise StartError(f"{file} cannot be read: {error}") from None
        for name, entry in head.items():
            if name != "__metadata__":
                elements = prod(entry["shape"])
                yield Tensor(name, entry["dtype"], elements, elements * WIDTHS.get(entry["dtype"], 1))


def on_disk(folder: Path) -> int:
    """Bytes of the folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
