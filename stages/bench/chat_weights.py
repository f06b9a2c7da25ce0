"""A chat model of random weights in mlx-lm's form, of the dimensions of Mistral 7B or a part of its layers.

Run as a module it writes a folder: `python -m …chat_weights FOLDER LAYERS HIDDEN DTYPE`. Its tokens are bytes, and
one in 32,768 of those it draws ends a reply.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

VOCABULARY = 32_768
HEAD = 128
BITS = {"8bit": 8, "4bit": 4}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config(layers: int, hidden: int) -> dict[str, Any]:
    """A llama's configuration; `hidden` is a multiple of 128."""
    heads = hidden // HEAD
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": hidden * 7 // 2,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    }


def write(folder: Path, layers: int, hidden: int, dtype: str) -> None:
    """`dtype` is bf16, 8bit or 4bit."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    described = config(layers, hidden)
    model = Model(ModelArgs.from_dict(described))
    model.set_dtype(mx.bfloat16)
    if bits := BITS.get(dtype):
        nn.quantize(model, group_size=64, bits=bits)
        described["quantization"] = {"group_size": 64, "bits": bits}
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_bytes(msgspec.json.encode(described))
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token in ("<|im_start|>", "<|im_end|>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
