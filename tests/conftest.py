"""Fixtures for every layer: one event loop kind, and one running embedded voice for the whole session."""

import inspect
from collections.abc import AsyncIterator, Iterator
from contextvars import Context
from pathlib import Path

import hypothesis
import msgspec
import pytest

from vivavoce.bus import layout
from vivavoce.bus.running import Running
from vivavoce.stages.device import load_blas

# Before any test imports MLX: otherwise this process would compute other last bits than its stage processes.
load_blas()

# How long an example takes says nothing on a loaded machine.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Calls a plain test in an empty context.

    While a session's async fixture lives, anyio's plugin notes in the context that a loop runs on this thread;
    a command that starts its own would be refused.
    """
    test = getattr(pyfuncitem.obj, "hypothesis", None)
    if inspect.iscoroutinefunction(test.inner_test if test else pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    Context().run(pyfuncitem.obj, **arguments)
    return True


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What servers remember in the user's cache is of this session alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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
