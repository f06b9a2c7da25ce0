"""Layouts of real processes whose stages are those of `vices`, watched with short times."""

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from vivavoce.bus.layout import parse
from vivavoce.bus.running import Running

HERE = Path(__file__).parent

SUPERVISION = """
[supervision]
beat_s = 0.1
silence_s = 2.0
wedged_s = 0.5
start_timeout_s = 15
stacks_s = 0.3
grace_s = 0.5
backoff_s = 0.05
backoff_max_s = 0.1
max_restarts = 2
"""

SPLIT = """
name = "split"
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor"]
[[process]]
name = "codec"
device = ["codec_decoder"]
"""

OWN = """
name = "own"
[[process]]
name = "main"
loop = ["api"]
[[process]]
name = "encoder"
loop = ["encoder"]
""" + "".join(
    f'[[process]]\nname = "{stage}"\ndevice = ["{stage}"]\n'
    for stage in ("prompt", "talker", "code_predictor", "codec_decoder")
)

ONE = """
name = "one"
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
"""


TEXTS = {"split": SPLIT, "own": OWN, "one": ONE}


def layout_text(name: str, **supervision: float) -> str:
    """One of the layouts, or the given text, with these settings of its supervision."""
    settings = SUPERVISION
    for key, value in supervision.items():
        lines = [line for line in settings.splitlines() if not line.startswith(f"{key} ")]
        settings = "\n".join([*lines, f"{key} = {value}"])
    return TEXTS.get(name, name) + settings


@pytest.fixture
def layout_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes one of the layouts, with these settings of its supervision."""

    def write(name: str, **supervision: float) -> Path:
        file = tmp_path / f"{name}.toml"
        file.write_text(layout_text(name, **supervision))
        return file

    return write


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where servers have their folders; short, as paths of Unix sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="vv") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def vices(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that says what shall go wrong; children find the module through PYTHONPATH."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    folder = tmp_path / "vices"
    folder.mkdir()
    monkeypatch.setenv("VICES", str(folder))
    return folder


@pytest.fixture
def start(vices: Path) -> Start:
    """Runs a layout, and checks after it that nothing is left."""

    @asynccontextmanager
    async def running(
        name: str, *, head: str = "", extra: str = "", **supervision: float
    ) -> AsyncGenerator[Running]:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        try:
            text = head + layout_text(name, **supervision) + extra
            made = Running(parse(text, "test.toml"), module="vices")
            async with made:
                assert made.tap is not None
                folder = Path(made.tap.removeprefix("ipc://")).parent
                assert folder.is_dir()
                with anyio.fail_after(60):
                    yield made
            assert not folder.exists()
        finally:
            after = {child.pid for child in psutil.Process().children(recursive=True)}
            assert after <= before

    return running
