"""Many short requests to one server, and what its process holds afterwards: MLX's memory and the resident set.

    python tools/soak_memory.py                         1,000 requests to the tiny models of the golden tests
    python tools/soak_memory.py --model embedded        to the embedded voice
    python tools/soak_memory.py --requests 100000

Requests of two or three frames, each with a text of its own, come over HTTP by turns: buffered, streamed, as
events, as a clone (where there is a model for it), closed after the first bytes, refused. What MLX holds must be
the same bytes after the last as after the first hundred, and the resident set must not grow by more than
`--allowed-mib`.
"""

import argparse
import base64
import gc
import io
import logging
import sys
import tempfile
import time
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import msgspec
import numpy as np
import psutil
from msgspec.structs import replace

from vivavoce.api.serve import bind, serve_running
from vivavoce.bus.layout import Layout, load
from vivavoce.bus.running import Running
from vivavoce.stages import device

TINY = Path(__file__).parents[1] / "tests" / "golden" / "data" / "checkpoints"
FIRST = 100
"""Requests after which everything that is kept for good should be there."""


class Held(msgspec.Struct):
    active: int
    """Bytes in MLX's arrays."""
    cache: int
    """Bytes that MLX keeps for the next arrays."""
    resident: int
    files: int

    def __str__(self) -> str:
        return (
            f"MLX {self.active:,} bytes in use, {self.cache:,} kept; resident {self.resident / 2**20:.1f} MiB; "
            f"{self.files} open files"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that memory is flat over many short requests.")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--model", help="a model with preset voices (default: tiny random ones)")
    parser.add_argument(
        "--allowed-mib", type=float, default=8.0, help="growth of the resident set after the first 100"
    )
    args = parser.parse_args()
    if args.requests <= FIRST:
        parser.error(f"more than {FIRST} requests are needed")
    logging.disable()  # every refusal would be a line
    with tempfile.TemporaryDirectory() as voices:
        anyio.run(_soak, args, _layout(args.model, voices))


def _layout(model: str | None, voices: str) -> Layout:
    plain = load("speech")
    models = (model,) if model else (str(TINY / "custom"), str(TINY / "base"))
    speech = replace(plain.speech, models=models)
    return replace(plain, speech=speech, api=replace(plain.api, voices_folder=voices))


async def _soak(args: argparse.Namespace, layout: Layout) -> None:
    stop, listening = anyio.Event(), anyio.Event()
    bound = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with Running(layout) as running, anyio.create_task_group() as tasks:
        served = lambda: serve_running(running, bound, stop, listening=lambda _: listening.set())  # noqa: E731
        tasks.start_soon(served)
        await listening.wait()
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            try:
                await _measure(args, running, client)
            finally:
                stop.set()


async def _measure(args: argparse.Namespace, running: Running, client: httpx.AsyncClient) -> None:
    ways = _ways(running, client)
    began, first = time.monotonic(), None
    for number in range(1, args.requests + 1):
        await ways[number % len(ways)](number)
        if number == FIRST or number % max(args.requests // 10, 1) == 0:
            await ways[0](number)  # a whole one, behind which nothing of a closed one is left
            held = _held()
            first = held if number == FIRST else first
            print(f"{number:6} requests, {time.monotonic() - began:5.0f} s: {held}", flush=True)
            if first is not None and (held.active != first.active or held.files > first.files):
                sys.exit(f"not flat: after {FIRST} requests it was {first}")
    assert first is not None
    grown = (_held().resident - first.resident) / 2**20
    if grown > args.allowed_mib:
        sys.exit(f"not flat: the resident set grew by {grown:.1f} MiB")
    print(
        f"flat: MLX's arrays take the same bytes as after {FIRST} requests, the resident set {grown:+.1f} MiB"
    )


def _held() -> Held:
    gc.collect()  # what Python has not looked at yet is no leak
    memory, process = device.memory(), psutil.Process()
    return Held(memory.active_bytes, memory.cache_bytes, process.memory_info().rss, process.num_fds())


def _ways(running: Running, client: httpx.AsyncClient) -> list[Callable[[int], Awaitable[None]]]:
    models = [model for model in running.models if model.family == "speech"]
    preset = next(model for model in models if model.voices)
    cloning = next((model for model in models if model.kind == "base"), None)
    reference = base64.b64encode(_recording()).decode()
    path = "/v1/audio/speech"

    def body(number: int, **more: object) -> dict[str, object]:
        text = f"This is text {number:07} of many."
        plain = {
            "model": preset.name,
            "voice": preset.voices[0],
            "input": text,
            "max_new_tokens": 2 + number % 2,
        }
        return {**plain, "seed": number, "response_format": "pcm", **more}

    async def whole(number: int, **more: object) -> None:
        answer = await client.post(path, json=body(number, **{"stream": False, **more}))
        assert answer.status_code == 200, answer.text
        assert len(answer.content) > 1000

    async def clone(number: int) -> None:
        assert cloning is not None
        await whole(number, model=cloning.name, voice=None, ref_audio=reference, x_vector_only_mode=True)

    async def streamed(number: int) -> None:
        await whole(number, stream=True, response_format="mp3")

    async def events(number: int) -> None:
        answer = await client.post(path, json=body(number, stream_format="sse"))
        assert "speech.audio.done" in answer.text, answer.text

    async def closed(number: int) -> None:
        async with client.stream("POST", path, json=body(number, max_new_tokens=50)) as answer:
            assert await anext(answer.aiter_bytes())

    async def refused(number: int) -> None:
        answer = await client.post(path, json=body(number, voice=f"nobody-{number}"))
        assert answer.status_code == 400, answer.text

    return [whole, streamed, events, closed, refused, *([clone] if cloning else [])]


def _recording() -> bytes:
    """Two seconds of a tone, as WAV."""
    tone = 8000 * np.sin(np.arange(48_000) * 2 * np.pi * 220 / 24_000)
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(tone.astype("<i2").tobytes())
    return made.getvalue()


if __name__ == "__main__":
    main()
