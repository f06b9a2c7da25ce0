"""`vivavoce serve` as a process: its log, and its end."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process

COMMAND = [sys.executable, "-P", "-c", "from vivavoce.api.cli import main; raise SystemExit(main())", "serve"]


class Log:
    """What the server writes on stderr."""

    def __init__(self, process: Process) -> None:
        assert process.stderr
        self._stream = process.stderr
        self.text = ""

    async def until(self, mark: str) -> None:
        while mark not in self.text:
            self.text += (await self._stream.receive()).decode()

    async def rest(self) -> list[dict[str, Any]]:
        """Its lines, once the server has ended: each is JSON."""
        async for piece in self._stream:
            self.text += piece.decode()
        return [json.loads(line) for line in self.text.splitlines()]


@asynccontextmanager
async def started(*options: str) -> AsyncGenerator[tuple[Process, Log, int, list[int]]]:
    """The process, its log, its port, and the ids of all its processes."""
    with anyio.fail_after(50):
        async with await anyio.open_process(
            [*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout
                told = ""
                while not (found := re.search(r"on http://127.0.0.1:(\d+)(?s:.*)  tap ", told)):
                    told += (await process.stdout.receive()).decode()
                pids = [int(pid) for pid in re.findall(r"pid (\d+)", told)]
                yield process, Log(process), int(found[1]), pids
            finally:
                if process.returncode is None:
                    process.kill()


async def test_a_second_signal_ends_it_in_one_line(connect: Callable[..., Any]) -> None:
    async with started() as (process, log, port, _), connect(port) as stalled:
        await stalled.speak(input="A long story begins here, and it goes on. " * 20, response_format="pcm")
        await stalled.head()
        process.send_signal(signal.SIGINT)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            while (await http.get("/ready")).status_code == 200:
                pass
        process.send_signal(signal.SIGINT)
        lines = await log.rest()
        assert await process.wait() == 0
    assert [line["message"] for line in lines if line["level"] in ("warning", "error")] == [
        "Stopped by a second signal: what was open is broken off."
    ]
    (ended,) = (line for line in lines if "ending" in line)
    assert (ended["ending"], ended["request_id"]) == ("cancelled", ended["request"])


async def test_every_process_logs_json_and_refusals_say_what_they_were() -> None:
    async with started("--layout", "split") as (process, log, port, (_, codec)):
        await log.until("ready, with codec_decoder")  # its own words; the server may know sooner
        os.kill(codec, signal.SIGKILL)
        await log.until("ended:")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            reply = await http.post("/v1/audio/speech", json={"input": "Hi."}, headers={"X-Request-Id": "r1"})
            assert reply.status_code == 503
            await http.post("/v1/audio/speech", json={"input": " "}, headers={"X-Request-Id": "r2"})
        process.send_signal(signal.SIGTERM)
        lines = await log.rest()
        assert await process.wait() == 0
    (ready,) = (line for line in lines if line.get("process") == "codec" and line["pid"] == codec)
    assert ready["message"] == "ready, with codec_decoder"
    by = {line["request_id"]: line for line in lines if "request_id" in line}
    assert by["r1"]["ending"] == "error"
    assert by["r1"]["message"].startswith("speech: error after 0 frames: Speech cannot be served now")
    assert by["r2"]["message"].endswith("refused: `input` is empty: there is nothing to say.")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_who_ends_it_while_it_loads_learns_that_it_never_served(name: str, status: int) -> None:
    code = (
        "import os, signal; from vivavoce.api import cli, cli_terminal\n"
        f"cli_terminal.Line.notice = lambda self, _: os.kill(os.getpid(), signal.{name})\n"
        "raise SystemExit(cli.main(['serve', '--port', '0', '--layout', 'split']))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, timeout=50)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""
