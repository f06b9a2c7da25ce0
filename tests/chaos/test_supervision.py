"""A stage process may crash, hang or never start: each request gets one ending, and the next ones are served."""

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from vivavoce.api.app import create_app
from vivavoce.bus.errors import StartError
from vivavoce.bus.messages import Audio, Ending, Speak
from vivavoce.bus.running import Running
from vivavoce.bus.status import ProcessStatus

Start = Callable[..., Any]

_ids = count()


def _speak(text: str = "hello", **fields: Any) -> Speak:
    return Speak(request=f"test-{next(_ids)}", model="m", text=text, seed=0, **fields)


async def _listen(running: Running, text: str = "hello", **fields: Any) -> tuple[bytes, Ending]:
    async with running.client.speak(_speak(text, **fields)) as request:
        data = b"".join([audio.data async for audio in request])
        assert request.ending is not None
        assert [audio async for audio in request] == []  # the ending was the last
    return data, request.ending


def _status(running: Running, name: str) -> ProcessStatus:
    return next(status for status in running.processes() if status.name == name)


def _expect_down(ending: Ending, *words: str) -> None:
    assert ending.reason == "error"
    assert ending.failure is not None
    assert (ending.failure.status, ending.failure.code) == (503, "stage_down")
    for word in words:
        assert word in ending.failure.message


async def _calm(running: Running) -> None:
    """Until no stage of any process holds a request."""
    while any(any(status.active.values()) for status in running.processes()):
        await running.beat()


async def test_echo(start: Start) -> None:
    async with start("split") as running:
        data, ending = await _listen(running)
        assert (ending.reason, ending.frames, len(data)) == ("stop", 40, 40 * 128)
        codec = _status(running, "codec")
        assert (codec.state, codec.restarts, codec.stages) == ("ready", 0, ("codec_decoder",))
        assert psutil.Process(codec.pid).ppid() == os.getpid()
        await _calm(running)


async def test_crash_mid_stream(start: Start) -> None:
    async with start("split") as running:
        before, _ = await _listen(running)
        async with running.client.speak(_speak(lookahead=2)) as done_first:
            # One that the crash takes along, and one that is over before it.
            over, ending = await _listen(running)
            assert (over, ending.reason) == (before, "stop")
            data, ending = await _listen(running, "crash_mid_stream@7")
            _expect_down(ending, "codec", "code 41")
            assert len(data) <= 7 * 128
            taken = [audio async for audio in done_first]
            assert len(taken) <= 2
            assert done_first.ending is not None
            _expect_down(done_first.ending, "codec", "code 41")
        assert running.failed is not None
        await running.wait_served()
        assert running.failed is None
        assert (await _listen(running))[0] == before
        assert (_status(running, "codec").restarts, _status(running, "codec").state) == (1, "ready")
        await _calm(running)


async def test_requests_during_the_outage_are_served_by_the_successor(start: Start) -> None:
    """The API refuses them; a program that uses the bus itself waits."""
    async with start("split") as running:
        before, _ = await _listen(running)
        await _listen(running, "crash_mid_stream@0")
        assert running.failed is not None
        assert (await _listen(running))[0] == before


async def test_the_api_answers_503_and_when_to_try_again(start: Start) -> None:
    async with start("split", backoff_s=1.0, backoff_max_s=1.0) as running:
        app = create_app(running)
        client = app.test_client()
        body = {"input": "crash_mid_stream@0", "response_format": "pcm", "voice": "any"}
        broken = await client.post("/v1/audio/speech", json=body)
        refused = await client.post("/v1/audio/speech", json={**body, "input": "hello"})
        for response in (broken, refused):
            assert response.status_code == 503
            assert (await response.get_json())["error"]["code"] == "stage_down"
            assert 1 <= int(response.headers["Retry-After"]) <= 60
        health = await client.get("/health")
        assert health.status_code == 503
        assert "codec" in (await health.get_json())["reason"]
        await running.wait_served()
        served = await client.post("/v1/audio/speech", json={**body, "input": "hello"})
        assert (served.status_code, len(await served.get_data())) == (200, 40 * 128)


async def test_given_up_with_the_reason(start: Start, vices: Path) -> None:
    async with start("split") as running:
        (vices / "codec.crash_on_start").write_text("9")
        await _listen(running, "crash_mid_stream@0")
        while _status(running, "codec").state != "failed":
            await running.beat()
        assert running.failed is not None
        assert "given up" in running.failed
        assert "code 42" in running.failed
        assert _status(running, "codec").restarts == 2
        assert not any(_status(running, "codec").active.values())
        # The rest goes on: nothing that was open stays open.
        assert _status(running, "main").state == "ready"


@pytest.mark.parametrize(
    ("vice", "words"), [("crash_on_start", "exited with code 42"), ("refuse_to_start", "no such model")]
)
async def test_a_first_start_that_fails_is_told_at_once(
    start: Start, vices: Path, vice: str, words: str
) -> None:
    (vices / f"codec.{vice}").write_text("1")
    with pytest.raises(StartError, match=f"process codec could not start: .*{words}"):
        async with start("split"):
            pass


async def test_a_silent_start_is_killed(start: Start, vices: Path) -> None:
    (vices / "codec.silent_start").write_text("1")
    with pytest.raises(StartError, match="no sign of life for 4 s"):
        async with start("split", start_timeout_s=4):
            pass


async def test_a_slow_start_is_waited_for(start: Start, vices: Path) -> None:
    (vices / "codec.slow_start").write_text("1")
    async with start("split") as running:
        assert (await _listen(running))[1].reason == "stop"


async def test_a_wedged_device_is_seen_although_the_loop_beats(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    async with start("split") as running:
        began = time.monotonic()
        _, ending = await _listen(running, "wedge_device@2")
        _expect_down(ending, "codec", "device has stood still")
        assert time.monotonic() - began < 8
        stacks = capfd.readouterr().err
        assert "misbehave" in stacks  # where it stood
        assert "Thread" in stacks
        await running.wait_served()
        assert (await _listen(running))[1].reason == "stop"


async def test_a_wedged_loop_is_seen(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    async with start("own", silence_s=1.0) as running:
        _, ending = await _listen(running, "wedge_loop@2")
        _expect_down(ending, "encoder", "no sign of life for 1 s")
        assert "vices.py" in capfd.readouterr().err
        await running.wait_served()
        assert (await _listen(running))[1].reason == "stop"


async def test_a_flood_harms_nobody(start: Start) -> None:
    async with start("split") as running:
        before, _ = await _listen(running)
        async with running.client.speak(_speak("flood@1")) as flood:
            assert isinstance(await anext(flood), Audio)
            assert (await _listen(running))[0] == before
            assert len([audio async for audio in flood]) == 39 + 4999
        assert (_status(running, "codec").restarts, running.failed) == (0, None)


async def test_kill_each_process_in_turn_under_load(start: Start) -> None:
    async with start("own", max_restarts=99) as running:
        before, _ = await _listen(running)
        for name in ("prompt", "talker", "code_predictor", "codec_decoder", "encoder"):
            async with running.client.speak(_speak(lookahead=5)) as first:
                await anext(first)
                async with running.client.speak(_speak(lookahead=3)) as second:
                    await anext(second)
                    os.kill(_status(running, name).pid, signal.SIGKILL)
                    for request in (first, second):
                        assert len([audio async for audio in request]) < 39
                        assert request.ending is not None
                        _expect_down(request.ending, name, "SIGKILL")
            await running.wait_served()
            assert (await _listen(running))[0] == before
            await _calm(running)


async def test_a_family_goes_on_when_a_process_of_another_dies(start: Start) -> None:
    layout = """
name = "two"
[[process]]
name = "main"
loop = ["api"]
[[process]]
name = "chat"
device = ["chat"]
[[process]]
name = "speech"
loop = ["encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
"""
    async with start(layout, beat_s=1.0, backoff_s=30, backoff_max_s=30) as running:
        os.kill(_status(running, "chat").pid, signal.SIGKILL)
        while _status(running, "chat").state == "ready":
            await running.beat()
        # Before the next beat of the other process says that it knows of this.
        assert running.outage("speech") is None
        assert (await _listen(running))[1].reason == "stop"
        for outage in (running.outage("chat"), running.outage()):
            assert outage is not None
            assert "chat" in outage.reason
        os.kill(_status(running, "speech").pid, signal.SIGKILL)
        while (outage := running.outage("speech")) is None:
            await running.beat()
        assert "speech" in outage.reason


async def test_a_process_that_will_not_end_is_ended(start: Start, vices: Path) -> None:
    (vices / "codec.ignore_term").write_text("1")
    async with start("split") as running:
        codec = psutil.Process(_status(running, "codec").pid)
        codec.terminate()  # only its parent may say so
        assert (await _listen(running))[1].reason == "stop"
        began = time.monotonic()
    assert 0.5 <= time.monotonic() - began < 6
    assert not codec.is_running()


async def test_stopping_while_it_is_about_to_be_restarted(start: Start) -> None:
    async with start("split", backoff_s=30, backoff_max_s=30) as running:
        await _listen(running, "crash_mid_stream@0")
        assert running.failed is not None
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_the_servers_own_device_thread_dies(start: Start) -> None:
    async with start("one") as running:
        async with running.client.speak(_speak(lookahead=2)) as other:
            await anext(other)
            _, ending = await _listen(running, "raise@3")
            _expect_down(ending, "the device is lost")
            assert len([audio async for audio in other]) <= 2
            assert other.ending is not None
            _expect_down(other.ending, "the device is lost")
        assert running.failed is not None
        assert "the device is lost" in running.failed
        assert _status(running, "main").state == "failed"
