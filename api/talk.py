"""What the chat routes share: how a request begins, and how its answer is told, as events or whole."""

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import anyio
import msgspec
from quart import Response

from ..bus.errors import RequestError
from ..bus.messages import Chat, Failure
from . import sse
from .chat_job import ChatJob, Choice
from .edge import Edge
from .exchange import current

AT_ONCE_S = 0.5
"""How long an answer's headers wait for the prompt to be read, so that the first event can say what was cached."""


class Asked(Protocol):
    model: str | None


Body = TypeVar("Body", bound=Asked)
Part = TypeVar("Part")
PartOut = TypeVar("PartOut", covariant=True)


def begin(edge: Edge, body: Body, chat_of: Callable[[Body, str, str, int], Chat], route: str) -> ChatJob:
    """The job of the current request; `chat_of` takes body, id, model and lookahead. Raises RequestError."""
    model = edge.catalog.find(body.model, "chat")
    chat = chat_of(body, current().id, model.name, edge.layout.chat.lookahead_tokens)
    return ChatJob(edge, current(), chat, route)


class Source(Protocol[PartOut]):
    """Where an answer comes from; see `ChatJob`."""

    def parts(self, silence_s: float = math.inf) -> AsyncIterator[PartOut | None]: ...

    async def whole(self) -> list[Choice]: ...

    def failure(self) -> Failure | None: ...


class Talk(ABC, Generic[Part]):
    """The answer to one request; each protocol says in its own words how it begins, goes on and ends."""

    silence = sse.COMMENT
    """What is sent while there is nothing to say."""

    def __init__(self, job: ChatJob, source: Source[Part]) -> None:
        self.job = job
        self._source = source

    @abstractmethod
    def begin(self) -> Iterable[bytes]: ...

    @abstractmethod
    def tell(self, part: Part) -> Iterable[bytes]: ...

    @abstractmethod
    def end(self) -> Iterable[bytes]:
        """Of an answer that came to a good end."""
        ...

    @abstractmethod
    def failed(self, failure: Failure) -> bytes:
        """The end of one that did not."""
        ...

    @abstractmethod
    def whole(self, choices: list[Choice]) -> dict[str, Any]: ...

    async def answer(self, keep_alive_s: float, *, streamed: bool) -> Response:
        """A stream, whose status is that of the acceptance, or all at once as JSON. Raises RequestError."""
        if not streamed:
            await self.job.start()
            told = self.whole(await self._source.whole())
            return Response(msgspec.json.encode(told), content_type="application/json")
        with anyio.move_on_after(AT_ONCE_S):
            await self.job.read()
        return sse.response(self._events(keep_alive_s))

    async def _events(self, keep_alive_s: float) -> AsyncIterator[bytes]:
        try:
            async for comment in sse.comments_until(self.job.start, keep_alive_s):
                yield comment
        except RequestError as error:
            yield self.failed(error.failure)
            return
        for event in self.begin():
            yield event
        async for part in self._source.parts(keep_alive_s):
            for event in (self.silence,) if part is None else self.tell(part):
                yield event
        if failure := self._source.failure():
            yield self.failed(failure)
            return
        for event in self.end():
            yield event
