"""A party's end of the lease: what is told is taken in its order, by the loop or by a look between slices."""

import select
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.bus import wire
from vivavoce.bus.layout import Schedule
from vivavoce.bus.lease import LeaseLine
from vivavoce.bus.schedule import Ask, Grant, Recall, Release, Said, Told
from vivavoce.bus.turns import Party

_ids = count()


class Noting(Party):
    """Remembers what it was told, and can be waited for."""

    def __init__(self, line: LeaseLine) -> None:
        super().__init__(Schedule(), line.tell, look=line.look, drain=lambda: None)
        self.told: list[Told] = []
        self._came = anyio.Event()

    def take(self, told: Told) -> None:
        self.told.append(told)
        self._came.set()
        super().take(told)

    async def until(self, number: int) -> None:
        while len(self.told) < number:
            self._came = anyio.Event()
            await self._came.wait()


class Parent:
    """The other end."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.bind(address)
        self._decode = wire.Decoder(Said)

    def tell(self, told: Told) -> None:
        self.socket.send(wire.encode(told))

    def hear(self) -> Said:
        assert self.socket.poll(5000)
        return self._decode(self.socket.recv())


@pytest.fixture
def context() -> Generator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.term()


def _joined(context: zmq.Context[Any], folder: Path) -> tuple[Parent, LeaseLine, Noting]:
    """Both ends, of which the party has said that it is there."""
    address = f"ipc://{folder}/{next(_ids)}"
    parent, line = Parent(context, address), LeaseLine(context, address)
    party = Noting(line)
    line.open(party)
    party.join()
    assert parent.hear() == Release(0)
    return parent, line, party


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["tell", "look", "turn", "say"]), max_size=60))
async def test_nothing_is_lost_or_overtaken(
    context: zmq.Context[Any], tmp_path: Path, steps: list[str]
) -> None:
    parent, line, party = _joined(context, tmp_path)
    told: list[Told] = []
    for step in steps:
        match step:
            case "tell":
                told.append(Grant(len(told), False))
                parent.tell(told[-1])
            case "look":
                party.recalled()
            case "turn":
                await anyio.lowlevel.checkpoint()
            case _:
                party.join()
    with anyio.fail_after(10):
        await party.until(len(told))
    assert party.told == told
    line.close()
    parent.socket.close()


async def test_a_recall_is_seen_without_a_turn_of_the_loop(context: zmq.Context[Any], tmp_path: Path) -> None:
    parent, line, party = _joined(context, tmp_path)
    parent.tell(Grant(1, False))
    with anyio.fail_after(10):
        async with party:
            assert parent.hear() == Ask()
            assert not party.recalled()
            parent.tell(Recall())
            while not party.recalled():  # it is on its way through two threads of ZeroMQ
                assert select.select([line.fd], [], [], 5)[0]
            assert party.held
    assert not party.held
    assert parent.hear() == Release(1)
    line.close()
    parent.socket.close()
