"""What a hop costs over each transport, what several processes cost in speech, and what they cost when idle.

    python tools/bench_links.py                       hops, then `speech` beside `split`, then idling
    python tools/bench_links.py --layouts speech,split,cohost --chat-model FOLDER --runs 20 --text "…"

A hop is half of a round trip: encode, send, wake the other loop, decode, hand over. The layouts take turns within
one run, so that what else the machine does meets all of them.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import zmq
from msgspec.structs import replace

from vivavoce.bus import keys
from vivavoce.bus.channel import Inbox, Mailbox, Sender
from vivavoce.bus.layout import Layout, load
from vivavoce.bus.messages import Codes, Credit, Message, Pcm, Prompt, Speak, Tensor
from vivavoce.bus.running import Running
from vivavoce.bus.wire import Incoming, Outgoing

UNION = Credit | Codes | Pcm | Prompt
ROWS = Tensor("bfloat16", (1, 1, 1024), bytes(2048))
MESSAGES: dict[str, Message] = {
    "credit": Credit(request="r" * 36, frames=1),
    "codes": Codes(request="r" * 36, frame=1, codes=Tensor("int32", (1, 16), bytes(64))),
    "pcm, 1 frame": Pcm(request="r" * 36, frame=1, frames=1, samples=bytes(3840)),
    "prompt, 60 rows": Prompt(
        request="r" * 36,
        prefill=Tensor("bfloat16", (1, 60, 1024), bytes(60 * 2048)),
        trailing=ROWS,
        pad=ROWS,
        text_tokens=50,
    ),
}

SETTLE_S = 3.0
"""After a start, until what it leaves to do is done."""

Ends = tuple[Sender, Inbox]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure links, layouts and idling.")
    parser.add_argument("--hops", type=int, default=2000, help="round trips of each kind; 0 leaves them out")
    parser.add_argument("--layouts", default="speech,split", help="names or files; empty leaves them out")
    parser.add_argument("--chat-model", metavar="FOLDER", help="for layouts with chat, which stays idle")
    parser.add_argument("--runs", type=int, default=10, help="measured requests of each layout")
    parser.add_argument("--text", default="The first frame leaves before the second one is begun.")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch idling; 0 leaves it out")
    parser.add_argument("--echo", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.echo:
        anyio.run(_echo_process, *args.echo)
        return
    if args.hops:
        anyio.run(_hops, args.hops)
    if args.layouts:
        layouts = {name: _with_chat(load(name), args.chat_model) for name in args.layouts.split(",")}
        anyio.run(_layouts, layouts, args.runs, args.text)
        if args.idle:
            for layout in layouts.values():
                anyio.run(_idle, layout, args.idle)


def _with_chat(layout: Layout, model: str | None) -> Layout:
    if model is None or layout.place("chat") is None:
        return layout
    return replace(layout, chat=replace(layout.chat, models=(model,)))


async def _hops(count: int) -> None:
    print(f"{'hop, µs (median of ' + str(count) + ')':28}" + "".join(f"{name:>18}" for name in MESSAGES))
    for name, open_ends in TRANSPORTS.items():
        async with open_ends() as (sender, inbox):
            cells = [await _round_trips(sender, inbox, message, count) for message in MESSAGES.values()]
        print(f"{name:28}" + "".join(f"{cell:18.0f}" for cell in cells), flush=True)


async def _round_trips(sender: Sender, inbox: Inbox, message: Message, count: int) -> float:
    times: list[float] = []
    for _ in range(count + 50):
        began = time.perf_counter()
        await sender.send(message)
        await inbox.receive()
        times.append((time.perf_counter() - began) / 2)
    return statistics.median(times[50:]) * 1e6


async def _echo(inbox: Inbox, sender: Sender) -> None:
    async for message in inbox:
        await sender.send(message)


@asynccontextmanager
async def _memory() -> AsyncGenerator[Ends]:
    there, back = Mailbox(64), Mailbox(64)
    with there.sender() as to, back.sender() as fro:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_echo, there.inbox, fro)
            yield to, back.inbox
            tasks.cancel_scope.cancel()
    there.close()
    back.close()


@asynccontextmanager
async def _linked(
    context: zmq.Context[Any], out: str, back: str, own: keys.Keys | None = None
) -> AsyncGenerator[Ends]:
    """Both ends here of a pair of links."""
    mailbox = Mailbox(64)
    sender, incoming = Outgoing(context, out, own), Incoming(context, back, UNION, own)
    with mailbox.sender() as into:
        async with keys.gate(context, own), anyio.create_task_group() as tasks:
            tasks.start_soon(incoming.pump, into)
            yield sender, mailbox.inbox
            tasks.cancel_scope.cancel()
    sender.close()
    mailbox.close()


@asynccontextmanager
async def _inproc() -> AsyncGenerator[Ends]:
    context: zmq.Context[Any] = zmq.Context()
    stop = threading.Event()

    async def other() -> None:
        async with (
            _linked(context, "inproc://back", "inproc://out") as (sender, inbox),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_echo, inbox, sender)
            await anyio.to_thread.run_sync(stop.wait)
            tasks.cancel_scope.cancel()

    thread = threading.Thread(target=asyncio.run, args=[other()])
    thread.start()
    async with _linked(context, "inproc://out", "inproc://back") as ends:
        yield ends
    stop.set()
    thread.join()
    context.term()


def _other_process(scheme: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Ends]:
        context: zmq.Context[Any] = zmq.Context()
        with tempfile.TemporaryDirectory(prefix="vv") as folder:
            own, file = None, "-"
            out, back = f"ipc://{folder}/out", f"ipc://{folder}/back"
            if scheme == "tcp":
                own, file = keys.make(), f"{folder}/keys"
                keys.write(own, Path(file))
                out, back = "tcp://127.0.0.1:56731", "tcp://127.0.0.1:56732"
            command = [sys.executable, __file__, "--echo", back, out, file]
            async with await anyio.open_process(
                command, stdin=subprocess.PIPE, stdout=None, stderr=None
            ) as child:
                async with _linked(context, out, back, own) as ends:
                    yield ends
                child.kill()
        context.term()

    return opened


async def _echo_process(out: str, back: str, file: str) -> None:
    own = None if file == "-" else keys.read(file)
    async with _linked(zmq.Context(), out, back, own) as (sender, inbox):
        await _echo(inbox, sender)


TRANSPORTS: dict[str, Callable[[], Any]] = {
    "memory (same loop)": _memory,
    "inproc (another thread)": _inproc,
    "ipc (another process)": _other_process("ipc"),
    "tcp with CURVE, loopback": _other_process("tcp"),
}


async def _layouts(layouts: dict[str, Layout], runs: int, text: str) -> None:
    names = list(layouts)
    ttfa: dict[str, list[float]] = {name: [] for name in names}
    rtf: dict[str, list[float]] = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        running = {name: await stack.enter_async_context(Running(layout)) for name, layout in layouts.items()}
        for number in range(-1, runs):
            for name in names if number % 2 else reversed(names):
                first, factor = await _measure(running[name], f"{name}-{number}", text)
                if number >= 0:  # the first of each is for warming up
                    ttfa[name].append(first)
                    rtf[name].append(factor)
    print(f"\n{'layout':12}{'TTFA, ms':>12}{'RTF':>10}{'RTF against ' + names[0]:>24}")
    for name in names:
        pairs = [own / base for own, base in zip(rtf[name], rtf[names[0]], strict=True)]
        print(
            f"{name:12}{statistics.median(ttfa[name]) * 1000:12.1f}{statistics.median(rtf[name]):10.3f}"
            f"{statistics.median(pairs):24.3f}"
        )


async def _measure(running: Running, request: str, text: str) -> tuple[float, float]:
    """Seconds to the first audio, and wall seconds a second of audio."""
    model = next(model for model in running.models if model.family == "speech")
    speak = Speak(request=request, model=model.name, text=text, voice=model.voices[0], seed=3)
    began, first, samples = time.perf_counter(), 0.0, 0
    async with running.client.speak(speak) as spoken:
        async for audio in spoken:
            first = first or time.perf_counter() - began
            samples += audio.samples
    return first, (time.perf_counter() - began) / (samples / model.sample_rate)


async def _idle(layout: Layout, seconds: float) -> None:
    async with Running(layout):
        here = psutil.Process()
        processes = [here, *here.children(recursive=True)]
        await anyio.sleep(SETTLE_S)
        before = [_cpu(process) for process in processes]
        await anyio.sleep(seconds)
        used = [_cpu(process) - was for process, was in zip(processes, before, strict=True)]
        shares = ", ".join(f"{100 * one / seconds:.2f} %" for one in used)
        memory = sum(process.memory_info().rss for process in processes) / 2**20
        share = 100 * sum(used) / seconds
        print(f"{layout.name} idle: {share:.2f} % of one core ({shares}), {memory:.0f} MiB resident")


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
