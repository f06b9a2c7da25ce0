"""The lease on a device, between real processes: a holder is killed, hangs, or comes back."""

import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio
import msgspec
import pytest

from vivavoce.bus import layout
from vivavoce.bus.errors import StartError
from vivavoce.bus.messages import Chat, Speak
from vivavoce.bus.running import Running

_ids = count()


@pytest.fixture(autouse=True)
def lessees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@asynccontextmanager
async def shared(timeout_s: float, **supervised: float) -> AsyncGenerator[Running]:
    loaded = layout.load("cohost")
    schedule = msgspec.structs.replace(loaded.schedule, timeout_s=timeout_s)
    supervision = msgspec.structs.replace(loaded.supervision, backoff_s=0.05, **supervised)
    made = msgspec.structs.replace(loaded, schedule=schedule, supervision=supervision)
    with anyio.fail_after(20):
        async with Running(made, module="lessees") as running:
            yield running


async def speak(running: Running) -> float:
    """Seconds until the device was speech's."""
    began = time.monotonic()
    asked = Speak(request=f"lease-{next(_ids)}", model="m", text="hello", seed=0)
    async with running.client.speak(asked) as request:
        assert len([audio async for audio in request if audio.frames]) == 1
    return time.monotonic() - began


def chat(how: str) -> Chat:
    return Chat(request=f"lease-{next(_ids)}", model="m", prompt=how)


async def test_a_trace_that_cannot_be_written_ends_the_start_at_once(tmp_path: Path) -> None:
    loaded = layout.load("cohost")
    schedule = msgspec.structs.replace(loaded.schedule, trace=str(tmp_path / "missing"))
    with anyio.fail_after(60), pytest.raises(StartError, match="missing"):
        async with Running(msgspec.structs.replace(loaded, schedule=schedule), module="lessees"):
            pass


async def test_a_holder_that_is_killed_holds_no_longer() -> None:
    async with shared(timeout_s=60) as running:
        assert running.layout.lessees() == {"chat": ("chat",), "speech": ("speech",)}
        async with running.client.chat(chat("forever")) as request:
            await anext(request)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(speak, running)
                os.kill(next(one.pid for one in running.processes() if one.name == "chat"), signal.SIGKILL)
                assert [part async for part in request] == []
        await running.wait_served()
        async with running.client.chat(chat("briefly")) as request:  # its successor has a lease of its own
            assert len([part async for part in request]) == 1
        await speak(running)


@pytest.mark.parametrize("how", ["forever", "wedged"])
async def test_a_holder_that_hangs_loses_it_after_the_time_out(how: str) -> None:
    async with shared(timeout_s=0.4) as running:
        await speak(running)
        async with running.client.chat(chat(how)) as request:
            await anext(request)
            assert await speak(running) >= 0.39
            assert await speak(running) < 0.39  # it is speech's now: nobody is waited for again
        if how == "wedged":
            async with running.client.chat(chat("briefly")) as request:
                assert len([part async for part in request]) == 1


async def test_who_waits_for_the_device_too_long_is_told_of_until_it_has_it() -> None:
    async with shared(timeout_s=1.5, device_wait_s=0.2, beat_s=0.05) as running:
        async with running.client.chat(chat("forever")) as request, anyio.create_task_group() as tasks:
            await anext(request)
            tasks.start_soon(speak, running)
            while (outage := running.outage("speech")) is None:
                await running.beat()
            assert "process speech has waited for the device" in outage.reason
            assert running.outage("chat") is None
            assert running.failed == outage.reason
            (speech,) = [one for one in running.processes() if one.name == "speech"]
            assert speech.waiting_s > 0.2
            await running.wait_served()
        await running.beat()
        assert [one.waiting_s for one in running.processes()] == [0.0, 0.0, 0.0]


async def test_a_holder_gives_it_back_at_once_when_it_is_done() -> None:
    async with shared(timeout_s=60) as running:
        for _ in range(5):
            async with running.client.chat(chat("briefly")) as request:
                assert len([part async for part in request]) == 1
            await speak(running)
