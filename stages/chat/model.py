"""A chat model as mlx-lm loads it, with what its caches allow. Everything wrong is told at the start."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import load

from ...bus.errors import StartError
from . import kv
from .calls import CallFormat, call_format
from .grammar import GrammarCompiler
from .template import Template
from .text import Decode

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")

KEPT = 4
"""Tokens at the very beginning that a bounded cache never drops (attention sinks, Xiao et al. 2023)."""


class KvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bits: int | None = None
    """--kv-bits: 4 or 8, keys and values are kept quantised."""
    group_size: int = 64
    """--kv-group-size"""
    max_size: int | None = None
    """--max-kv-size: tokens kept; the oldest but the first KEPT make room."""


class ChatModel:
    """Weights, tokenizer and layer caches of one model. Lives on the thread that made it."""

    def __init__(
        self, net: Any, tokenizer: Any, config: dict[str, Any], kv_options: KvOptions | None = None
    ) -> None:
        """`net` and `tokenizer` are mlx-lm's. Runs a few tokens; raises StartError if the options do not fit."""
        self.net = net
        self.tokenizer = tokenizer
        self.config = config
        self.options = kv_options or KvOptions()
        self.name = str(config.get("model_type", type(net).__name__))
        self.context = _context(config)
        self.turn_ends: frozenset[int] = frozenset(int(token) for token in tokenizer.eos_token_ids)
        self.cache_kinds = kv.kinds(make_prompt_cache(net))
        _check(self.options, self.name, self.cache_kinds)
        self.vocab = self._try_out()
        self.batchable = kv.batchable(self.new_caches()) and self._try_batch()
        self.trimmable = kv.trimmable(self.new_caches())
        ends = mx.array(sorted(self.turn_ends), mx.uint32)
        self.not_ends = mx.ones((self.vocab,), mx.bool_).at[ends].multiply(False)
        """bool [V], false for the tokens that end a reply."""
        self.most_letters = self.context * max(map(len, tokenizer.get_vocab()))
        """No longer text fits into the context."""
        self.template = Template(tokenizer)
        self.call_format: CallFormat = call_format(tokenizer)
        self.think = _think(tokenizer)
        self.think_end = _single(tokenizer, self.think[1]) if self.think else None
        """The token that ends reasoning, where one does."""
        self._grammars: GrammarCompiler | None = None

    @property
    def size(self) -> str:
        """Parameters, such as `135M` or `7.2B`; a quantised weight counts as what it stands for."""
        leaves: Any = tree_flatten(self.net.parameters())
        bits = (self.config.get("quantization") or {}).get("bits", 32)
        count = sum(
            leaf.size * (32 // bits if leaf.dtype == mx.uint32 else 1)
            for name, leaf in leaves
            if not name.endswith((".scales", ".biases"))
        )
        return f"{count / 1e9:.2g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"

    @property
    def grammars(self) -> GrammarCompiler:
        """Made when first needed, as it takes up to a second. Raises RequestError where the tokenizer has none."""
        if self._grammars is None:
            inner = getattr(self.tokenizer, "_tokenizer", self.tokenizer)
            self._grammars = GrammarCompiler(inner, self.vocab, sorted(self.turn_ends))
        return self._grammars

    @property
    def decode(self) -> Decode:
        tokenizer = self.tokenizer

        def decode(tokens: list[int]) -> str:
            return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

        return decode

    @property
    def silent(self) -> frozenset[int]:
        """Special tokens that are no marker of reasoning or calls."""
        markers = {*(self.think or ()), self.call_format.start, self.call_format.end}
        named = zip(self.tokenizer.all_special_ids, self.tokenizer.all_special_tokens, strict=True)
        return frozenset(token for token, text in named if not any(text in marker for marker in markers))

    def new_caches(self) -> kv.Caches:
        caches: kv.Caches = make_prompt_cache(self.net)
        options = self.options
        if options.max_size is not None:
            return [RotatingKVCache(options.max_size, keep=KEPT) for _ in caches]
        if options.bits is not None:
            plain = {"group_size": options.group_size, "bits": options.bits}
            return [cache.to_quantized(**plain) if isinstance(cache, KVCache) else cache for cache in caches]
        return caches

    def _try_out(self) -> int:
        """Read two tokens and one more; return the width of the logits."""
        caches = self.new_caches()
        try:
            self.net(mx.array([[0, 0]]), cache=caches)
            logits = self.net(mx.array([[0]]), cache=caches)
            kv.evaluate(logits, [leaf.state for leaf in kv.leaves(caches)])
        except (ValueError, RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            raise StartError(
                f"{self.name} cannot run with {_told(self.options)} ({', '.join(self.cache_kinds)}): {error}"
            ) from error
        return int(logits.shape[-1])

    def _try_batch(self) -> bool:
        rows = [self.new_caches() for _ in range(2)]
        try:
            for row, length in zip(rows, (2, 3), strict=True):
                self.net(mx.array([[0] * length]), cache=row)
            mx.eval(self.net(mx.array([[0], [0]]), cache=kv.merge(rows)))
        except (ValueError, RuntimeError, AttributeError, NotImplementedError, TypeError):
            return False
        return True


def load_model(source: str, kv_options: KvOptions | None = None) -> ChatModel:
    """Load a folder in mlx-lm's form, or a hub id. Raises StartError."""
    path = Path(source).expanduser()
    try:
        loaded: Any = load(str(path) if path.exists() else source, return_config=True)
    except (OSError, ValueError, KeyError) as error:
        raise StartError(f"The chat model {source} cannot be loaded: {error}") from error
    net, tokenizer, config = loaded
    return ChatModel(net, tokenizer, config, kv_options)


def check_draft(model: ChatModel, draft: ChatModel) -> None:
    """Raise StartError unless `draft` can guess for `model`: same tokens, and caches that can be trimmed."""
    for one, what in ((model, "The chat model"), (draft, "The draft model")):
        if not one.trimmable:
            raise StartError(
                f"{what} ({one.name}) cannot take back guesses: its caches are {', '.join(one.cache_kinds)}."
                " Leave out --draft-model."
            )
    words, guesses = model.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if words != guesses:
        differing = sum(words.get(token) != index for token, index in guesses.items())
        raise StartError(
            f"The draft model's vocabulary ({len(guesses)} tokens) is not the chat model's ({len(words)} tokens):"
            f" {differing} tokens differ. Choose a draft model of the same family."
        )


def _check(options: KvOptions, name: str, cache_kinds: list[str]) -> None:
    if options.max_size is not None and cache_kinds != [KVCache.__name__]:
        raise StartError(
            f"--max-kv-size cannot be used with {name}: its layers keep {', '.join(cache_kinds)}."
        )
    if options.max_size is not None and options.max_size < 16:
        raise StartError("--max-kv-size must be at least 16.")
    if options.bits is None:
        return
    if options.bits not in (4, 8):
        raise StartError(f"--kv-bits must be 4 or 8, not {options.bits}.")
    if options.group_size not in (32, 64, 128):
        raise StartError(f"--kv-group-size must be 32, 64 or 128, not {options.group_size}.")
    if options.max_size is not None:
        raise StartError("--kv-bits cannot be used together with --max-kv-size.")
    odd = [kind for kind in cache_kinds if kind not in (KVCache.__name__, ArraysCache.__name__)]
    if odd or KVCache.__name__ not in cache_kinds:
        raise StartError(
            f"--kv-bits cannot be used with {name}: its layers keep {', '.join(odd or cache_kinds)}."
        )


def _told(options: KvOptions) -> str:
    given = {"--kv-bits": options.bits, "--max-kv-size": options.max_size}
    told = [f"{name} {value}" for name, value in given.items() if value is not None]
    if options.bits is not None:
        told.append(f"--kv-group-size {options.group_size}")
    return " ".join(told) or "its own caches"


def _context(config: dict[str, Any]) -> int:
    """Tokens that fit into prompt and answer together; 2**31 if the configuration sets no limit."""
    for place in (config, config.get("text_config") or {}):
        for key in CONTEXT_KEYS:
            if isinstance(place.get(key), int):
                return int(place[key])
    return 2**31


def _think(tokenizer: Any) -> tuple[str, str] | None:
    return (str(tokenizer.think_start), str(tokenizer.think_end)) if tokenizer.has_thinking else None


def _single(tokenizer: Any, text: str) -> int | None:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens[0] if len(tokens) == 1 else None
