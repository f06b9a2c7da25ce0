"""Where the arbiter runs: in the one device thread that all share, or in the parent, over ZeroMQ.

One DEALER–DEALER pair a party, which the parent binds at a fresh endpoint with each incarnation of the party's
process. The party speaks first: a bound socket cannot send before the other end is there.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import zmq
import zmq.asyncio
from anyio.abc import TaskGroup

from . import wire
from .layout import Layout, Schedule
from .loop import Station
from .messages import FAMILIES
from .schedule import Arbiter, Said, Told
from .turns import Party, SpeechParty, Trace

ROUNDS = 8
"""Turns of the loop from a message's socket through a stage to the party of speech, where that is in chat's loop:
as many are left to others behind each slice of chat, or speech would have the device a slice too late."""


class LoopArbiter(Arbiter):
    """An arbiter whose timer is the running event loop's."""

    _timer: asyncio.TimerHandle | None = None

    def check(self) -> float | None:
        when = super().check()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer = asyncio.get_running_loop().call_later(when - time.monotonic(), self.check)
        return when


class LeaseServer:
    """The parent's end."""

    def __init__(self, layout: Layout, context: zmq.Context[Any], folder: Path, tasks: TaskGroup) -> None:
        self._layout = layout
        self._context = context
        self._folder = folder
        self._tasks = tasks
        self._lines: dict[str, tuple[zmq.asyncio.Socket, anyio.CancelScope]] = {}
        speech = layout.place("talker")
        self._arbiter = LoopArbiter(layout.schedule, self._tell, rest=speech and f"{speech[0]}/speech")
        for process in layout.lessees():
            self.open(process, 0)

    def open(self, process: str, epoch: int) -> None:
        """Listen to a process that is about to start, as this incarnation, and forget the one before."""
        for family in self._layout.lessees().get(process, ()):
            name = f"{process}/{family}"
            if name in self._lines:
                socket, scope = self._lines.pop(name)
                scope.cancel()
                socket.close()
                self._arbiter.leave(name)
            address = _address(self._layout, self._folder, process, family, epoch)
            line = wire.control_socket(self._context, address, bind=True), anyio.CancelScope()
            self._lines[name] = line
            self._tasks.start_soon(self._listen, name, *line)

    def close(self) -> None:
        for socket, _ in self._lines.values():
            socket.close()

    async def _listen(self, name: str, socket: zmq.asyncio.Socket, scope: anyio.CancelScope) -> None:
        decode = wire.Decoder(Said)
        with scope:
            while True:
                self._arbiter.hear(name, decode((await socket.recv_multipart())[0]))

    def _tell(self, name: str, told: Told) -> None:
        self._lines[name][0].send(wire.encode(told))


class LeaseLine:
    """A party's end, on the loop of its device thread.

    It has no task of its own: a party looks whether it is recalled between two slices, when no turn of the loop is
    to be waited for, and what is told must be taken in its order whoever reads it.
    """

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.connect(address)
        self._decode = wire.Decoder(Told)
        self._loop = asyncio.get_running_loop()
        self.fd = self._socket.get(zmq.FD)
        """Readable when something may have come."""

    def open(self, party: Party) -> None:
        self._party = party
        self._loop.add_reader(self.fd, self.look)

    def close(self) -> None:
        self._loop.remove_reader(self.fd)
        self._socket.close()

    def tell(self, said: Said) -> None:
        self._socket.send(wire.encode(said), zmq.DONTWAIT)
        # Sending may have taken the sign that something came, which is given once.
        self._loop.call_soon(self.look)

    def look(self) -> None:
        """Take what has been told by now."""
        with suppress(zmq.Again):
            while not self._socket.closed:
                self._party.take(self._decode(self._socket.recv(zmq.DONTWAIT)))


class Parties(NamedTuple):
    """The two families' ends on one device thread."""

    speech: SpeechParty
    chat: Party

    def named(self, family: str) -> Party:
        return self.speech if family == "speech" else self.chat


@asynccontextmanager
async def parties(station: Station, drain: Callable[[], None]) -> AsyncGenerator[Parties]:
    """The parties of a device thread, as its layout wants them to share.

    :param drain: waits for what is queued on the device.
    """
    layout, process, schedule = station.layout, station.process, station.layout.schedule
    with ExitStack() as stack:

        def make(
            tells: Mapping[str, Callable[[Said], object]],
            drain: Callable[[], None] | None = None,
            look: Callable[[], None] = lambda: None,
        ) -> Parties:
            rounds = ROUNDS if len(layout.families(process)) == len(FAMILIES) else 1
            traces = {family: _trace(schedule, process, family, stack) for family in layout.families(process)}
            speech, chat = traces.get("speech", _untraced), traces.get("chat", _untraced)
            return Parties(
                SpeechParty(schedule, tells.get("speech"), stages=station.stages, drain=drain, trace=speech),
                Party(schedule, tells.get("chat"), look=look, rounds=rounds, drain=drain, trace=chat),
            )

        match layout.sharing(process):
            case None:
                yield make({})
            case "thread":

                def tell(family: str, told: Told) -> None:
                    made.named(family).take(told)

                arbiter = LoopArbiter(schedule, tell, rest="speech")
                # Both queue on one stream, in the order of their turns: nothing has to be waited for.
                made = make({family: partial(arbiter.hear, family) for family in FAMILIES})
                yield made
            case "lease":
                epoch = station.epochs.get(process, 0)
                address = partial(_address, layout, station.folder, process, epoch=epoch)
                lines = {
                    family: stack.enter_context(closing(LeaseLine(station.context, address(family))))
                    for family in layout.lessees()[process]
                }
                look = lines["chat"].look if "chat" in lines else lambda: None
                made = make({family: line.tell for family, line in lines.items()}, drain, look)
                for family, line in lines.items():
                    line.open(made.named(family))
                yield made


def _untraced(_what: str, _begun: float, _ended: float) -> None:
    pass


def _trace(settings: Schedule, process: str, family: str, stack: ExitStack) -> Trace:
    if settings.trace is None:
        return _untraced
    file = stack.enter_context(Path(settings.trace, f"{process}-{family}.jsonl").open("a"))  # noqa: SIM115
    return lambda what, begun, ended: file.write(f'["{what}", {begun:.6f}, {ended:.6f}]\n')


def _address(layout: Layout, folder: Path, process: str, family: str, epoch: int) -> str:
    number = layout.process.index(layout.find(process))
    return f"ipc://{folder}/{family[0]}{number}-{epoch}"
