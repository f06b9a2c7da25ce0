"""Kills stage processes under load, again and again, and checks what has to hold each time.

    python tools/soak.py                          1,000 rounds of layout `split` with the embedded voice
    python tools/soak.py --light --rounds 100     with stages that need no model (those of tests/chaos)

Each round has four requests open when one process, taken by chance, gets SIGKILL. Every request must end once,
with `stop` or with 503; the process must come back; the next request must have the same bytes as ever; nothing may
pile up: no processes, file descriptors, open requests or memory.
"""

import argparse
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
import msgspec
import psutil

from vivavoce.bus.layout import Layout, load
from vivavoce.bus.messages import Ending, Speak
from vivavoce.bus.running import Running

LIGHT = Path(__file__).parents[1] / "tests" / "chaos"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill stage processes under load, again and again.")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--layout", default="split", help="a layout's name or file (default: split)")
    parser.add_argument("--light", action="store_true", help="stages that need no model")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable()  # every kill would be an error
    if args.light:
        sys.path.insert(0, str(LIGHT))
        os.environ["PYTHONPATH"] = str(LIGHT)
        os.environ["VICES"] = tempfile.mkdtemp(prefix="vices-")
    anyio.run(_soak, args, _patient(load(args.layout)))


def _patient(layout: Layout) -> Layout:
    """Never gives up, and does not wait long."""
    watched = msgspec.structs.replace(
        layout.supervision, max_restarts=10**9, backoff_s=0.01, backoff_max_s=0.01, beat_s=0.1, silence_s=30
    )
    return msgspec.structs.replace(layout, supervision=watched)


async def _soak(args: argparse.Namespace, layout: Layout) -> None:
    dice = random.Random(args.seed)
    module = "vices" if args.light else "vivavoce.stages.host"
    here = psutil.Process()
    recovery: list[float] = []
    lost = served = 0
    began = time.monotonic()
    async with Running(layout, module=module) as running:
        expected, _ = await _speak(running, "first")
        files, memory = here.num_fds(), here.memory_info().rss
        for number in range(args.rounds):
            endings = await _round(running, dice, number)
            lost += sum(ending.reason == "error" for ending in endings)
            served += sum(ending.reason == "stop" for ending in endings)
            died = time.monotonic()
            await running.wait_served()
            recovery.append(time.monotonic() - died)
            data, ending = await _speak(running, f"after-{number}")
            assert ending.reason == "stop", ending
            assert data == expected, f"round {number}: other bytes"
            while any(any(status.active.values()) for status in running.processes()):
                await running.beat()
            children = here.children(recursive=True)
            assert len(children) == len(layout.process) - 1, children
            grown = here.num_fds() - files
            assert grown <= 8, f"{grown} file descriptors more than at the start"
            if (number + 1) % max(args.rounds // 20, 1) == 0:
                more = (here.memory_info().rss - memory) / 2**20
                print(
                    f"{number + 1:5} rounds, {time.monotonic() - began:6.0f} s: {lost} ended with 503, {served} "
                    f"with stop; recovery {statistics.median(recovery):.2f} s, at most {max(recovery):.2f} s; "
                    f"{grown:+} files, {more:+.1f} MiB",
                    flush=True,
                )
    assert not here.children(recursive=True)
    print(
        f"{args.rounds} kills: every request ended once, every successor gave the same bytes, nothing was left."
    )


async def _round(running: Running, dice: random.Random, number: int) -> list[Ending]:
    """Four requests and a kill among them. Returns how they ended."""
    victim = dice.choice([status for status in running.processes() if status.pid != os.getpid()])
    endings: list[Ending] = []

    async def one(name: str) -> None:
        endings.append((await _speak(running, name, pauses=dice.randint(0, 3)))[1])

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for index in range(3):
                tasks.start_soon(one, f"round-{number}-{index}")
            async with running.client.speak(_request(f"round-{number}-x")) as request:
                for _ in range(dice.choice((0, 1, 3, 10, 39))):
                    await anext(request, None)
                os.kill(victim.pid, signal.SIGKILL)
                async for _ in request:
                    pass
                assert request.ending is not None
                endings.append(request.ending)
            while running.outage() is None:
                await running.beat()
    for ending in endings:
        assert ending.reason == "stop" or (ending.failure is not None and ending.failure.status == 503), (
            ending
        )
    return endings


def _request(name: str) -> Speak:
    return Speak(request=name, model="embedded", text="Yes.", voice="ryan", seed=3)


async def _speak(running: Running, name: str, *, pauses: int = 0) -> tuple[bytes, Ending]:
    parts: list[bytes] = []
    async with running.client.speak(_request(name)) as request:
        async for audio in request:
            parts.append(audio.data)
            for _ in range(pauses):
                await anyio.lowlevel.checkpoint()
    assert request.ending is not None
    return b"".join(parts), request.ending


if __name__ == "__main__":
    main()
