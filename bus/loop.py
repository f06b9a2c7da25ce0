"""The stages of one event loop, wired: memory channels inside, ZeroMQ links to other loops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import zmq

from .channel import Inbox, Mailbox, Outbox, Sender, Stage
from .layout import Layout, LinkSettings
from .messages import LINKS, Message
from .wire import Link, kinds


@dataclass(frozen=True)
class Station:
    """One loop of a running layout: which process, which of its loops, and how to reach the others."""

    layout: Layout
    process: str
    kind: str  # "loop" or "device"
    context: zmq.Context[Any] = field(repr=False)
    folder: Path
    """Private folder for Unix sockets."""

    @property
    def stages(self) -> tuple[str, ...]:
        process = next(p for p in self.layout.process if p.name == self.process)
        return process.device if self.kind == "device" else process.loop

    def address(self, link: LinkSettings) -> str:
        name = f"{link.source}-{link.target}"
        if self.layout.transport(link) == "inproc":
            return f"inproc://{self.folder.name}/{name}"
        return f"ipc://{self.folder}/{name}.sock"

    def binds(self, link: LinkSettings) -> bool:
        """The loop that is named first in the layout binds; the other connects."""
        order = [(p.name, kind) for p in self.layout.process for kind in ("loop", "device")]
        ends = [
            order.index(place) for stage in (link.source, link.target) if (place := self.layout.place(stage))
        ]
        return order.index((self.process, self.kind)) == min(ends)


class Wiring:
    """Opens the channels of a station's stages and runs them. Use as an async context manager."""

    def __init__(self, station: Station, *, watch: Callable[[str, Message], None] | None = None) -> None:
        self._station = station
        self._watch = watch
        self._mailboxes: dict[str, Mailbox] = {}
        self._links: list[Link] = []
        self._pumps: list[tuple[Link, Sender]] = []
        self._outgoing: dict[str, list[tuple[Sender, frozenset[type[Message]]]]] = {}

    async def __aenter__(self) -> "Wiring":
        station = self._station
        links = station.layout.links()
        for stage in station.stages:
            capacity = sum(link.capacity for link in links if link.target == stage)
            self._mailboxes[stage] = Mailbox(capacity)
            self._outgoing[stage] = []
        for settings in links:
            union = LINKS[settings.source, settings.target]
            here, there = settings.source in self._mailboxes, settings.target in self._mailboxes
            if here and there:
                self._outgoing[settings.source].append(
                    (self._mailboxes[settings.target].sender(), kinds(union))
                )
            elif here or there:
                link = Link(station.context, station.address(settings), union, bind=station.binds(settings))
                self._links.append(link)
                if here:
                    self._outgoing[settings.source].append((link, kinds(union)))
                else:
                    self._pumps.append((link, self._mailboxes[settings.target].sender()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        for senders in self._outgoing.values():
            for sender, _kinds in senders:
                if not isinstance(sender, Link):
                    sender.close()  # type: ignore[attr-defined]
        for _link, sender in self._pumps:
            sender.close()  # type: ignore[attr-defined]
        for mailbox in self._mailboxes.values():
            mailbox.close()

    def inbox(self, stage: str) -> Inbox:
        return self._mailboxes[stage].inbox

    def outbox(self, stage: str) -> Outbox:
        watch = self._watch
        return Outbox(self._outgoing[stage], None if watch is None else lambda message: watch(stage, message))

    def waiting(self) -> dict[str, int]:
        """Messages in each inbox."""
        return {stage: mailbox.waiting for stage, mailbox in self._mailboxes.items()}

    async def run(self, stages: Mapping[str, Stage]) -> None:
        """Run the stages until cancelled. An exception that is not one request's own ends the loop."""
        async with anyio.create_task_group() as tasks:
            for link, sender in self._pumps:
                tasks.start_soon(link.pump, sender)
            for name, stage in stages.items():
                tasks.start_soon(stage.run, self.inbox(name), self.outbox(name))
