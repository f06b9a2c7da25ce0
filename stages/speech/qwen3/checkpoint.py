"""Reading a checkpoint folder: the released layout, plain or quantised by an MLX converter, one file or shards."""

from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from ...device import on_cpu
from .config import (
    CheckpointError,
    GenerationConfig,
    ModelConfig,
    SpeechTokenizerConfig,
    read,
    released,
)
from .model import PARTS, Qwen3TTS
from .tokenizer import BytePairTokenizer, ByteTokenizer
from .weights import Format, RandomWeights, Weights

WHOLE = 16 * 1024 * 1024
"""Bytes of the largest file of which a fingerprint takes everything."""
DTYPES = {"fp64": mx.float64, "fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16}
QUANTISED = {
    "8bit": Format(64, 8, "affine"),
    "6bit": Format(64, 6, "affine"),
    "4bit": Format(64, 4, "affine"),
}


def load(
    path: Path, *, dtype: str | None = None, codec_dtype: str = "fp32", parts: frozenset[str] = PARTS
) -> Qwen3TTS:
    """The model in folder `path`, with what the stages `parts` need of its weights read and evaluated.

    `dtype` (fp32, bf16, fp16; on the CPU also fp64) is that of the float weights; by default fp32 on the CPU, where
    half-precision products are slow, and bf16 elsewhere. Quantised layers keep their packed weights. The codec
    stays in fp32, as released: in bf16 the random-weight codec of the golden data has a signal-to-noise ratio
    of 22 dB, for 1.3 ms less per frame on an H200.

    :raises CheckpointError: a file or tensor is missing or does not fit, or the folder holds another model.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder: name a folder with a Qwen3-TTS checkpoint.")
    config = read(path / "config.json", ModelConfig)
    if config.model_type != "qwen3_tts":
        raise CheckpointError(
            f"{path} holds a {config.model_type!r} model, but only 'qwen3_tts' can be used."
        )
    if config.tokenizer_type != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"{path} uses {config.tokenizer_type!r}; only the 12 Hz speech tokenizer can be used."
        )
    codec_config = read(path / "speech_tokenizer" / "config.json", SpeechTokenizerConfig)
    generation = GenerationConfig()
    if (path / "generation_config.json").is_file():
        generation = read(path / "generation_config.json", GenerationConfig)
    chosen = _dtype(dtype)
    file, codec_file = str(path / "model.safetensors"), str(path / "speech_tokenizer" / "model.safetensors")
    arrays, codec_arrays = tensors(path), tensors(path / "speech_tokenizer")
    weights = Weights(arrays, chosen, file, config.quantization)
    codec = Weights(codec_arrays, _dtype(codec_dtype), codec_file)
    model = Qwen3TTS(config, codec_config, generation, BytePairTokenizer(path), weights, codec, parts)
    weights.check()
    codec.check()
    if model.kind == "base" and "prompt" in parts:
        weights, codec = Weights(arrays, mx.float32, file), Weights(codec_arrays, mx.float32, codec_file)
        model.add_encoders(codec_config, weights, codec)
        weights.check()
        codec.check()
    model.fingerprint = fingerprint(path, f"{chosen} {codec_dtype}")
    return model


def fingerprint(path: Path, dtypes: str) -> str:
    """A hash of this code, MLX and its device, the dtypes, and the checkpoint in `path`.

    Of large files only a sample is read, and when they were changed: they would take longer to hash than to load.
    """
    info = mx.device_info()
    device = f"{info.get('device_name')} {info.get('architecture')}"
    made = blake2b(f"{version('mlx')} {device} {dtypes}".encode(), digest_size=16)
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        made.update(file.read_bytes())
    for file in sorted(path.rglob("*")):
        if not file.is_file():
            continue
        status = file.stat()
        made.update(f"\n{file.relative_to(path)} {status.st_size}\n".encode())
        with open(file, "rb") as data:
            if status.st_size <= WHOLE:
                made.update(data.read())
            else:
                made.update(str(status.st_mtime_ns).encode())
                for at in range(0, status.st_size, status.st_size // 64):
                    data.seek(at)
                    made.update(data.read(4096))
    return made.hexdigest()


def random_weights(size: str, dtype: str, codec_dtype: str = "fp32") -> Qwen3TTS:
    """A model of the released dimensions ('0.6B', '1.7B') with random weights, to measure without any file.

    `dtype` is one of fp32, bf16, fp16, 8bit, 6bit, 4bit; quantised ones keep their other weights in the
    device's dtype.
    """
    config, codec_config = released(size)
    form = QUANTISED.get(dtype)
    chosen = _dtype(None if form else dtype)
    return Qwen3TTS(
        config,
        codec_config,
        GenerationConfig(),
        ByteTokenizer(),
        RandomWeights(chosen, form),
        RandomWeights(_dtype(codec_dtype)),
    )


def _dtype(name: str | None) -> mx.Dtype:
    if name is None:
        return mx.float32 if on_cpu() else mx.bfloat16
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}, but must be one of {', '.join([*DTYPES, *QUANTISED])}.")
    return DTYPES[name]


def tensors(path: Path) -> dict[str, mx.array]:
    """All tensors of model.safetensors, or of the shards that model.safetensors.index.json names, and of
    model*.safetensors beside them: what a checkpoint has more than another may lie in a file of its own.
    """
    index = path / "model.safetensors.index.json"
    files = {path / "model.safetensors"}
    if not (path / "model.safetensors").is_file() and index.is_file():
        try:
            named: dict[str, Any] = msgspec.json.decode(index.read_bytes())
            files = {path / shard for shard in named["weight_map"].values()}
        except (msgspec.DecodeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} cannot be used: {error}.") from error
    arrays: dict[str, mx.array] = {}
    for file in sorted(files.union(path.glob("model*.safetensors"))):
        if not file.is_file():
            raise CheckpointError(f"{file} is missing: fetch the model again.")
        try:
            loaded = mx.load(str(file))
        except RuntimeError as error:
            raise CheckpointError(f"{file} cannot be read: {error}.") from error
        assert isinstance(loaded, dict)
        arrays.update(loaded)
    return arrays
