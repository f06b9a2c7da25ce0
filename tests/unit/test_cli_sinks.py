"""Files appear whole or not at all; a pipe's reader can leave or make us wait."""

import os
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from vivavoce.api.cli_sinks import Sink, Stream, WholeFile
from vivavoce.bus.errors import VivavoceError


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def interrupted(sink: Sink) -> None:
    """A piece is written, then Ctrl-C."""
    with sink:
        await sink.write(b"new")
        raise KeyboardInterrupt


async def test_a_whole_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a.wav"
    with WholeFile(target) as sink:
        await sink.write(b"one")
        await sink.write(b"two")
        assert not target.exists()
    assert target.read_bytes() == b"onetwo"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
    assert names(tmp_path) == ["a.wav"]


async def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.wav"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        await interrupted(WholeFile(target))
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.wav"]


def test_a_target_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    target = tmp_path / "no" / "a.wav"
    for sink in (WholeFile(target), Stream(str(target))):
        with pytest.raises(VivavoceError, match="cannot be written"), sink:
            pass


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(VivavoceError, match="is a folder"), WholeFile(tmp_path):
        pass


async def test_a_stream_grows_and_is_removed_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "a.pcm"
    with Stream(str(target)) as sink:
        await sink.write(b"12")
        assert target.read_bytes() == b"12"
    assert names(tmp_path) == ["a.pcm"]
    with pytest.raises(KeyboardInterrupt):
        await interrupted(Stream(str(target)))
    assert names(tmp_path) == []


async def test_a_slow_reader_of_a_pipe_can_be_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    got = 0
    try:
        with Stream(str(pipe)) as sink, anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sink.write, bytes(1 << 20))
                while got < 100_000:
                    await anyio.wait_readable(reader)
                    got += len(os.read(reader, 65536))
                await checkpoint()
                tasks.cancel_scope.cancel()
        assert got < 1 << 20
        assert pipe.exists()
    finally:
        os.close(reader)
