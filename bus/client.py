"""The API's end of the pipelines: opens requests, hands each its own messages, and always closes them."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec

from .channel import Inbox, Outbox
from .messages import (
    Audio,
    Chat,
    ChatAccepted,
    ChatCredit,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    Close,
    Credit,
    Ending,
    Failure,
    Message,
    Speak,
    Text,
)

ChatPart = ChatAccepted | ChatStarted | ChatDelta | ChatFinished | ChatDone
Part = TypeVar("Part", bound=Message)


class Client:
    """The stage `api`: one for each API loop."""

    def __init__(self, outbox: Outbox, ended: Callable[[Ending], None] = lambda _: None) -> None:
        """:param ended: is told how each request ended."""
        self._outbox = outbox
        self._ended = ended
        self._requests: dict[str, OpenRequest[Message]] = {}
        # Never more than the open requests: each is closed once.
        self._closing, self._closed = anyio.create_memory_object_stream[Close](math.inf)

    async def run(self, inbox: Inbox) -> None:
        """Hand out what the pipelines answer, until cancelled."""
        with self._closing, self._closed:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_closed)
                async for message in inbox:
                    request = self._requests.get(message.request)
                    if request is not None and not isinstance(message, Speak):
                        request.take(message)
                tasks.cancel_scope.cancel()

    def speak(self, speak: Speak, *, chunk: int = 8) -> "SpeechRequest":
        """A speech request, to be entered with `async with`. `chunk` is the most frames that arrive at once."""
        return SpeechRequest(self, speak, chunk)

    def chat(self, chat: Chat) -> "ChatRequest":
        """A chat request, to be entered with `async with`."""
        return ChatRequest(self, chat)

    def active(self) -> int:
        return len(self._requests)

    def fail_all(self, failure: Failure, families: tuple[str, ...] = ("speech", "chat")) -> None:
        """End every open request of some families with an error: their stages are gone."""
        for name, request in self._requests.items():
            if request.family in families:
                request.take(Ending(request=name, reason="error", failure=failure))

    def attach(self, name: str, request: "OpenRequest[Message]") -> None:
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


class OpenRequest(Generic[Part]):
    """One running request: iterate it for its parts, then read `ending`. Leaving the block closes it."""

    family = ""

    def __init__(self, client: Client, opening: Message) -> None:
        self._client = client
        self._opening = opening
        self._open = False
        # Bounded by credits: at most one message a frame or token, and those that begin and end a request.
        self._messages: deque[tuple[float, Message]] = deque()
        self._arrival = anyio.Event()
        self.ending: Ending | None = None
        self.arrived = 0.0
        """When the message last handed out reached this loop, by `time.perf_counter`."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Send the request. Whoever calls this calls `close`."""
        self._client.attach(self._opening.request, cast(OpenRequest[Message], self))
        self._open = True
        try:
            await self._client.send(self._opening)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the request, finished or not, and wake its reader with `cancelled`. More calls do nothing."""
        if self._open:
            self._open = False
            self._messages.clear()
            self.ending = self.ending or Ending(request=self._opening.request, reason="cancelled")
            self._client.detach(self._opening.request, self.ending)
            self._arrival.set()

    def take(self, message: Message) -> None:
        """Called by the client with what arrives."""
        self._messages.append((time.perf_counter(), message))
        self._arrival.set()

    @property
    def ready(self) -> bool:
        """Whether the next message is here, or the ending."""
        return bool(self._messages) or self.ending is not None

    async def wait(self) -> None:
        """Until the next message is here, or the ending. It is not taken, so that a time limit loses nothing."""
        if self.ready:
            await anyio.lowlevel.checkpoint()
        else:
            self._arrival = anyio.Event()
            await self._arrival.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        await self.wait()
        if self.ending is not None:
            raise StopAsyncIteration
        self.arrived, message = self._messages.popleft()
        if isinstance(message, Ending):
            self.ending = message
            raise StopAsyncIteration
        part = cast(Part, message)
        await self.taken(part)
        return part

    async def taken(self, part: Part) -> None:
        """A part is handed out: grant as much more."""


class SpeechRequest(OpenRequest[Audio]):
    family = "speech"

    def __init__(self, client: Client, speak: Speak, chunk: int) -> None:
        # Frame 1 is begun when frame 0 has been taken: stages in other processes would compete with it.
        super().__init__(client, msgspec.structs.replace(speak, lookahead=1))
        self._chunk = chunk
        self._ahead = 1
        self._withheld = speak.lookahead - 1
        self._parked_since: float | None = None
        self.parked_s = 0.0
        """How long the pipeline stood still because nothing was taken from here."""

    def take(self, message: Message) -> None:
        if isinstance(message, Audio):
            self._ahead -= message.frames
            # Fewer frames than a chunk: the codec decoder may be unable to fill its next one.
            self._parked_since = time.perf_counter() if self._ahead < self._chunk else None
        super().take(message)

    async def text(self, text: str, *, final: bool = False) -> None:
        await self._client.send(Text(request=self._opening.request, text=text, final=final))

    async def played(self, seconds: float) -> None:
        """The client has played so much of the audio by now."""
        await self._client.send(Credit(request=self._opening.request, frames=0, played_s=seconds))

    async def taken(self, part: Audio) -> None:
        if part.frames:
            frames, self._withheld = part.frames + self._withheld, 0
            self._ahead += frames
            if self._parked_since is not None and self._ahead >= self._chunk:
                self.parked_s += time.perf_counter() - self._parked_since
                self._parked_since = None
            await self._client.send(Credit(request=part.request, frames=frames))


class ChatRequest(OpenRequest[ChatPart]):
    family = "chat"

    def __init__(self, client: Client, chat: Chat) -> None:
        super().__init__(client, chat)
        self._taken = 0
        # One credit for several tokens: a message each would wake the device's loop twice as often.
        self._batch = max(1, chat.lookahead // 4)

    async def taken(self, part: ChatPart) -> None:
        if isinstance(part, ChatDelta):
            self._taken += part.tokens
            if self._taken >= self._batch:
                tokens, self._taken = self._taken, 0
                await self._client.send(ChatCredit(request=part.request, tokens=tokens))
