"""Taps hear everything in order, cost nothing when nobody listens, and never hold anything up."""

import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import zmq.asyncio

from vivavoce.bus import tap, wire
from vivavoce.bus.listener import AsyncTap, Event, Tap, TapError, find
from vivavoce.bus.messages import Codes, Ending, Pcm, Speak, Text
from vivavoce.bus.running import Running

Start = Callable[..., Any]

_ids = count()

LISTENER = """
from vivavoce.bus.listener import Tap
with Tap() as tap:
    print(next(tap).kind, flush=True)
    for _ in tap:
        pass
"""


async def _listen(running: Running, text: str = "hello", **fields: Any) -> tuple[str, bytes]:
    name = f"tapped-{next(_ids)}"
    speak = Speak(request=name, model="m", text=text, seed=0, **fields)
    async with running.client.speak(speak) as request:
        return name, b"".join([audio.data async for audio in request])


async def _subscribed(running: Running, ears: AsyncTap) -> None:
    """Until the subscription has reached every stage: something of a request comes through."""
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            while True:
                await _listen(running, "knock", max_frames=2)

        tasks.start_soon(ask)
        await anext(ears)
        tasks.cancel_scope.cancel()


async def _until_endings(ears: AsyncTap, name: str) -> list[Event]:
    """Everything of a request until every stage has ended it."""
    events: list[Event] = []
    left = {"api", "prompt", "talker", "code_predictor", "codec_decoder", "encoder"}
    while left:
        event = await anext(ears)
        if event.request == name:
            events.append(event)
            if event.kind == "ending":
                left.remove(event.stage)
    return events


async def test_a_tap_hears_a_request_from_text_to_ending(start: Start) -> None:
    async with start("split") as running, AsyncTap() as ears:
        assert ears.address == running.tap == find()
        await _subscribed(running, ears)
        name, data = await _listen(running)
        events = await _until_endings(ears, name)
        by = {kind: [event for event in events if event.kind == kind] for kind in tap.KINDS}
        assert [event.message.text for event in by["text"] if isinstance(event.message, Speak | Text)] == [
            "hello"
        ]
        heard = b"".join(event.message.samples for event in by["pcm"] if isinstance(event.message, Pcm))
        assert heard == data
        frames = [event.message.frame for event in by["codes"] if isinstance(event.message, Codes)]
        assert frames == list(range(40))
        (ending,) = (event for event in by["ending"] if event.stage == "api")
        assert ending.message == Ending(request=name, reason="stop", frames=40)
        assert {event.stage for event in by["timing"]} == {
            "api", "prompt", "talker", "code_predictor", "codec_decoder", "encoder",
        }  # fmt: skip
        for kind in tap.KINDS:
            for stage in {event.stage for event in by[kind]}:
                numbers = [event.sequence for event in by[kind] if event.stage == stage]
                assert numbers == list(range(len(numbers)))
        assert ears.missed == 0
        main, codec = running.processes()
        while codec.tapped < 40:
            await running.beat()
            main, codec = running.processes()
        assert main.tapped > 80


async def test_what_is_asked_for_is_what_comes(start: Start) -> None:
    async with start("one") as running, AsyncTap(kind="pcm") as pcm:
        await _subscribed(running, pcm)
        name, _ = await _listen(running)
        async with AsyncTap(kind="codes", request="x") as nobody, AsyncTap(kind="pcm", request=name) as late:
            await _listen(running)
            for ears in (nobody, late):
                with anyio.move_on_after(0.05) as waited:
                    await anext(ears)
                assert waited.cancelled_caught
        async for event in pcm:
            assert (event.stage, event.kind) == ("codec_decoder", "pcm")
            if event.request == name and event.sequence == 39:
                break


async def test_nothing_is_encoded_when_nobody_listens(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start("one") as running:
        async with AsyncTap() as ears:
            await _subscribed(running, ears)
        # The last listener has left: once that is known, nothing is published.
        tapped = -1
        while tapped != (tapped := running.processes()[0].tapped):
            await _listen(running)
        await _listen(running)
        assert running.processes()[0].tapped == tapped


async def test_a_program_may_block_and_die(start: Start) -> None:
    """Slow, stopped and dead listeners: the audio is the same, and as fast."""
    async with start("split") as running:
        _, before = await _listen(running)
        async with await anyio.open_process(
            [sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, stderr=None
        ) as listener:
            assert listener.stdout is not None
            async with anyio.create_task_group() as tasks:

                async def knock() -> None:
                    while True:
                        await _listen(running, "knock")

                tasks.start_soon(knock)
                assert await listener.stdout.receive() in (b"text\n", b"timing\n", b"codes\n", b"pcm\n")
                tasks.cancel_scope.cancel()
            listener.send_signal(signal.SIGSTOP)
            for _ in range(30):
                assert (await _listen(running))[1] == before
            listener.kill()
            await listener.wait()
        for _ in range(3):
            assert (await _listen(running))[1] == before


async def test_what_a_slow_listener_missed_is_numbered_and_counted(start: Start) -> None:
    async with start("one", extra="[taps]\nbacklog = 10") as running, AsyncTap(kind="pcm", backlog=5) as ears:
        await _subscribed(running, ears)
        name, _ = await _listen(running, "flood@3")
        events: list[Event] = []

        async def knock() -> None:
            while True:
                await _listen(running, "after")

        async with anyio.create_task_group() as tasks:
            async for event in ears:
                events.append(event)
                if event.request != name and len(events) > 1 and events[-2].request == name:
                    tasks.cancel_scope.cancel()
                    break
                if len(events) == 1:
                    tasks.start_soon(knock)
        flood = [event for event in events if event.request == name]
        assert ears.missed == sum(event.missed for event in events)
        for earlier, later in pairwise(flood):
            assert later.sequence == earlier.sequence + later.missed + 1
        assert len(flood) < 5039


async def test_another_schema_is_refused_with_a_sentence() -> None:
    context = zmq.asyncio.Context()
    server = context.socket(zmq.XPUB)
    server.linger = 0
    port = server.bind_to_random_port("tcp://127.0.0.1")
    message = msgspec.Raw(wire.encode(Text(request="a", text="x")))
    try:
        ears = AsyncTap("ipc://instead", kind="text")
        ears.address = f"tcp://127.0.0.1:{port}"  # without keys, which it would not take
        async with ears:
            with anyio.fail_after(5):
                await server.recv()
                await server.send_multipart(
                    [b"api.text.a", wire.encode(tap.Envelope(tap.SCHEMA + 1, 0, 0.0, message))]
                )
                with pytest.raises(
                    TapError, match=f"schema {tap.SCHEMA + 1}, this program reads {tap.SCHEMA}"
                ):
                    await anext(ears)
                await server.send_multipart([b"api.text.a", b"rubbish"])
                with pytest.raises(TapError, match="does not speak as a tap"):
                    await anext(ears)
    finally:
        server.close()
        context.term()


def test_no_server_is_one_sentence(runtime: Path) -> None:
    with pytest.raises(TapError, match="no server of yours runs here"):
        Tap()
    with pytest.raises(TapError, match="use text, codes, pcm, ending, timing"):
        Tap("ipc:///x", kind="sound")
    with pytest.raises(TapError, match="needs keys"):
        Tap("tcp://127.0.0.1:1")


async def test_two_servers_have_to_be_told_apart(start: Start) -> None:
    async with start("one") as first, start("one") as second:
        with pytest.raises(TapError) as error:
            find()
        assert first.tap in str(error.value)
        assert second.tap in str(error.value)
