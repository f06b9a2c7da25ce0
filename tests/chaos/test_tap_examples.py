"""The examples, run as they are against the embedded voice."""

import subprocess
import sys
import wave
from itertools import count
from pathlib import Path

import anyio

from vivavoce.bus.messages import Speak
from vivavoce.bus.running import Running

EXAMPLES = Path(__file__).parents[2] / "tools" / "examples"

_ids = count()


async def _speak(running: Running, name: str, text: str = "Yes.") -> bytes:
    speak = Speak(request=name, model="embedded", text=text, voice="ryan", seed=3)
    async with running.client.speak(speak) as request:
        return b"".join([audio.data async for audio in request])


async def _run(running: Running, script: str, *arguments: str, until: bytes) -> bytes:
    """What an example has printed when `until` is in it, while requests come in."""
    assert running.tap is not None
    command = [sys.executable, str(EXAMPLES / script), *arguments, running.tap]
    printed = b""
    async with (
        await anyio.open_process(command, stdout=subprocess.PIPE, stderr=None) as process,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            while True:
                await _speak(running, f"example-{next(_ids)}")

        tasks.start_soon(ask)
        assert process.stdout is not None
        with anyio.fail_after(60):
            while until not in printed:
                printed += await process.stdout.receive()
        tasks.cancel_scope.cancel()
        if process.returncode is None:
            process.kill()
    return printed


async def test_captions(speech: Running) -> None:
    assert b": Yes." in await _run(speech, "captions.py", until=b"Yes.\n")


async def test_vu_meter(speech: Running) -> None:
    shown = await _run(speech, "vu_meter.py", until=b"dB")
    assert b" dB " in shown or b" dB" in shown


async def test_recorded_codes_decode_to_the_same_audio(speech: Running, tmp_path: Path) -> None:
    file, sound = tmp_path / "codes.msgpack", tmp_path / "sound.wav"
    expected = await _speak(speech, "expected")
    await _run(speech, "record_codes.py", "record", str(file), until=b"frames")
    # In a process of its own, as MLX belongs to one thread here.
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, str(EXAMPLES / "record_codes.py"), "decode", str(file), str(sound)], check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    with wave.open(str(sound)) as opened:
        assert opened.readframes(opened.getnframes()) == expected
