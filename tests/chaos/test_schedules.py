"""Channels, links and credits on random schedules: order, nothing lost, nothing twice, one ending, nothing left."""

import importlib
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.bus.channel import Mailbox, Stage
from vivavoce.bus.client import Client
from vivavoce.bus.layout import parse
from vivavoce.bus.loop import Station, Wiring
from vivavoce.bus.messages import LINKS, Credit, Speak
from vivavoce.bus.running import Running
from vivavoce.bus.wire import Incoming, Outgoing

Start = Callable[..., Any]

_ids = count()

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def _pause(steps: int) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()


@quick
@given(
    capacity=st.integers(1, 4),
    senders=st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=4),
    reads=st.lists(st.integers(0, 3), max_size=8),
)
async def test_a_channel_keeps_each_senders_order(
    capacity: int, senders: list[list[int]], reads: list[int]
) -> None:
    """Every sender pauses as its list says; the reader as its own does, over and over."""
    mailbox = Mailbox(capacity)
    got: list[tuple[str, int]] = []

    async def send(name: str, pauses: list[int]) -> None:
        with mailbox.sender() as sender:
            for number, pause in enumerate(pauses):
                await _pause(pause)
                await sender.send(Credit(request=name, frames=number))
                assert mailbox.waiting <= capacity

    async def read() -> None:
        while True:
            message = await mailbox.inbox.receive()
            assert isinstance(message, Credit)
            got.append((message.request, message.frames))
            await _pause(reads[len(got) % len(reads)] if reads else 0)
            if len(got) == sum(len(pauses) for pauses in senders):
                return

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for index, pauses in enumerate(senders):
                tasks.start_soon(send, str(index), pauses)
            if any(senders):
                tasks.start_soon(read)
    for index, pauses in enumerate(senders):
        assert [number for name, number in got if name == str(index)] == list(range(len(pauses)))
    mailbox.close()


@quick
@given(lives=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=4))
async def test_a_link_delivers_to_the_incarnation_it_was_meant_for(lives: list[tuple[int, int]]) -> None:
    """In each life so many are sent and so many awaited before the consumer is replaced by its successor."""
    context: zmq.Context[Any] = zmq.Context()
    name = f"inproc://life-{next(_ids)}"
    sender = Outgoing(context, f"{name}-0")
    number = 0
    for life, (sent, taken) in enumerate(lives):
        mailbox = Mailbox(2)
        receiver = Incoming(context, f"{name}-{life}", LINKS["api", "prompt"])
        first = number
        for _ in range(sent):
            await sender.send(Credit(request="a", frames=number))
            number += 1
        with anyio.fail_after(10), mailbox.sender() as into:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receiver.pump, into)
                for expected in range(first, first + min(taken, sent)):
                    assert await mailbox.inbox.receive() == Credit(request="a", frames=expected)
                tasks.cancel_scope.cancel()
        mailbox.close()
        sender.reopen(f"{name}-{life + 1}")
    sender.close()
    context.term()


ONE = """
name = "one"
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
"""

Reader = tuple[int, int, int | None]
"""Lookahead, pauses before each read, and after how many reads it leaves (None: at the end)."""


@quick
@given(
    readers=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 4), st.none() | st.integers(0, 5)), min_size=1, max_size=5
    )
)
async def test_credits_bound_every_request_and_nothing_stays_open(
    vices: Path, tmp_path: Path, readers: list[Reader]
) -> None:
    """Two loops of one process, linked by ZeroMQ; both run here, so that their state can be looked at."""
    _ = vices
    make: Callable[[str], Any] = importlib.import_module("vices").Vice
    context: zmq.Context[Any] = zmq.Context()
    here = Station(parse(ONE, "one.toml"), "main", "loop", context, tmp_path / str(next(_ids)))
    async with Wiring(here) as loop, Wiring(here.beside("device")) as device:
        stages: dict[str, Any] = {name: make(name) for name in ("encoder", *here.beside("device").stages)}
        loop.run({"encoder": stages["encoder"]})
        on_device: dict[str, Stage] = {name: stage for name, stage in stages.items() if name != "encoder"}
        device.run(on_device)
        client = Client(loop.outbox("api"))

        async def read(lookahead: int, pauses: int, leave: int | None) -> None:
            name = f"schedule-{next(_ids)}"
            speak = Speak(request=name, model="m", text="hello", seed=0, lookahead=lookahead, max_frames=12)
            heard: list[bytes] = []
            async with client.speak(speak) as request:
                while len(heard) != leave:
                    await _pause(pauses)
                    audio = await anext(request, None)
                    begun = stages["talker"].next.get(name, 0)
                    assert begun <= lookahead + len(heard) + (audio is not None)
                    if audio is None:
                        break
                    heard.append(audio.data)
            vices_data = importlib.import_module("vices").frame_data
            assert heard == [vices_data(frame, "hello") for frame in range(len(heard))]
            assert request.ending is not None
            assert request.ending.reason == ("stop" if leave is None else "cancelled")
            assert len(heard) == (12 if leave is None else leave)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as running:
                running.start_soon(client.run, loop.inbox("api"))
                async with anyio.create_task_group() as readers_at_work:
                    for reader in readers:
                        readers_at_work.start_soon(read, *reader)
                while any(stage.open_requests() for stage in stages.values()):
                    await anyio.lowlevel.checkpoint()
                running.cancel_scope.cancel()
        assert client.active() == 0
    context.term()


@pytest.mark.parametrize("seed", range(3))
async def test_random_readers_of_several_processes(start: Start, seed: int) -> None:
    """The same over real processes: whoever stays gets everything, whoever leaves leaves nothing behind."""
    dice = random.Random(seed)
    async with start("own" if seed == 0 else "split") as running:
        full = await _read(running, 64, 0, None)

        async def one() -> None:
            leave = dice.choice([None, None, 0, 1, 7])
            heard = await _read(running, dice.randint(1, 8), dice.randint(0, 5), leave)
            assert full.startswith(heard)
            if leave is None:
                assert heard == full

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(one)
        while any(any(status.active.values()) for status in running.processes()):
            await running.beat()


async def _read(running: Running, lookahead: int, pauses: int, leave: int | None) -> bytes:
    name = f"several-{next(_ids)}"
    speak = Speak(request=name, model="m", text="hello", seed=0, lookahead=lookahead)
    heard: list[bytes] = []
    async with running.client.speak(speak) as request:
        while len(heard) != leave:
            await _pause(pauses)
            audio = await anext(request, None)
            if audio is None:
                break
            heard.append(audio.data)
    assert request.ending is not None
    assert request.ending.reason == ("stop" if leave is None else "cancelled")
    return b"".join(heard)
