"""Typed, bounded channels between stages of one event loop, and the outbox that routes into them.

A stage owns one inbox and one outbox. It never learns whether a neighbour shares its loop.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .messages import Message

Inbox = MemoryObjectReceiveStream[Message]


class Sender(Protocol):
    """The sending end of a channel."""

    async def send(self, item: Message) -> None: ...


class Mailbox:
    """A stage's inbox: `capacity` messages, then senders wait."""

    def __init__(self, capacity: int) -> None:
        self._send, self.inbox = anyio.create_memory_object_stream[Message](capacity)

    def sender(self) -> MemoryObjectSendStream[Message]:
        """A new sending end; whoever takes it closes it."""
        return self._send.clone()

    def finish(self) -> None:
        """No more sending ends are handed out: the inbox ends when those that were are closed."""
        self._send.close()

    def close(self) -> None:
        self._send.close()
        self.inbox.close()

    @property
    def waiting(self) -> int:
        return self.inbox.statistics().current_buffer_used


class Outbox:
    """A stage's outgoing links: a message goes to each that carries its type, in the order of the links."""

    def __init__(
        self,
        links: Sequence[tuple[Sender, frozenset[type[Message]]]],
        watch: Callable[[Message], None] | None = None,
    ) -> None:
        kinds = frozenset[type[Message]]().union(*(carried for _, carried in links))
        self._routes = {kind: tuple(s for s, carried in links if kind in carried) for kind in kinds}
        self._watch = watch

    async def send(self, message: Message) -> None:
        """Send to every link that carries this type. Raises KeyError where none does: the stage is wrong."""
        if self._watch is not None:
            self._watch(message)
        for sender in self._routes[type(message)]:
            if isinstance(sender, MemoryObjectSendStream):
                # Without a turn of the loop, as long as there is room: what is sent in a row arrives in a row.
                with suppress(anyio.WouldBlock):
                    sender.send_nowait(message)
                    continue
            await sender.send(message)


class Stage(Protocol):
    """An actor: one inbox, one outbox, one job."""

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        """Serve requests until the inbox ends."""
        ...

    def open_requests(self) -> tuple[str, ...]:
        """Requests that this stage holds state for."""
        ...
