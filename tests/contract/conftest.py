"""A real server on a free port of the loopback, once for the session, over the embedded voice."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import openai
import pytest
from anyio.abc import SocketStream

from vivavoce.api.serve import bind, serve_running
from vivavoce.bus.running import Running


class Server:
    """Where it listens, and what runs there."""

    def __init__(self, url: str, running: Running) -> None:
        self.url = url
        self.running = running
        self.port = int(url.rpartition(":")[2])


@pytest.fixture(scope="session")
async def server(speech: Running) -> AsyncIterator[Server]:
    bound, stop, up = bind("127.0.0.1", 0), anyio.Event(), anyio.Event()
    urls: list[str] = []

    def listening(url: str) -> None:
        urls.append(url)
        up.set()

    async def run() -> None:
        await serve_running(speech, bound, stop, listening=listening)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await up.wait()
        yield Server(urls[0], speech)
        stop.set()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    chunks: list[bytes] = field(default_factory=list[bytes])
    complete: bool = False
    """Whether the terminating chunk came."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


class Connection:
    """One connection; use as an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = bytearray()

    async def __aenter__(self) -> "Connection":
        self.stream: SocketStream = await anyio.connect_tcp("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        lines = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in (lines | (headers or {})).items())
        await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def speak(self, **fields: Any) -> None:
        body = {"model": "embedded", "voice": "ryan", "input": "Hi there.", **fields}
        await self.ask("POST", "/v1/audio/speech", json.dumps(body).encode())

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with the mark. EndOfStream when the peer closes first."""
        while (at := self._buffer.find(mark)) < 0:
            self._buffer += await self.stream.receive()
        return self._take(at + len(mark))

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += await self.stream.receive()
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def head(self) -> Reply:
        status, *lines = (await self.until(b"\r\n\r\n")).decode().strip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Reply(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body, b"" for the terminating one."""
        size = int(await self.until(b"\r\n"), 16)
        data = await self.exactly(size)
        assert await self.exactly(2) == b"\r\n"
        return data

    async def reply(self) -> Reply:
        """A whole answer, or as much of it as comes before the peer closes."""
        reply = await self.head()
        try:
            if "content-length" in reply.headers:
                reply.chunks.append(await self.exactly(int(reply.headers["content-length"])))
            else:
                while piece := await self.chunk():
                    reply.chunks.append(piece)
            reply.complete = True
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
        return reply


@pytest.fixture
def connect(server: Server) -> Callable[[], Connection]:
    """Makes connections on which HTTP is bytes, for what clients hide: chunks, missing ends, half requests."""
    return lambda: Connection(server.port)
