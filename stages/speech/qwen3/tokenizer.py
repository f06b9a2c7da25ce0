"""Text → ids. Special-token strings in a user's text are text; the templates around it are id lists."""

from pathlib import Path
from typing import Protocol

from .config import CheckpointError, ModelConfig


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...


class BytePairTokenizer:
    """The checkpoint's Qwen2 byte-pair vocabulary without its added tokens: text never becomes a special one."""

    def __init__(self, path: Path) -> None:
        """:raises CheckpointError: neither tokenizer.json nor vocab.json with merges.txt is in `path`."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        if (path / "tokenizer.json").is_file():
            stored = Tokenizer.from_file(str(path / "tokenizer.json"))
            self._tokenizer = Tokenizer(stored.model)
            self._tokenizer.normalizer = stored.normalizer
            self._tokenizer.pre_tokenizer = stored.pre_tokenizer
        elif (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
            self._tokenizer = Tokenizer(
                models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
            )
            self._tokenizer.normalizer = normalizers.NFC()
            self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(WORDS), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        else:
            raise CheckpointError(
                f"{path} has no tokenizer.json, nor vocab.json with merges.txt: fetch the model again."
            )

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text into words before byte-pair merging; its tokenizer.json holds the same pattern."""


class ByteTokenizer:
    """One id per UTF-8 byte, for models without a vocabulary (random weights)."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Templates:
    """Id lists around texts. A turn's words are cut together with its role's name, as the official code does."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._encode = tokenizer.encode
        self._start, self._end = config.im_start_token_id, config.im_end_token_id
        self._role = 1 + len(tokenizer.encode("assistant\n"))

    def spoken(self, text: str) -> tuple[list[int], list[int]]:
        """(ids of `<|im_start|>assistant\\n`, ids of the text to speak)."""
        ids = [self._start, *self._encode(f"assistant\n{text}")]
        return ids[: self._role], ids[self._role :]

    def instruction(self, text: str) -> list[int]:
        """`<|im_start|>user\\n` text `<|im_end|>\\n`: a turn that says how to speak."""
        return [self._start, *self._encode(f"user\n{text}"), self._end, *self._encode("\n")]
