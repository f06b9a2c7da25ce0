"""Fixtures for every layer: one event loop kind, and one running embedded voice for the whole session."""

from collections.abc import AsyncIterator

import pytest

from vivavoce.bus import layout
from vivavoce.bus.running import Running
from vivavoce.stages.device import load_blas

# Before any test imports MLX: otherwise this process would compute other last bits than its stage processes.
load_blas()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def speech() -> AsyncIterator[Running]:
    """The layout `speech` with the embedded voice, loaded and warm."""
    async with Running(layout.load("speech")) as running:
        yield running
