"""`vivavoce bench chat --against mlx-lm-server`: what its client measures of a server."""

import anyio.to_thread
import pytest

from vivavoce.api.cli import parser
from vivavoce.bus.errors import StartError
from vivavoce.stages.bench.chat_http import HttpResult, Runs, Server, table

from .conftest import Server as Serving


async def test_a_round(chat_server: Serving) -> None:
    server = Server([], "tiny")
    server.port = chat_server.port
    words = ["bench", "chat", "--model", "m", "--against", "mlx-lm-server", "--tokens", "6"]
    args = parser().parse_args([*words, "--prompt-tokens", "100"])
    phases: list[str] = []
    runs = Runs(server, args, phases.append)
    rate = await anyio.to_thread.run_sync(runs.warm_up)
    await anyio.to_thread.run_sync(runs.run, 0, rate)
    assert [phase for phase in phases if phase.endswith("clients of run 1")] == [
        f"{count} clients of run 1" for count in (1, 4, 8)
    ]
    side = runs.result()
    assert min(side.ttft_cold_s, side.ttft_continued_s, side.ttft_edited_s, side.decode) > 0
    assert set(side.clients) == {1, 4, 8}
    assert min(side.clients.values()) > 0
    told = await anyio.to_thread.run_sync(server.chat, [{"role": "user", "content": "Hi."}], 5)
    assert told.tokens == 5
    assert told.text
    result = HttpResult(
        model="tiny",
        device="none",
        mlx_lm="0",
        runs=1,
        tokens=6,
        prompt_tokens=100,
        vivavoce=side,
        mlx_lm_server=side,
    )
    assert table(result).count("1.000") == 7


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StartError, match="no such thing"), Server(["-c", "exit('no such thing')"], "m"):
        pytest.fail("it started")
