"""Speech over HTTP: what the API adds to first audio, and many clients at once, with and without one that stalls.

    python tools/bench_http.py                    first audio beside in-process, then 8, 32 and 100 clients
    python tools/bench_http.py --rounds 0 --clients 8,32 --requests 3 --layout split --model FOLDER --voice NAME

The clients are a process of their own, on plain sockets: they take none of the server's event loop. A client asks
again as soon as it has its answer. In-process and HTTP take turns, so that what else the machine does meets both.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import urlopen

import anyio
import msgspec
from anyio.abc import Process, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec.structs import replace

from vivavoce.api.serve import bind, serve_running
from vivavoce.bus.layout import Layout, load
from vivavoce.bus.messages import Speak
from vivavoce.bus.running import Running

TEXT = "The first frame of this sentence leaves the machine before the second one is begun."
BYTES_A_SECOND = 48_000
HEAD = (
    "POST /v1/audio/speech HTTP/1.1\r\nHost: bench\r\n"
    "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)


class Task(msgspec.Struct):
    """What the clients' process is told to do."""

    body: dict[str, Any]
    clients: int = 1
    requests: int = 1
    """Of each client."""
    stalled: bool = False
    """Whether one more client asks for a long text and reads only the head of the answer."""


class Result(msgspec.Struct):
    """One answer, as its client saw it."""

    ttfa_s: float
    audio_s: float
    underrun_s: float
    """How long a player that started with the first byte had nothing to play."""


class Report(msgspec.Struct):
    took_s: float
    results: list[Result]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure speech over HTTP.")
    parser.add_argument("--layout", default="speech", help="a layout's name or file (default: speech)")
    parser.add_argument("--model", help="`embedded`, a folder or a hub id (default: the layout's)")
    parser.add_argument("--voice", help="default: the model's first")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--rounds", type=int, default=40, help="pairs of requests; 0 leaves them out")
    parser.add_argument("--clients", default="8,32,100", help="numbers of clients; empty leaves them out")
    parser.add_argument("--requests", type=int, default=2, help="of each client (default: 2)")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    anyio.run(_be_clients, args.port) if args.port else anyio.run(_measure, args)


async def _measure(args: argparse.Namespace) -> None:
    counts = [int(number) for number in args.clients.split(",") if number]
    layout = load(args.layout)
    if args.model is not None:
        layout = replace(layout, speech=replace(layout.speech, models=(args.model,)))
    # Nobody is refused: who has to wait, waits.
    layout = replace(layout, api=replace(layout.api, max_queued=max([0, *counts]) + 1))
    async with Running(layout) as running, _serving(running) as port, _clients(port) as clients:
        body = {"input": args.text, "voice": args.voice, "response_format": "pcm", "seed": 1}
        if args.rounds:
            await _compare(running, clients, layout, body, args.rounds)
        if counts:
            places = layout.api.max_concurrent
            print(
                f"\n{places} requests at once, the others wait    first audio, ms     underrun, s    throughput"
            )
            print("clients                                    p50      p95    mean     max    audio s / s")
        for count in counts:
            for stalled in (False, True):
                await _crowd(clients, Task(body, count, args.requests, stalled))


@asynccontextmanager
async def _serving(running: Running) -> AsyncGenerator[int]:
    bound, stop, up = bind("127.0.0.1", 0), anyio.Event(), anyio.Event()
    port = bound.getsockname()[1]

    async def serve() -> None:
        await serve_running(running, bound, stop, listening=lambda _: up.set())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await up.wait()
        yield port
        stop.set()


class Clients:
    """The clients' process, seen from the server's."""

    def __init__(self, process: Process) -> None:
        assert process.stdin
        assert process.stdout
        self._tell = process.stdin
        self._told = BufferedByteReceiveStream(process.stdout)

    async def do(self, task: Task) -> Report:
        await self._tell.send(msgspec.json.encode(task) + b"\n")
        return msgspec.json.decode(await self._told.receive_until(b"\n", 1 << 24), type=Report)


@asynccontextmanager
async def _clients(port: int) -> AsyncGenerator[Clients]:
    command = [sys.executable, __file__, "--port", str(port)]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stderr=None) as process:
        yield Clients(process)
        process.kill()


async def _compare(
    running: Running, clients: Clients, layout: Layout, body: dict[str, Any], rounds: int
) -> None:
    direct: list[float] = []
    http: list[float] = []
    model = next(model for model in running.models if model.family == "speech")
    task = Task({**body, "max_new_tokens": 2})
    for number in range(rounds + 3):
        speak = Speak(
            request=f"bench-{number}",
            model=model.name,
            text=body["input"],
            voice=body["voice"] or next(iter(model.voices), None),
            seed=body["seed"],
            max_frames=2,
            lookahead=layout.speech.lookahead_frames,
        )
        began = time.perf_counter()
        async with running.client.speak(speak, chunk=layout.speech.max_chunk_frames) as request:
            arrived = [request.arrived async for audio in request if audio.data]
        direct.append(arrived[0] - began)
        http += [result.ttfa_s for result in (await clients.do(task)).results]
    direct, http = direct[3:], http[3:]  # the first ones find cold caches
    print(f"first audio, ms ({rounds} pairs)    p50     p95")
    for name, times in (("in-process", direct), ("over HTTP", http)):
        print(f"  {name:22}{_percentile(times, 50) * 1e3:10.1f}{_percentile(times, 95) * 1e3:8.1f}")
    added = [(over - inside) * 1e3 for over, inside in zip(http, direct, strict=True)]
    print(f"  HTTP adds {statistics.median(added):.2f} ms (median of the pairs' differences)")


async def _crowd(clients: Clients, task: Task) -> None:
    report = await clients.do(task)
    results = report.results
    times, gaps = [result.ttfa_s for result in results], [result.underrun_s for result in results]
    audio = sum(result.audio_s for result in results)
    name = f"{task.clients}, and one that stalls" if task.stalled else f"{task.clients}"
    print(
        f"{name:38}{_percentile(times, 50) * 1e3:8.0f}{_percentile(times, 95) * 1e3:9.0f}"
        f"{statistics.mean(gaps):8.2f}{max(gaps):8.2f}{audio / report.took_s:15.2f}",
        flush=True,
    )


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


async def _be_clients(port: int) -> None:
    for line in sys.stdin:
        report = await _work(port, msgspec.json.decode(line, type=Task))
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        sys.stdout.flush()


async def _work(port: int, task: Task) -> Report:
    results: list[Result] = []

    async def client(number: int) -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            for turn in range(task.requests):
                body = {**task.body, "seed": task.body["seed"] + number * task.requests + turn}
                results.append(await _ask(stream, body))

    async with await anyio.connect_tcp("127.0.0.1", port) as stalled:
        if task.stalled:
            await _send(stalled, {**task.body, "input": f"{task.body['input']} " * 20})
            await BufferedByteReceiveStream(stalled).receive_until(b"\r\n\r\n", 1 << 16)
            await _stands_still(port)
        began = time.perf_counter()
        async with anyio.create_task_group() as crowd:
            for number in range(task.clients):
                crowd.start_soon(client, number)
        return Report(time.perf_counter() - began, results)


async def _stands_still(port: int) -> None:
    """Until the server has made what it makes ahead for a client that does not read."""
    before = -1
    while (steps := _device_steps(port)) != before:
        before = steps
        await anyio.sleep(0.5)


def _device_steps(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return sum(process["device_steps"] for process in json.load(answer)["processes"])


async def _send(stream: SocketStream, body: dict[str, Any]) -> None:
    data = json.dumps(body)
    await stream.send((HEAD.format(len(data)) + data).encode())


async def _ask(stream: SocketStream, body: dict[str, Any]) -> Result:
    began = time.perf_counter()
    await _send(stream, body)
    answer = BufferedByteReceiveStream(stream)
    head = await answer.receive_until(b"\r\n\r\n", 1 << 16)
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server answered {head.decode().splitlines()[0]}")
    first = audio_s = underrun_s = 0.0
    while size := int(await answer.receive_until(b"\r\n", 64), 16):
        await answer.receive_exactly(size + 2)
        now = time.perf_counter()
        first = first or now
        underrun_s += max(0.0, now - (first + underrun_s + audio_s))
        audio_s += size / BYTES_A_SECOND
    await answer.receive_exactly(2)
    return Result(first - began, audio_s, underrun_s)


if __name__ == "__main__":
    main()
