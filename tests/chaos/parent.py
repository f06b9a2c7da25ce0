"""A server over `vices`, as a process that tests can kill: prints its address, its processes and its folder."""

import functools
import sys
from pathlib import Path

import anyio

from vivavoce.api import serve
from vivavoce.bus.layout import load
from vivavoce.bus.running import Running


def main() -> None:
    serve.Running = functools.partial(Running, module="vices")  # type: ignore[misc]

    def listening(url: str, running: Running) -> None:
        assert running.tap is not None
        folder = Path(running.tap.removeprefix("ipc://")).parent
        pids = " ".join(str(process.pid) for process in running.processes())
        print(f"{url} {folder} {pids}", flush=True)

    async def run() -> None:
        await serve.serve(load(Path(sys.argv[1])), listening=listening)

    anyio.run(run)


if __name__ == "__main__":
    main()
