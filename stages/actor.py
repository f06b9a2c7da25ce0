"""The common life of a stage: requests open with `Speak`, close with `Ending`, and fail alone."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from ..bus.channel import Inbox, Outbox
from ..bus.errors import RequestError
from ..bus.layout import Schedule
from ..bus.messages import Close, Credit, Ending, Failure, Feedback, Message, Rows, Speak, StageTime, Text
from ..bus.turns import SpeechParty

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")

OFF_DEVICE = Text | Rows | Credit | Close | Feedback
"""Taken without the device: arrays that come of them are computed with the next frame, which waits for its turn."""


@dataclass(slots=True)
class _Clock:
    begun: float = field(default_factory=time.time)
    busy_s: float = 0.0


class Actor(Generic[R]):
    """A stage that keeps one object of type R for each open request."""

    name = ""
    """Of the stage, in the times that its endings tell."""

    def __init__(
        self, progress: AbstractContextManager[None] | None = None, party: SpeechParty | None = None
    ) -> None:
        """:param party: by which the device is shared; None: it is not."""
        self.requests: dict[str, R] = {}
        self._progress = progress or nullcontext()
        self._party = party or SpeechParty(Schedule())
        self._clocks: dict[str, _Clock] = {}
        self._turn: float | None = None
        """When the turn in progress was begun, by `time.perf_counter`."""

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
        """The request ends: hand out what is left, ahead of the ending."""

    def open_requests(self) -> tuple[str, ...]:
        return tuple(self.requests)

    async def caught_up(self, outbox: Outbox) -> None:
        """No message waits: do together what several requests are ready for."""

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        async for message in inbox:
            await self._serve(message, outbox)
            if not inbox.statistics().current_buffer_used:
                await self.caught_up(outbox)

    async def _serve(self, message: Message, outbox: Outbox) -> None:
        gone = isinstance(message, Ending) and message.reason in ("cancelled", "error")
        if gone or isinstance(message, OFF_DEVICE):
            await self._attempt(message.request, self._take(message, outbox), outbox)
        else:
            async with self._party:
                await self._attempt(message.request, self._take(message, outbox), outbox)
        if isinstance(message, Ending) and self.name == self._party.last:
            self._party.still(message.request)

    async def _attempt(self, request: str, work: Awaitable[None], outbox: Outbox) -> None:
        """A turn of work for a request."""
        began = self._turn = time.perf_counter()
        try:
            with self._progress:
                await work
        except Exception as error:  # the request's boundary: one request fails, the stage goes on
            await self._fail(request, error, outbox)
        self._spend([request], began)
        self._turn = None

    async def _fail(self, request: str, error: Exception, outbox: Outbox) -> None:
        self.requests.pop(request, None)
        await self._pass_on(_failed(request, error), outbox)

    async def _together(
        self, batch: list[T], names: list[str], compute: Callable[[list[T]], list[V]], outbox: Outbox
    ) -> list[tuple[T, V]]:
        """What `compute` makes of several requests at once; of each alone if that fails, so that it fails alone."""
        began = time.perf_counter()
        try:
            with self._progress:
                made = compute(batch)
        except Exception as error:
            if len(batch) == 1:
                await self._fail(names[0], error, outbox)
                return []
            alone = [
                await self._together([r], [n], compute, outbox) for r, n in zip(batch, names, strict=True)
            ]
            return [pair for pairs in alone for pair in pairs]
        self._spend(names, began)
        return list(zip(batch, made, strict=True))

    def _spend(self, requests: list[str], began: float) -> None:
        """Account for the time since then, in equal shares."""
        share_s = (time.perf_counter() - began) / len(requests)
        for request in requests:
            if (clock := self._clocks.get(request)) is not None:
                clock.busy_s += share_s

    async def _take(self, message: Message, outbox: Outbox) -> None:
        if isinstance(message, Speak):
            self._clocks[message.request] = _Clock()
            state, speak = await self.enter(message)
            self.requests[speak.request] = state
            await outbox.send(speak)
            await self.opened(state, outbox)
        elif isinstance(message, Ending):
            if message.request in self.requests:
                await self.finish(message, outbox)
            elif message.reason == "error":
                # The stage before could not even open the request: nobody else would tell the client.
                await outbox.send(message)
        elif (state := self.requests.get(message.request)) is not None:
            await self.handle(state, message, outbox)

    async def finish(self, ending: Ending, outbox: Outbox) -> None:
        """End an open request, and pass the ending on."""
        await self.end(self.requests.pop(ending.request), ending, outbox)
        await self._pass_on(ending, outbox)

    async def _pass_on(self, ending: Ending, outbox: Outbox) -> None:
        if ending.request in self._clocks:
            stages = {**ending.stages, self.name: self.spent(ending.request)}
            del self._clocks[ending.request]
            ending = msgspec.structs.replace(ending, stages=stages)
        await outbox.send(ending)

    def spent(self, request: str) -> StageTime:
        """Its time so far, the turn in progress included."""
        clock = self._clocks[request]
        turn_s = 0.0 if self._turn is None else time.perf_counter() - self._turn
        return StageTime(clock.begun, time.time(), clock.busy_s + turn_s)


def _failed(request: str, error: Exception) -> Ending:
    if isinstance(error, RequestError):
        return Ending(request=request, reason="error", failure=error.failure)
    log.exception("request %s failed", request)
    failure = Failure(status=500, code="internal_error", message=f"speech failed: {error}")
    return Ending(request=request, reason="error", failure=failure)
