"""How long a slice may be is measured once and remembered."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vivavoce.stages.chat import slices
from vivavoce.stages.chat.model import KvOptions


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One millisecond a token, without measuring; the sizes of passes that were run."""
    timed: list[int] = []

    def took_s(_models: object, tokens: int, _passes: int) -> float:
        timed.append(tokens)
        return tokens / 1000

    monkeypatch.setattr(slices, "took_s", took_s)
    return timed


@pytest.mark.parametrize(
    ("chunk", "most_s", "tokens"),
    [
        (256, 1.0, 256),
        (256, 0.2, 128),
        (256, 0.1, 96),
        (256, 0.064, 64),
        (256, 0.001, 32),
        (300, 0.2, 160),
        (24, 1.0, 24),
    ],
)
def test_the_longest_slice_that_is_short_enough(
    chunk: int, most_s: float, tokens: int, took: list[int], tiny_models: Callable[..., Any]
) -> None:
    assert slices.measure([tiny_models()], chunk, most_s) == tokens
    assert slices.SMALLEST not in took  # there is none to take instead


def test_a_busy_machine_makes_no_slice_shorter(
    tiny_models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed: set[int] = set()

    def took_s(_models: object, tokens: int, passes: int) -> float:
        seen = tokens in disturbed
        disturbed.update([tokens] if passes > 1 else [])
        return tokens / 1000 * (1 if seen else 1.9)

    monkeypatch.setattr(slices, "took_s", took_s)
    assert slices.measure([tiny_models()], 256, 0.13) == 128


def test_what_takes_far_too_long_is_not_tried_again(took: list[int], tiny_models: Callable[..., Any]) -> None:
    slices.measure([tiny_models()], 256, 0.001)
    assert took == [48, 48], "to make kernels, and once"


def test_what_is_measured_is_time(tiny_models: Callable[..., Any]) -> None:
    models = [tiny_models(), tiny_models(seed=1)]
    assert slices.took_s(models, 32, 3) > 0
    assert slices.measure(models, 256, 60) == 256
    assert slices.measure(models, 1024, 60) == 256, "three passes have to fit into the context"


def test_it_is_remembered(tmp_path: Path, took: list[int], tiny_models: Callable[..., Any]) -> None:
    def ask(device: str = "gpu", chunk: int = 256, slice_s: float = 0.1, **options: Any) -> int:
        models = [tiny_models("llama", KvOptions(**options)), *drafts]
        return slices.slice_tokens(tmp_path / "slices", device, models, chunk=chunk, slice_s=slice_s)

    def measured() -> bool:
        seen = bool(took)
        took.clear()
        return seen

    drafts: list[Any] = []
    assert ask() == 96
    assert measured()
    assert ask() == 96
    assert not measured()
    assert ask(slice_s=0.05) == 48
    assert measured()
    assert ask(device="another") == 96
    assert measured()
    assert ask(chunk=128) == 64
    assert measured()
    assert ask(bits=8, group_size=32) == 96
    assert measured()
    drafts.append(tiny_models(seed=1))
    assert ask() == 96
    assert measured()


def test_it_is_measured_alone(tmp_path: Path, took: list[int], tiny_models: Callable[..., Any]) -> None:
    seen: list[int] = []

    @contextmanager
    def alone() -> Generator[None]:
        seen.append(len(took))
        yield
        seen.append(len(took))

    for _ in range(2):
        slices.slice_tokens(tmp_path, "gpu", [tiny_models()], chunk=256, slice_s=0.1, alone=alone)
    assert seen == [0, len(took)], "once, around all of it; what is remembered needs nobody to wait"


@pytest.fixture
def ask(tmp_path: Path, tiny_models: Callable[..., Any]) -> Callable[[], int]:
    return lambda: slices.slice_tokens(tmp_path, "gpu", [tiny_models()], chunk=256, slice_s=0.1)


def test_the_file_may_be_read_and_written(tmp_path: Path, took: list[int], ask: Callable[[], int]) -> None:
    assert ask() == 96
    [file] = tmp_path.iterdir()
    told = msgspec.json.decode(file.read_bytes())
    assert (told["tokens"], told["setting"]["device"], told["setting"]["slice_s"]) == (96, "gpu", 0.1)
    file.write_bytes(msgspec.json.encode(told | {"tokens": 64}))
    assert ask() == 64
    other = told | {"setting": told["setting"] | {"device": "another"}}
    for wrong in (
        b"",
        b"{",
        b" " * slices.MOST_BYTES + msgspec.json.encode(told | {"tokens": 64}),
        *map(msgspec.json.encode, (told | {"tokens": 0}, told | {"tokens": 257}, other)),
    ):
        file.write_bytes(wrong)
        took.clear()
        assert ask() == 96
        assert took
        assert msgspec.json.decode(file.read_bytes()) == told
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("took")
def test_nobody_waits_for_what_is_no_file(tmp_path: Path, ask: Callable[[], int]) -> None:
    assert ask() == 96
    [file] = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert ask() == 96


def test_what_may_not_even_be_looked_for_is_measured(
    tmp_path: Path, took: list[int], tiny_models: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / ("long" * 100)  # as a folder that others own: an error that is not "there is none"
    assert slices.slice_tokens(folder, "gpu", [tiny_models()], chunk=256, slice_s=0.1) == 96
    assert took
    assert "cannot be read" in caplog.text


def test_where_nothing_can_be_written_it_is_measured_each_time(
    tmp_path: Path, took: list[int], tiny_models: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        took.clear()
        model = tiny_models()
        assert slices.slice_tokens(tmp_path / "file", "gpu", [model], chunk=256, slice_s=0.1) == 96
        assert took
    assert "measures again" in caplog.text


def test_there_are_never_many_files(
    tmp_path: Path, took: list[int], tiny_models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MOST_FILES", 3)
    for n in range(5):
        slices.slice_tokens(tmp_path, f"gpu {n}", [tiny_models()], chunk=256, slice_s=0.1)
    assert len(list(tmp_path.iterdir())) == 3
    took.clear()
    slices.slice_tokens(tmp_path, "gpu 4", [tiny_models()], chunk=256, slice_s=0.1)
    assert not took
