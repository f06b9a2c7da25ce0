"""The stages of one event loop, wired: memory channels inside, ZeroMQ links to other loops."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import zmq
from anyio.abc import TaskGroup

from .channel import Inbox, Mailbox, Outbox, Sender, Stage
from .keys import Keys
from .layout import Layout, LinkSettings
from .messages import LINKS, Ending, Failure, Message
from .tap import Publisher, Tally
from .wire import Incoming, Outgoing, kinds, tag

EDGES = tuple(LINKS)


@dataclass(frozen=True)
class Station:
    """One loop of a running layout: which process, which of its loops, and how to reach the others."""

    layout: Layout
    process: str
    kind: str  # "loop" or "device"
    context: zmq.Context[Any] = field(repr=False)
    folder: Path
    """Private folder for Unix sockets."""
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    """Incarnation of each process; every link's address names those of both its ends."""
    keys: Keys | None = field(default=None, repr=False)
    """For links over TCP."""
    taps: str | None = None
    """Address that what flows here is published to."""
    tally: Tally = field(default_factory=Tally)

    def beside(self, kind: str) -> "Station":
        """The other loop of the same process."""
        return replace(self, kind=kind, epochs=dict(self.epochs), tally=Tally())

    @property
    def stages(self) -> tuple[str, ...]:
        process = self.layout.find(self.process)
        return process.device if self.kind == "device" else process.loop

    @property
    def deaths(self) -> int:
        """How many deaths of processes this loop knows of and has linked around."""
        return sum(self.epochs.values())

    def address(self, link: LinkSettings) -> str:
        transport = self.layout.transport(link)
        if transport == "tcp":
            assert link.address is not None
            return link.address
        # A number, since the path of a Unix socket may have about 100 bytes only.
        name = "-".join(str(part) for part in (EDGES.index((link.source, link.target)), *self._ends(link)))
        return (
            f"inproc://{self.folder.name}/{name}" if transport == "inproc" else f"ipc://{self.folder}/{name}"
        )

    def tag(self, link: LinkSettings) -> bytes:
        """What messages begin with where the address does not tell incarnations apart."""
        return tag(*self._ends(link)) if self.layout.transport(link) == "tcp" else b""

    def _ends(self, link: LinkSettings) -> tuple[int, int]:
        """Incarnations of the processes at both ends."""
        return self.epochs.get(self.home(link.source), 0), self.epochs.get(self.home(link.target), 0)

    def home(self, stage: str) -> str:
        """The process that runs a stage."""
        place = self.layout.place(stage)
        assert place is not None
        return place[0]


class Wiring:
    """The channels of a station's stages. Open it with `async with`, in the task that later leaves it."""

    def __init__(self, station: Station, *, watch: Callable[[str, Message], None] | None = None) -> None:
        self._station = station
        self._watch = watch
        self._stack = ExitStack()
        self._mailboxes: dict[str, Mailbox] = {}
        self._senders: dict[str, list[tuple[Sender, frozenset[type[Message]]]]] = {}
        self._outgoing: dict[tuple[str, str], Outgoing] = {}
        self._incoming: dict[tuple[str, str], tuple[Incoming, anyio.CancelScope]] = {}
        self._stages: Mapping[str, Stage] = {}
        self.ended: Callable[[Ending], None] = lambda _: None
        """To be told the one ending of each request, for taps."""

    async def __aenter__(self) -> "Wiring":
        try:
            self._make_channels()
        except BaseException:
            self._stack.close()
            raise
        self._tasks: TaskGroup = await anyio.create_task_group().__aenter__()
        try:
            self._start()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    def _make_channels(self) -> None:
        station, links = self._station, self._station.layout.links()
        for stage in station.stages:
            mailbox = Mailbox(sum(link.capacity for link in links if link.target == stage))
            self._stack.callback(mailbox.close)
            self._mailboxes[stage] = mailbox
            self._senders[stage] = []
        for link in links:
            if link.source not in self._mailboxes:
                continue
            if link.target in self._mailboxes:
                sender = self._stack.enter_context(self._mailboxes[link.target].sender())
            else:
                sender = Outgoing(station.context, station.address(link), station.keys, station.tag(link))
                self._stack.callback(sender.close)
                self._outgoing[link.source, link.target] = sender
            self._senders[link.source].append((sender, kinds(LINKS[link.source, link.target])))

    def _start(self) -> None:
        """Take what other loops send, and let taps hear what is sent here."""
        station = self._station
        for link in self._links_in():
            self._listen(link)
        if station.taps is not None and self._watch is None:
            backlog = station.layout.taps.backlog
            publisher = Publisher(station.context, station.taps, backlog, station.tally, station.keys)
            self._watch, self.ended = publisher.watch, publisher.ended
            self._tasks.start_soon(publisher.listen)

    async def __aexit__(self, *error: Any) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(*error)
        finally:
            self._stack.close()

    def _links_in(self) -> list[LinkSettings]:
        here = self._mailboxes
        return [
            link for link in self._station.layout.links() if link.target in here and link.source not in here
        ]

    def _listen(self, link: LinkSettings) -> None:
        """Bind a link's address and take what arrives there, instead of at the address before."""
        station, edge = self._station, (link.source, link.target)
        if edge in self._incoming:
            incoming, scope = self._incoming.pop(edge)
            if tag := station.tag(link):
                incoming.tag = tag  # the address stays, and what the dead left in it is told by its tag
                self._incoming[edge] = incoming, scope
                return
            scope.cancel()
        incoming = Incoming(
            station.context, station.address(link), LINKS[edge], station.keys, station.tag(link)
        )
        scope = anyio.CancelScope()
        self._incoming[edge] = incoming, scope
        self._tasks.start_soon(self._pump, incoming, link.target, scope)

    async def _pump(self, incoming: Incoming, target: str, scope: anyio.CancelScope) -> None:
        with scope, self._mailboxes[target].sender() as inbox:
            await incoming.pump(inbox)

    def inbox(self, stage: str) -> Inbox:
        return self._mailboxes[stage].inbox

    def outbox(self, stage: str) -> Outbox:
        watch = self._watch
        return Outbox(self._senders[stage], None if watch is None else lambda message: watch(stage, message))

    def run(self, stages: Mapping[str, Stage]) -> None:
        """Start the stages. An exception that is not one request's own ends the loop."""
        self._stages = stages
        for name, stage in stages.items():
            self._tasks.start_soon(stage.run, self.inbox(name), self.outbox(name))

    def relink(self, process: str, epoch: int, failure: Failure) -> None:
        """Another process has died and comes back as `epoch`: end what it fed, and link to its successor."""
        station = self._station
        station.epochs[process] = epoch
        for link in station.layout.links():
            edge = (link.source, link.target)
            if edge in self._outgoing and station.home(link.target) == process:
                self._outgoing[edge].reopen(station.address(link), station.tag(link))
        for link in self._links_in():
            if station.home(link.source) == process:
                self._listen(link)
                if link.target in self._stages:
                    self._tasks.start_soon(self._fail, link.target, failure)

    async def _fail(self, stage: str, failure: Failure) -> None:
        with self._mailboxes[stage].sender() as inbox:
            for request in self._stages[stage].open_requests():
                await inbox.send(Ending(request=request, reason="error", failure=failure))
