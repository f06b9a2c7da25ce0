"""Vectors of the tokenizer: plain texts, and texts that hold the names of special tokens."""

from typing import Any

from cases import SPECIAL_TEXTS, TEXTS
from official import Qwen3TTSModel


def texts(tts: Qwen3TTSModel) -> list[dict[str, Any]]:
    """For each text the official prompt ids, and the prompt ids with the text taken literally.

    In `official_ids` the name of a special token inside the text becomes that token. In `literal_ids` only the
    template's own tokens are special; for a text without such names both are equal.
    """
    tokenizer = tts.processor.tokenizer
    found: list[dict[str, Any]] = []
    for text in TEXTS + SPECIAL_TEXTS:
        official = tts._tokenize_texts([tts._build_assistant_text(text)])[0][0].tolist()

        def literal(part: str) -> list[int]:
            return tokenizer(part, split_special_tokens=True)["input_ids"]

        start, end = (tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
        ids = [start, *literal(f"assistant\n{text}"), end, *literal("\n"), start, *literal("assistant\n")]
        special = official != ids
        found.append({"text": text, "special": special, "official_ids": official, "literal_ids": ids})
    return found
