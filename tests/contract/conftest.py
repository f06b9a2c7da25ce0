"""A real server on a free port of the loopback, once for the session, over the embedded voice."""

from collections.abc import AsyncIterator

import anyio
import httpx
import openai
import pytest

from vivavoce.api.edge import Edge
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
    bound.close()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        yield client
