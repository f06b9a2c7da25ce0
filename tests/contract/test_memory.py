"""Memory is flat: many requests leave what a few leave. tools/soak_memory.py shows it for thousands, over HTTP."""

import gc

import anyio

from vivavoce.bus.messages import Speak
from vivavoce.bus.running import Running
from vivavoce.stages import device


async def test_many_requests_leave_no_array(family: Running) -> None:
    await _speak(family, range(20))
    gc.collect()
    held = device.memory().active_bytes
    await _speak(family, range(20, 80))
    gc.collect()
    assert device.memory().active_bytes <= held


async def _speak(running: Running, numbers: range) -> None:
    """Three frames each, of texts of one length; every fifth request is left after its first audio."""
    for number in numbers:
        speak = Speak(
            request=f"memory-{number}",
            model="custom06",
            text=f"This is text {number:04} of many.",
            voice="ryan",
            seed=number,
            max_frames=3,
        )
        with anyio.fail_after(20):
            async with running.client.speak(speak) as request:
                async for _ in request:
                    if number % 5 == 1:
                        break
