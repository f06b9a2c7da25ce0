"""The API's end of the pipelines: opens requests, hands each its own messages, and always closes them."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from .channel import Inbox, Outbox
from .messages import Audio, Close, Credit, Ending, Failure, Message, Speak, Text


class Client:
    """The stage `api`: one for each API loop."""

    def __init__(self, outbox: Outbox, ended: Callable[[Ending], None] = lambda _: None) -> None:
        """:param ended: is told how each request ended."""
        self._outbox = outbox
        self._ended = ended
        self._requests: dict[str, SpeechRequest] = {}
        # Never more than the open requests: each is closed once.
        self._closing, self._closed = anyio.create_memory_object_stream[Close](math.inf)

    async def run(self, inbox: Inbox) -> None:
        """Hand out what the pipelines answer, until cancelled."""
        with self._closing, self._closed:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_closed)
                async for message in inbox:
                    request = self._requests.get(message.request)
                    if request is not None and isinstance(message, Audio | Ending):
                        request.take(message)
                tasks.cancel_scope.cancel()

    def speak(self, speak: Speak, *, chunk: int = 8) -> "SpeechRequest":
        """A speech request, to be entered with `async with`. `chunk` is the most frames that arrive at once."""
        return SpeechRequest(self, speak, chunk)

    def active(self) -> int:
        return len(self._requests)

    def fail_all(self, failure: Failure) -> None:
        """End every open request with an error: its stages are gone."""
        for name, request in self._requests.items():
            request.take(Ending(request=name, reason="error", failure=failure))

    def attach(self, name: str, request: "SpeechRequest") -> None:
        self._requests[name] = request

    def detach(self, name: str, ending: Ending) -> None:
        """Forget a request and have its stages told. Never waits, so no cancellation can come in between."""
        del self._requests[name]
        self._ended(ending)
        with suppress(anyio.ClosedResourceError):  # this client has stopped, and every stage with it
            self._closing.send_nowait(Close(request=name))

    async def send(self, message: Message) -> None:
        await self._outbox.send(message)

    async def _tell_closed(self) -> None:
        async for close in self._closed:
            await self._outbox.send(close)


class SpeechRequest:
    """One running request: iterate it for `Audio`, then read `ending`. Leaving the block closes it."""

    def __init__(self, client: Client, speak: Speak, chunk: int) -> None:
        self._client = client
        self._speak = speak
        self._chunk = chunk
        self._open = False
        # Bounded by credits: at most one message a frame, and a container's head and tail.
        self._messages: deque[tuple[float, Audio | Ending]] = deque()
        self._arrival = anyio.Event()
        self._ahead = speak.lookahead
        self._parked_since: float | None = None
        self.ending: Ending | None = None
        self.arrived = 0.0
        """When the message last handed out reached this loop, by `time.perf_counter`."""
        self.parked_s = 0.0
        """How long the pipeline stood still because nothing was taken from here."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Send the request. Whoever calls this calls `close`."""
        self._client.attach(self._speak.request, self)
        self._open = True
        try:
            await self._client.send(self._speak)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the request, finished or not, and wake its reader with `cancelled`. More calls do nothing."""
        if self._open:
            self._open = False
            self._messages.clear()
            self.ending = self.ending or Ending(request=self._speak.request, reason="cancelled")
            self._client.detach(self._speak.request, self.ending)
            self._arrival.set()

    def take(self, message: Audio | Ending) -> None:
        """Called by the client with what arrives."""
        now = time.perf_counter()
        if isinstance(message, Audio):
            self._ahead -= message.frames
            # Fewer frames than a chunk: the codec decoder may be unable to fill its next one.
            self._parked_since = now if self._ahead < self._chunk else None
        self._messages.append((now, message))
        self._arrival.set()

    async def text(self, text: str, *, final: bool = False) -> None:
        await self._client.send(Text(request=self._speak.request, text=text, final=final))

    async def wait(self) -> None:
        """Until the next message is here, or the ending. It is not taken, so that a time limit loses nothing."""
        if self._messages or self.ending is not None:
            await anyio.lowlevel.checkpoint()
        else:
            self._arrival = anyio.Event()
            await self._arrival.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Audio:
        await self.wait()
        if self.ending is not None:
            raise StopAsyncIteration
        self.arrived, message = self._messages.popleft()
        if isinstance(message, Ending):
            self.ending = message
            raise StopAsyncIteration
        if message.frames:
            self._ahead += message.frames
            if self._parked_since is not None and self._ahead >= self._chunk:
                self.parked_s += time.perf_counter() - self._parked_since
                self._parked_since = None
            await self._client.send(Credit(request=self._speak.request, frames=message.frames))
        return message
