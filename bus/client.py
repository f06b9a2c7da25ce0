"""The API's end of the pipelines: opens requests, hands each its own messages, and always closes them."""

from types import TracebackType
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from .channel import Inbox, Outbox
from .messages import Audio, Close, Credit, Ending, Failure, Message, Speak, Text


class Client:
    """The stage `api`: one for each API loop."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._streams: dict[str, MemoryObjectSendStream[Audio | Ending]] = {}

    async def run(self, inbox: Inbox) -> None:
        """Hand out what the pipelines answer, until cancelled."""
        async for message in inbox:
            stream = self._streams.get(message.request)
            if stream is not None and isinstance(message, Audio | Ending):
                # Never full: credits allow fewer messages than the stream has places.
                stream.send_nowait(message)

    def speak(self, speak: Speak) -> "SpeechRequest":
        """A speech request, to be entered with `async with`."""
        return SpeechRequest(self, speak)

    def active(self) -> int:
        return len(self._streams)

    def fail_all(self, failure: Failure) -> None:
        """End every open request with an error: its stages are gone."""
        for request, stream in self._streams.items():
            stream.send_nowait(Ending(request=request, reason="error", failure=failure))

    def attach(self, request: str, places: int) -> MemoryObjectReceiveStream[Audio | Ending]:
        send, receive = anyio.create_memory_object_stream[Audio | Ending](places)
        self._streams[request] = send
        return receive

    def detach(self, request: str) -> None:
        self._streams.pop(request).close()

    async def send(self, message: Message) -> None:
        await self._outbox.send(message)


class SpeechRequest:
    """One running request: iterate it for `Audio`, then read `ending`. Leaving the block closes it."""

    def __init__(self, client: Client, speak: Speak) -> None:
        self._client = client
        self._speak = speak
        self.ending: Ending | None = None

    async def __aenter__(self) -> Self:
        # One place a frame, and some for a container's own head and tail, and the ending.
        self._stream = self._client.attach(self._speak.request, self._speak.lookahead + 16)
        await self._client.send(self._speak)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.detach(self._speak.request)
        self._stream.close()
        with anyio.CancelScope(shield=True):
            await self._client.send(Close(request=self._speak.request))

    async def text(self, text: str, *, final: bool = False) -> None:
        await self._client.send(Text(request=self._speak.request, text=text, final=final))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Audio:
        if self.ending is not None:
            raise StopAsyncIteration
        message = await self._stream.receive()
        if isinstance(message, Ending):
            self.ending = message
            raise StopAsyncIteration
        if message.frames:
            await self._client.send(Credit(request=self._speak.request, frames=message.frames))
        return message
