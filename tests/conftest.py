"""Fixtures for every layer: one event loop kind, and one running embedded voice for the whole session."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
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


CHECKPOINTS = Path(__file__).parent / "golden" / "data" / "checkpoints"


@pytest.fixture(scope="session")
async def family(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server with tiny random models of every kind: `custom`, `custom06`, `base`, `design`."""
    plain = layout.load("speech")
    models = tuple(str(CHECKPOINTS / name) for name in ("custom", "custom06", "base", "design"))
    made = msgspec.structs.replace(
        plain,
        speech=msgspec.structs.replace(plain.speech, models=models),
        api=msgspec.structs.replace(plain.api, voices_folder=str(tmp_path_factory.mktemp("voices"))),
    )
    async with Running(made) as running:
        yield running
