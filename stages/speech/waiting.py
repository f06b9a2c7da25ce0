"""An inbox in which a stage sees who has left before it begins something long for them."""

from collections import deque
from contextlib import suppress

import anyio
import anyio.lowlevel

from ...bus.channel import Inbox
from ...bus.messages import Close, Message, Speak


class Waiting:
    """Iterates over an inbox, without the requests that are closed before their turn comes."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._seen: deque[Message] = deque()
        self._closed: set[str] = set()

    def closed(self, request: str) -> bool:
        """Whether a `Close` of this request waits."""
        with suppress(anyio.WouldBlock, anyio.EndOfStream):
            while True:
                message = self._inbox.receive_nowait()
                self._seen.append(message)
                if isinstance(message, Close):
                    self._closed.add(message.request)
        return request in self._closed

    def __aiter__(self) -> "Waiting":
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self._seen.popleft() if self._seen else await self._next()
            if isinstance(message, Close):
                self._closed.discard(message.request)
            if not (isinstance(message, Speak) and await self._given_up(message.request)):
                return message

    async def _given_up(self, request: str) -> bool:
        """`closed`, once nothing more arrives: a link hands over one message each time the loop goes round."""
        seen = -1
        while not self.closed(request):
            if len(self._seen) == seen:
                return False
            seen = len(self._seen)
            await anyio.lowlevel.checkpoint()
        return True

    async def _next(self) -> Message:
        try:
            return await self._inbox.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
