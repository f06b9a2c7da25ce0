"""Train the text tokenizer: python -m tools.voice.tokenizer TEXTS.jsonl TOKENIZER/

A byte-level BPE in the layout of Qwen2's, small so that its pieces can be learnt. "assistant", "user" and the
newline are single tokens, because the prompts count on it.
"""

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = ("assistant", "user", "system")


def train(lines: list[str], size: int, out: Path) -> Tokenizer:
    """Learn size tokens from lines and write tokenizer.json, vocab.json, merges.txt and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Often enough that each role's whole word is merged.
    roles = [f"{role}\n" for role in ROLES] * (len(lines) // 4 + 50)
    tokenizer.train_from_iterator(lines + roles, trainer)
    out.mkdir(parents=True, exist_ok=True)
    learnt = json.loads(tokenizer.to_str())["model"]
    (out / "vocab.json").write_text(json.dumps(learnt["vocab"], ensure_ascii=False))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in learnt["merges"]]
    (out / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    base = len(learnt["vocab"])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(base + i): {"content": text, **flags} for i, text in enumerate(SPECIAL)},
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "chat_template": CHAT,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    for role in ROLES[:2]:
        tokens = tokenizer.encode(f"<|im_start|>{role}\n").tokens
        if len(tokens) != 3:
            raise RuntimeError(f"The tokenizer splits the role {role!r} into {tokens}: give it more lines.")
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=1024)
    args = parser.parse_args()
    lines = [json.loads(line)["raw"] for line in args.texts.read_text().splitlines()]
    tokenizer = train(lines, args.size, args.out)
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(lines[:5000]))
    print(f"{tokenizer.get_vocab_size()} tokens, {sum(map(len, lines[:5000])) / tokens:.2f} letters a token")


if __name__ == "__main__":
    main()
