"""The server's own process is killed, or told to end: nobody is left behind, and what is open is finished."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import psutil
import pytest
from anyio.abc import Process

from vivavoce.bus import run_folder
from vivavoce.bus.child import PARENT_GONE


@dataclass
class Parent:
    process: Process
    url: str
    folder: Path
    children: list[int]


@pytest.fixture
def parent(
    vices: Path, layout_file: Callable[..., Path]
) -> Callable[[], AbstractAsyncContextManager[Parent]]:
    @asynccontextmanager
    async def started() -> AsyncGenerator[Parent]:
        file = layout_file("split", wedged_s=10)
        file.write_text(file.read_text() + "\n[api]\nport = 0\n")
        async with await anyio.open_process(
            [sys.executable, str(Path(__file__).with_name("parent.py")), str(file)],
            stdout=subprocess.PIPE,
            stderr=None,
        ) as process:
            assert process.stdout is not None
            with anyio.fail_after(30):
                url, folder, _, *pids = (await process.stdout.receive()).decode().split()
            try:
                yield Parent(process, url, Path(folder), [int(pid) for pid in pids])
            finally:
                if process.returncode is None:
                    process.kill()

    return started


async def _ended(pid: int) -> None:
    """Until the process, which is not our child, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(handle)
    finally:
        os.close(handle)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for another's child")
async def test_children_end_with_their_parent_and_tidy_up(
    parent: Callable[[], AbstractAsyncContextManager[Parent]],
) -> None:
    async with parent() as server:
        codec = server.children[0]
        assert psutil.Process(codec).ppid() == server.process.pid
        assert len(list(server.folder.iterdir())) > 3
        server.process.kill()
        with anyio.fail_after(5):
            await _ended(codec)
        assert await server.process.wait() == -signal.SIGKILL
        assert not server.folder.exists()


async def test_the_next_server_tidies_up_after_one_that_was_killed(runtime: Path) -> None:
    dead = run_folder.base() / "4711.dead"
    dead.mkdir(parents=True, mode=0o700)
    run_folder.base().chmod(0o700)
    (dead / "lock").touch()
    with run_folder.run_folder() as folder:
        assert not dead.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert run_folder.running() == [folder]
    assert run_folder.running() == []


async def test_one_process_of_a_server_can_be_alone_while_it_starts(tmp_path: Path) -> None:
    def others_may_start() -> bool:
        with (tmp_path / "starting").open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    waited: list[None] = []
    with run_folder.starting(tmp_path) as alone, ExitStack() as others:
        assert others_may_start()
        others.enter_context(run_folder.starting(tmp_path))

        def waiting() -> None:
            waited.append(None)
            others.close()

        with alone(waiting):
            assert not others_may_start()
        assert others_may_start()
    assert waited, "for the other, which was starting"


async def test_others_cannot_lend_the_folder(runtime: Path) -> None:
    run_folder.base().mkdir(mode=0o755)
    run_folder.base().chmod(0o755)
    with pytest.raises(Exception, match="is not private to you"), run_folder.run_folder():
        pass


async def test_sigterm_drains(parent: Callable[[], AbstractAsyncContextManager[Parent]]) -> None:
    """As a service manager does it: to every process at once."""
    body = {"input": "slow@5", "response_format": "pcm", "voice": "any"}
    async with parent() as server, httpx.AsyncClient(base_url=server.url, timeout=20) as http:
        async with http.stream("POST", "/v1/audio/speech", json=body) as response:
            assert response.status_code == 200
            for pid in (server.process.pid, *server.children):
                os.kill(pid, signal.SIGTERM)
            data = b"".join([piece async for piece in response.aiter_raw()])
        assert len(data) == 40 * 128
        with anyio.fail_after(10):
            assert await server.process.wait() == 0
        assert not any(psutil.pid_exists(pid) for pid in server.children)
        assert not server.folder.exists()


async def test_a_child_alone_ends_when_its_input_does(vices: Path) -> None:
    """Before it has been told anything, too."""
    async with await anyio.open_process(
        [sys.executable, "-P", "-m", "vivavoce.bus.child"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdin is not None
        await child.stdin.aclose()
        with anyio.fail_after(10):
            assert await child.wait() == PARENT_GONE
