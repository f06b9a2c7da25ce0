"""`vivavoce bench chat`: decoding, first token and several clients, beside mlx-lm's own loop on the same weights.

Everything runs in this process, by turns: our engine, then mlx-lm, then ours again. The end of a reply is out of
reach, so that each run has the same number of tokens.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import msgspec

from ...configs.models import find, split_name
from .. import device

WORDS = "the quick brown fox jumps over a lazy dog and runs on through the wood "
CLIENTS = (1, 4, 8)


class Setting(msgspec.Struct, kw_only=True):
    """What was measured, and where."""

    model: str
    device: str
    mlx_lm: str
    runs: int
    tokens: int
    prompt_tokens: int


class ChatResult(Setting, kw_only=True):
    """Medians of the runs. Rates are tokens per second."""

    load: float
    """Processes that wanted a processor while this ran (one-minute average at the end)."""
    decode: float
    ttft_cold_s: float
    """First token of a prompt of `prompt_tokens`, nothing of it in the prompt cache."""
    ttft_continued_s: float
    """First token of the next turn of the same conversation."""
    clients: dict[int, float]
    """Tokens per second of so many clients together."""
    decode_mlx_lm: float | None = None
    ttft_mlx_lm_s: float | None = None


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[str, str]:
    """(table, JSON). Raises StartError where the model cannot be had."""
    machine = device.setup()
    import mlx.core as mx

    from ..chat.model import load_model

    if device.on_cpu():
        mx.disable_compile()
    name, where = split_name(args.model)
    say(f"loading {name}")
    runner = _Runner(load_model(str(find(where))), args)
    decode: list[float] = []
    theirs: list[float] = []
    cold: list[float] = []
    continued: list[float] = []
    cold_theirs: list[float] = []
    runner.ours()  # the first run makes what later ones find
    for run in range(args.runs):
        say(f"run {run + 1} of {args.runs}")
        decode.append(runner.ours())
        if args.against:
            theirs.append(runner.theirs())
        first, second = runner.ttft(run)
        cold.append(first)
        continued.append(second)
        if args.against:
            cold_theirs.append(runner.ttft_theirs(run))
    say("several clients")
    result = ChatResult(
        **setting(name, machine, args),
        load=_load(),
        decode=statistics.median(decode),
        ttft_cold_s=statistics.median(cold),
        ttft_continued_s=statistics.median(continued),
        clients={count: runner.ours(count) for count in CLIENTS},
        decode_mlx_lm=statistics.median(theirs) if theirs else None,
        ttft_mlx_lm_s=statistics.median(cold_theirs) if cold_theirs else None,
    )
    device.release()
    return _table(result), msgspec.json.encode(result).decode()


def setting(name: str, machine: device.Device, args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `Setting`."""
    return {
        "model": name,
        "device": f"{machine.name}, {machine.description}, {platform.machine()}",
        "mlx_lm": metadata.version("mlx-lm"),
        "runs": args.runs,
        "tokens": args.tokens,
        "prompt_tokens": args.prompt_tokens,
    }


def _load() -> float:
    import psutil

    return round(psutil.getloadavg()[0], 1)


class _Runner:
    """Measures one loaded model, each time with a fresh engine unless said otherwise."""

    def __init__(self, model: Any, args: argparse.Namespace) -> None:
        self._model = model
        # No token ends a reply: neither for our engine nor for mlx-lm's loop.
        model.turn_ends = frozenset()
        model.tokenizer.eos_token_ids = set()
        self._tokens: int = args.tokens
        self._words: list[int] = model.tokenizer.encode(WORDS, add_special_tokens=False)
        self._length: int = args.prompt_tokens

    def _engine(self) -> Any:
        from ..chat.engine import Engine, EngineOptions

        return Engine(self._model, EngineOptions(rows=max(CLIENTS)))

    def _request(self, name: str, prompt: list[int], tokens: int) -> Any:
        from ...bus.messages import Sampling
        from ..chat.events import Request
        from ..chat.reply import Style

        return Request(
            id=name,
            prompt=prompt,
            style=Style(decode=self._model.decode),
            max_tokens=tokens,
            sampling=Sampling(temperature=0),
        )

    def ours(self, clients: int = 1) -> float:
        """Tokens per second after the first ones."""
        from ..chat.events import Delta

        engine = self._engine()
        for n in range(clients):
            engine.submit(self._request(str(n), self._words, self._tokens))
        while engine.running < clients or len(engine.rows()) < clients:
            engine.step()
        engine.step()
        started, count = time.perf_counter(), 0
        while engine.busy:
            count += sum(event.tokens for event in engine.step() if isinstance(event, Delta))
        return count / (time.perf_counter() - started)

    def theirs(self) -> float:
        """Tokens per second of mlx-lm's loop with its detokeniser, after the first one."""
        from mlx_lm.generate import stream_generate

        model = self._model
        told = stream_generate(model.net, model.tokenizer, self._words, max_tokens=self._tokens)
        next(told)
        started = time.perf_counter()
        count = sum(1 for _ in told)
        return count / (time.perf_counter() - started)

    def _prompt(self, run: int) -> list[int]:
        """Different in every run from the first token on, so that no cache has any of it."""
        repeated = self._words * (self._length // len(self._words) + 1)
        return [self._words[run % len(self._words)], *repeated][: self._length]

    def ttft(self, run: int) -> tuple[float, float]:
        """Seconds to the first token of a new conversation and of its next turn, of about the same length."""
        engine, prompt = self._engine(), self._prompt(run)
        cold = _first(engine, self._request("cold", prompt, 1))
        return cold, _first(engine, self._request("next", prompt + self._words, 1))

    def ttft_theirs(self, run: int) -> float:
        from mlx_lm.generate import stream_generate

        started = time.perf_counter()
        next(stream_generate(self._model.net, self._model.tokenizer, self._prompt(run), max_tokens=1))
        return time.perf_counter() - started


def _first(engine: Any, request: Any) -> float:
    from ..chat.events import Delta

    started = time.perf_counter()
    engine.submit(request)
    while not any(isinstance(event, Delta) for event in engine.step()):
        pass
    return time.perf_counter() - started


def _table(result: ChatResult) -> str:
    theirs = result.decode_mlx_lm is not None
    rows = [["", "vivavoce", *([f"mlx-lm {result.mlx_lm}", "ours ÷ theirs"] if theirs else [])]]
    decode = ["decode, tokens/s", f"{result.decode:.1f}"]
    cold = [f"first token, {result.prompt_tokens} new tokens, ms", f"{result.ttft_cold_s * 1e3:.0f}"]
    if result.decode_mlx_lm is not None and result.ttft_mlx_lm_s is not None:
        decode += [f"{result.decode_mlx_lm:.1f}", f"{result.decode / result.decode_mlx_lm:.3f}"]
        cold += [
            f"{result.ttft_mlx_lm_s * 1e3:.0f}",
            f"{result.ttft_cold_s / result.ttft_mlx_lm_s:.3f}",
        ]
    faster = result.ttft_cold_s / result.ttft_continued_s
    rows += [
        decode,
        cold,
        [
            "first token, next turn of it, ms",
            f"{result.ttft_continued_s * 1e3:.0f} ({faster:.1f} times faster)",
        ],
        *[[f"{count} clients, tokens/s together", f"{rate:.1f}"] for count, rate in result.clients.items()],
    ]
    width = max(len(row[0]) for row in rows)
    lines = ["  ".join([row[0].ljust(width), *(cell.rjust(14) for cell in row[1:])]) for row in rows]
    head = f"{result.model}, {result.tokens} tokens, {result.runs} runs by turns, medians; load {result.load}"
    return "\n".join([head, result.device, "", *lines])
