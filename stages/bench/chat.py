"""`vivavoce bench chat`: decoding, first token and several clients, beside mlx-lm's own loop on the same weights.

Everything runs in this process, by turns: our engine, then mlx-lm, then ours again. The end of a reply is out of
reach, so that each run has the same number of tokens. Ratios are medians of those of each run, so that other work
on the machine weighs on both sides.
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
PHASE_S = 30.0
"""What decoding may take in a phase at the rate that the warm-up saw, were clients served one behind the other;
there are fewer tokens if need be."""
LEAST = 8
"""Tokens of a warm-up, and of any phase."""


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
    faster: float
    """Cold through continued."""
    decode_mlx_lm: float | None = None
    ttft_mlx_lm_s: float | None = None
    decode_ratio: float | None = None
    """Ours through theirs, as below."""
    ttft_ratio: float | None = None


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
    say("warming up")
    rates = [runner.ours(LEAST), *([runner.theirs(LEAST)] if args.against else [])]
    args.tokens = bounded(args.tokens, min(rates))
    seen: dict[str, list[float]] = {}
    for run in range(args.runs):
        for phase, measure in runner.phases(run).items():
            say(f"run {run + 1} of {args.runs}: {phase}")
            for figure, value in measure().items():
                seen.setdefault(figure, []).append(value)
    clients: dict[int, float] = {}
    for count in CLIENTS:
        say(f"{count} clients")
        clients[count] = runner.ours(bounded(args.tokens, min(rates) / count), count)
    middle: dict[str, Any] = {figure: statistics.median(values) for figure, values in seen.items()}
    result = ChatResult(**setting(name, machine, args), load=_load(), clients=clients, **middle)
    device.release()
    return _table(result), msgspec.json.encode(result).decode()


def bounded(tokens: int, rate: float) -> int:
    """As many of the tokens as a phase has time for at so many a second."""
    return min(tokens, max(LEAST, int(rate * PHASE_S)))


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
        self._ends: frozenset[int] = model.turn_ends
        # No token ends a reply in mlx-lm's loop, nor in our engine where it decodes.
        model.tokenizer.eos_token_ids = set()
        self._args = args
        self._words: list[int] = model.tokenizer.encode(WORDS, add_special_tokens=False)

    def phases(self, run: int) -> dict[str, Callable[[], dict[str, float]]]:
        """What is measured in a run, by name; each gives figures of `ChatResult`."""
        return {"decoding": self._decoding, "first tokens": lambda: self._first_tokens(run)}

    def _decoding(self) -> dict[str, float]:
        ours = self.ours(self._args.tokens)
        if not self._args.against:
            return {"decode": ours}
        theirs = self.theirs(self._args.tokens)
        return {"decode": ours, "decode_mlx_lm": theirs, "decode_ratio": ours / theirs}

    def _first_tokens(self, run: int) -> dict[str, float]:
        cold, continued = self.ttft(run)
        figures = {"ttft_cold_s": cold, "ttft_continued_s": continued, "faster": cold / continued}
        if self._args.against:
            theirs = self.ttft_theirs(run)
            figures |= {"ttft_mlx_lm_s": theirs, "ttft_ratio": cold / theirs}
        return figures

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

    def ours(self, tokens: int, clients: int = 1) -> float:
        """Tokens per second after the first ones."""
        from ..chat.events import Delta

        self._model.turn_ends = frozenset()
        engine = self._engine()
        for n in range(clients):
            engine.submit(self._request(str(n), self._words, tokens))
        while engine.running < clients or len(engine.rows()) < clients:
            engine.step()
        engine.step()
        started, count = time.perf_counter(), 0
        while engine.busy:
            count += sum(event.tokens for event in engine.step() if isinstance(event, Delta))
        return count / (time.perf_counter() - started)

    def theirs(self, tokens: int) -> float:
        """Tokens per second of mlx-lm's loop with its detokeniser, after the first one."""
        from mlx_lm.generate import stream_generate

        model = self._model
        told = stream_generate(model.net, model.tokenizer, self._words, max_tokens=tokens)
        next(told)
        started = time.perf_counter()
        count = sum(1 for _ in told)
        return count / (time.perf_counter() - started)

    def _prompt(self, run: int) -> list[int]:
        """Different in every run from the first token on, so that no cache has any of it."""
        length: int = self._args.prompt_tokens
        repeated = self._words * (length // len(self._words) + 1)
        return [self._words[run % len(self._words)], *repeated][:length]

    def ttft(self, run: int) -> tuple[float, float]:
        """Seconds to the first token of a new conversation, and of its next turn behind a short answer."""
        self._model.turn_ends = self._ends
        # As templates have it, something stands between the end of a turn and the answer.
        end = [*sorted(self._ends)[:1], *self._words[:3]]
        engine, turn = self._engine(), [*self._prompt(run), *end]
        cold = _first(engine, self._request("cold", turn, 1))
        following = [*turn, *self._words, *self._words, *end, *self._words, *end]
        return cold, _first(engine, self._request("next", following, 1))

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

    def add(label: str, mine: str, other: float | None = None, ratio: float | None = None) -> None:
        rows.append([label, mine, *([] if other is None else [f"{other:.1f}", f"{ratio:.3f}"])])

    add("decode, tokens/s", f"{result.decode:.1f}", result.decode_mlx_lm, result.decode_ratio)
    cold = result.ttft_mlx_lm_s and result.ttft_mlx_lm_s * 1e3
    label = f"first token, {result.prompt_tokens} new tokens, ms"
    add(label, f"{result.ttft_cold_s * 1e3:.1f}", cold, result.ttft_ratio)
    continued = f"{result.ttft_continued_s * 1e3:.1f} ({result.faster:.1f} times faster)"
    add("first token, next turn of it, ms", continued)
    for count, rate in result.clients.items():
        add(f"{count} clients, tokens/s together", f"{rate:.1f}")
    width = max(len(row[0]) for row in rows)
    lines = ["  ".join([row[0].ljust(width), *(cell.rjust(14) for cell in row[1:])]) for row in rows]
    head = f"{result.model}, {result.tokens} tokens, {result.runs} runs by turns, medians; load {result.load}"
    return "\n".join([head, result.device, "", *lines])
