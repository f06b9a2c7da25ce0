"""`vivavoce bench chat --against mlx-lm-server`: what a client sees of both servers, on the same model, by turns.

Each server runs in a process of its own, and one at a time is asked. Rates count from the first token on; first
tokens count from the request. The servers have their own defaults.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from socket import create_server
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from ...bus.errors import StartError
from ...configs.models import find, split_name
from .. import device
from .chat import CLIENTS, WORDS, Setting, bounded, setting
from .table import aligned

OURS = "import sys; from vivavoce.api.cli import main; sys.exit(main())"
THEIRS = """
import sys
from vivavoce.stages import device
device.setup()
import mlx.core as mx
if device.on_cpu(): mx.disable_compile()
from mlx_lm.server import main
main()
"""
"""mlx-lm's server with the BLAS that ours has; on a CPU its compiled parts need a C++ compiler."""
START_S = 300.0
POLL_S = 0.2

Messages = list[dict[str, str]]


class Seen(NamedTuple):
    ttft_s: float
    tokens: int
    rate: float
    """Tokens per second behind the first one."""
    text: str


class Side(msgspec.Struct, kw_only=True):
    """What was seen of one server; medians of the runs."""

    decode: float
    """Tokens per second."""
    ttft_cold_s: float
    """First token of a new conversation."""
    ttft_continued_s: float
    """First token of its next turn."""
    ttft_edited_s: float
    """First token of that turn, put otherwise."""
    clients: dict[int, float]
    """Tokens per second of so many clients together, prompts included."""


class HttpResult(Setting, kw_only=True):
    vivavoce: Side
    mlx_lm_server: Side


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[str, str]:
    """(table, JSON). Raises StartError where a server does not start."""
    name, where = split_name(args.model)
    source = str(find(where))
    ours = ["-c", OURS, "serve", "--layout", "chat", "--chat-model", f"bench={source}"]
    theirs = ["-c", THEIRS, "--model", source, "--log-level", "ERROR"]
    with ExitStack() as stack:
        say("starting vivavoce")
        servers = [stack.enter_context(Server(ours, "bench"))]
        say("starting mlx-lm's server")
        servers.append(stack.enter_context(Server(theirs, source)))
        sides = [
            Runs(server, args, lambda phase, name=name: say(f"{name}: {phase}"))
            for server, name in zip(servers, ("vivavoce", "mlx-lm's server"), strict=True)
        ]
        rate = min([side.warm_up() for side in sides])
        for run in range(args.runs):
            for side in sides:
                side.run(run, rate)
        results = [side.result() for side in sides]
    args.tokens = bounded(args.tokens, rate)
    result = HttpResult(
        **setting(name, device.setup(), args),
        vivavoce=results[0],
        mlx_lm_server=results[1],
    )
    device.release()
    return table(result), msgspec.json.encode(result).decode()


class Server:
    """A process that serves OpenAI's chat, from its first answer until it is left."""

    def __init__(self, command: list[str], model: str) -> None:
        with create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.model = model
        self._command = [sys.executable, *command, "--port", str(self.port)]

    def __enter__(self) -> Self:
        """:raises StartError: it ends, or does not answer in time."""
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=self._said)
        end = time.monotonic() + START_S
        try:
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() > end:
                    self._said.seek(0)
                    raise StartError(f"the server of {self.model} did not start: {self._said.read()[-300:]}")
                time.sleep(POLL_S)  # mlx-lm's server does not say when it is ready
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._said.close()

    def chat(self, messages: Messages, tokens: int) -> Seen:
        """The likeliest continuation of a conversation.

        :raises StartError: the server refuses it.
        """
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": tokens}
        body |= {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
        begun, first, last, count, text = time.perf_counter(), 0.0, 0.0, 0, ""
        for event in self._events(body):
            usage = event.get("usage") or {}
            count = usage.get("completion_tokens", count)
            if event["choices"] and (part := event["choices"][0]["delta"].get("content")):
                last = time.perf_counter()
                first, text = first or last, text + part
        if not first:
            raise StartError(f"{self.model} said nothing: bench a model that goes on for {tokens} tokens")
        return Seen(first - begun, count, (count - 1) / (last - first) if last > first else 0.0, text)

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise StartError(f"{self.model}: {answer.read().decode()[:300]}")
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
        connection.close()


class Runs:
    """Measures one server."""

    def __init__(self, server: Server, args: argparse.Namespace, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._args = args
        self._long = WORDS * max(1, args.prompt_tokens // len(WORDS.split()))
        self._seen: dict[str, list[float]] = {name: [] for name in ("decode", "cold", "continued", "edited")}
        self._clients: dict[int, list[float]] = {count: [] for count in CLIENTS}

    def warm_up(self) -> float:
        """Everything once, briefly; tokens per second of one client."""
        seen, _ = self._measure("of the warm-up", 0.0)
        return seen["decode"]

    def run(self, number: int, rate: float) -> None:
        """One round, of as many tokens as there is time for at that rate."""
        seen, rates = self._measure(f"of run {number + 1}", rate)
        for name, value in seen.items():
            self._seen[name].append(value)
        for count, rate in rates.items():
            self._clients[count].append(rate)

    def _measure(self, name: str, rate: float) -> tuple[dict[str, float], dict[int, float]]:
        """Seconds to first tokens and tokens per second of one client, and of several."""
        self._say(f"first token {name}")
        # Each run has words of its own at the beginning, so that no cache has any of it.
        cold: Messages = [{"role": "user", "content": f"Text {name}: {self._long}"}]
        first = self._server.chat(cold, 2)
        turn = [*cold, {"role": "assistant", "content": first.text}]
        self._say(f"first token of the next turn {name}")
        continued = self._server.chat(
            [*turn, {"role": "user", "content": "And what does the fox do now?"}], 2
        )
        edited = self._server.chat([*turn, {"role": "user", "content": "Who is it that sleeps there?"}], 2)
        self._say(f"decoding {name}")
        story = [{"role": "user", "content": f"Story {name}: {WORDS}"}]
        decode = self._server.chat(story, bounded(self._args.tokens, rate))
        rates: dict[int, float] = {}
        for count in CLIENTS:
            self._say(f"{count} clients {name}")
            rates[count] = self._together(count, name, bounded(self._args.tokens, rate / count))
        firsts = {"cold": first.ttft_s, "continued": continued.ttft_s, "edited": edited.ttft_s}
        return {**firsts, "decode": decode.rate}, rates

    def _together(self, count: int, name: str, tokens: int) -> float:
        """Tokens per second of so many clients."""

        def one(client: int) -> int:
            words = f"Client {client} of {count}, run {name}: {WORDS}"
            return self._server.chat([{"role": "user", "content": words}], tokens).tokens

        begun = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            made = sum(threads.map(one, range(count)))
        return made / (time.perf_counter() - begun)

    def result(self) -> Side:
        seen = {name: statistics.median(values) for name, values in self._seen.items()}
        return Side(
            decode=seen["decode"],
            ttft_cold_s=seen["cold"],
            ttft_continued_s=seen["continued"],
            ttft_edited_s=seen["edited"],
            clients={count: statistics.median(rates) for count, rates in self._clients.items()},
        )


def table(result: HttpResult) -> str:
    ours, theirs = result.vivavoce, result.mlx_lm_server
    rows = [["", "vivavoce", f"mlx_lm.server {result.mlx_lm}", "ours ÷ theirs"]]

    def add(label: str, mine: float, other: float, digits: int = 1) -> None:
        rows.append([label, f"{mine:.{digits}f}", f"{other:.{digits}f}", f"{mine / other:.3f}"])

    add("decode, tokens/s", ours.decode, theirs.decode)
    for label, name in (("new", "cold"), ("next turn", "continued"), ("edited turn", "edited")):
        mine, other = (getattr(side, f"ttft_{name}_s") * 1e3 for side in (ours, theirs))
        add(f"first token, {label}, ms", mine, other, 0)
    for count, rate in ours.clients.items():
        add(f"{count} clients, tokens/s together", rate, theirs.clients[count])
    head = (
        f"{result.model}, {result.tokens} tokens, prompts of about {result.prompt_tokens}, "
        f"{result.runs} runs by turns over HTTP, medians"
    )
    return "\n".join([head, result.device, "", *aligned(rows)])
