"""The common life of a stage: requests open with `Speak`, close with `Ending`, and fail alone."""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from ..bus.channel import Inbox, Outbox
from ..bus.errors import RequestError
from ..bus.messages import Ending, Failure, Message, Speak

log = logging.getLogger(__name__)

R = TypeVar("R")


class Actor(Generic[R]):
    """A stage that keeps one object of type R for each open request."""

    def __init__(self, progress: AbstractContextManager[None] | None = None) -> None:
        self.requests: dict[str, R] = {}
        self._progress = progress or nullcontext()

    def open(self, speak: Speak) -> R:
        """State of a new request."""
        raise NotImplementedError

    async def enter(self, speak: Speak) -> tuple[R, Speak]:
        """State of a new request, and what the stages behind are told of it."""
        return self.open(speak), speak

    async def opened(self, state: R, outbox: Outbox) -> None:
        """What a new request sets off, once the stages behind know of it."""

    async def handle(self, state: R, message: Message, outbox: Outbox) -> None:
        """One message of an open request."""
        raise NotImplementedError

    async def end(self, state: R, ending: Ending, outbox: Outbox) -> None:
        """The request ends: hand out what is left, then pass the ending on."""
        await outbox.send(ending)

    def open_requests(self) -> tuple[str, ...]:
        return tuple(self.requests)

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        async for message in inbox:
            try:
                with self._progress:
                    await self._take(message, outbox)
            except Exception as error:  # the request's boundary: one request fails, the stage goes on
                self.requests.pop(message.request, None)
                await outbox.send(_failed(message.request, error))

    async def _take(self, message: Message, outbox: Outbox) -> None:
        if isinstance(message, Speak):
            state, speak = await self.enter(message)
            self.requests[speak.request] = state
            await outbox.send(speak)
            await self.opened(state, outbox)
        elif isinstance(message, Ending):
            state = self.requests.pop(message.request, None)
            if state is not None:
                await self.end(state, message, outbox)
            elif message.reason == "error":
                # The stage before could not even open the request: nobody else would tell the client.
                await outbox.send(message)
        elif (state := self.requests.get(message.request)) is not None:
            await self.handle(state, message, outbox)

    async def finish(self, ending: Ending, outbox: Outbox) -> None:
        """End a request from here."""
        state = self.requests.pop(ending.request)
        await self.end(state, ending, outbox)


def _failed(request: str, error: Exception) -> Ending:
    if isinstance(error, RequestError):
        return Ending(request=request, reason="error", failure=error.failure)
    log.exception("request %s failed", request)
    failure = Failure(status=500, code="internal_error", message=f"speech failed: {error}")
    return Ending(request=request, reason="error", failure=failure)
