"""Chat models for the tests: the real small one, made once from its wheel, and tiny random ones of each kind."""

# A real BLAS has to be in the process before MLX is.
# ruff: noqa: E402

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vivavoce.stages.device import load_blas

load_blas()

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import gemma3_text, llama, qwen3_next
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vivavoce.bus.messages import ChatDone, ChatFinished
from vivavoce.stages.chat.engine import Engine
from vivavoce.stages.chat.events import Delta, Failed, Request, Started, ToolCall
from vivavoce.stages.chat.model import ChatModel, KvOptions, load_model
from vivavoce.stages.chat.reply import Style

SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROOT = Path(__file__).parents[3]
HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
"""The user's own cache: what tests make there outlives a session."""


@dataclass
class Outcome:
    """What a request came to."""

    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    reasoning: str = ""
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    """By id, from their parts."""
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    stop: str | None = None
    logprobs: list[Any] = field(default_factory=list[Any])
    started: Started | None = None
    done: ChatDone | None = None
    failed: str | None = None


def outcome_of(engine: Engine, steps: int | None = None) -> dict[str, Outcome]:
    """Run an engine until it is idle, or for some slices."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    while engine.busy and steps != 0:
        steps = None if steps is None else steps - 1
        for event in engine.step():
            one = outcomes[event.request]
            match event:
                case Started():
                    one.started = event
                case Delta():
                    one.text[event.choice] += event.text
                    one.reasoning += event.reasoning
                    for part in event.calls:
                        before = one.calls.get(part.id, ToolCall(part.name, "", part.id))
                        one.calls[part.id] = ToolCall(part.name, before.arguments + part.arguments, part.id)
                    one.logprobs += event.logprobs
                case ChatFinished():
                    assert event.choice not in one.reasons
                    one.reasons[event.choice] = event.reason
                    one.stop = event.stop
                case ChatDone():
                    assert one.done is None
                    one.done = event
                case Failed():
                    one.failed = event.message
    return outcomes


@pytest.fixture(scope="session")
def run() -> Callable[..., dict[str, Outcome]]:
    return outcome_of


@pytest.fixture(scope="session")
def ask() -> Callable[..., Outcome]:
    """Submit one request of plain tokens and run the engine until it is idle."""

    def ask(engine: Engine, prompt: list[int], **fields: Any) -> Outcome:
        engine.submit(plain_request(engine.model, "r", prompt, **fields))
        return outcome_of(engine)["r"]

    return ask


def plain_request(model: ChatModel, name: str, prompt: list[int], **fields: Any) -> Request:
    return Request(id=name, prompt=prompt, style=Style(decode=model.decode), **fields)


@pytest.fixture(scope="session")
def request_of() -> Callable[..., Request]:
    return plain_request


def tiny_tokenizer(template: str = CHATML) -> TokenizerWrapper:
    """256 bytes and a few special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = template
    return TokenizerWrapper(fast, eos_token_ids=[fast.convert_tokens_to_ids("<|im_end|>")])


VOCAB = 256 + len(SPECIAL)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 1024,
}
GEMMA = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 24, "sliding_window_pattern": 2}
NEXT = {
    **LLAMA,
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "num_experts_per_tok": 1,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "norm_topk_prob": True,
}
ARCHITECTURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (llama, LLAMA),
    "sliding": (gemma3_text, GEMMA),
    "hybrid": (qwen3_next, NEXT),
}


def tiny(kind: str, options: KvOptions | None = None, seed: int = 0, scale: float = 4.0) -> ChatModel:
    """A random model; `scale` spreads its logits so that greedy answers wander."""
    module, config = ARCHITECTURES[kind]
    mx.random.seed(seed)
    net = module.Model(module.ModelArgs.from_dict(config))
    net.update(_scaled(net.parameters(), scale))
    mx.eval(net.parameters())
    return ChatModel(net, tiny_tokenizer(), config, options)


def _scaled(tree: Any, scale: float) -> Any:
    def spread(array: mx.array) -> mx.array:
        return array * scale if array.ndim > 1 else array

    return tree_map(spread, tree)


@pytest.fixture(scope="session")
def tiny_models() -> Callable[..., ChatModel]:
    """Makes each tiny model once."""
    made: dict[Any, ChatModel] = {}

    def get(kind: str = "llama", options: KvOptions | None = None, seed: int = 0) -> ChatModel:
        if (kind, options, seed) not in made:
            made[kind, options, seed] = tiny(kind, options, seed)
        return made[kind, options, seed]

    return get


@pytest.fixture(scope="package", autouse=True)
def uncompiled() -> Iterator[None]:
    """On a CPU compiling takes longer than all that these models compute."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in fp32, which a CPU computes fastest."""
    folder = HOME / "vivavoce" / "tests" / "smollm2-fp32"
    if not (folder / "tokenizer_config.json").exists():
        tool = ROOT / "tools" / "smollm2" / "make.py"
        subprocess.run([sys.executable, str(tool), str(folder), "--dequantize", "fp32"], check=True)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> ChatModel:
    return load_model(str(smollm2_folder))
