"""One chat request from admission to its one ending, whatever protocol carries it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

import anyio
import msgspec

from ..bus.errors import RequestError
from ..bus.messages import (
    Call,
    Chat,
    ChatAccepted,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    Drawn,
    Ending,
    Failure,
)
from .errors import refusal
from .exchange import Exchange

if TYPE_CHECKING:
    from .edge import Edge

AT_ONCE_S = 0.5
"""How long an answer's headers wait for the prompt to be read, so that the first event can say what was cached."""


class ChatFigures(msgspec.Struct, frozen=True, kw_only=True):
    """As told to clients. Seconds from the arrival of the request."""

    queue_s: float
    """Wait for a place."""
    ttft_s: float | None
    """First token ready to be written."""
    prompt_s: float
    prompt_tokens_per_s: float | None
    """Of those that the prompt cache did not have."""
    generation_s: float
    tokens_per_s: float | None


class Choice:
    """One answer, as it grows."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.drawn: list[Drawn] = []
        self.reason = "length"
        self.stop: str | None = None
        self.parts: list[ChatDelta | ChatFinished] = []

    def take(self, part: ChatDelta | ChatFinished) -> None:
        self.parts.append(part)
        if isinstance(part, ChatFinished):
            self.reason, self.stop = part.reason, part.stop
        else:
            self.text += part.text
            self.reasoning += part.reasoning
            self.calls += part.calls
            self.drawn += part.drawn


class ChatJob:
    """Start it, then take its parts. Its exchange closes it."""

    def __init__(self, edge: "Edge", exchange: Exchange, chat: Chat, route: str) -> None:
        """:raises BusyError: no place, and none to wait for."""
        self._edge = edge
        self._exchange = exchange
        self.chat = chat
        self.route = route
        self.created = int(time.time())
        self._ticket = edge.chat_admission.enter()
        self._request = edge.client.chat(chat)
        self._opened = False
        self._closed = False
        self._deadline = math.inf
        self._queue_s = 0.0
        self._ttft_s: float | None = None
        self._ending: Ending | None = None
        self._stall: asyncio.TimerHandle | None = None
        self.accepted: ChatAccepted | None = None
        self.started: ChatStarted | None = None
        self.done: ChatDone | None = None
        exchange.counted = True
        exchange.own(self)

    async def start(self) -> Self:
        """Wait until the request is accepted. May be cancelled and called again.

        :raises RequestError: it is refused, or its stage is down.
        """
        await self._ticket.wait()
        try:
            self._edge.refuse_if_down("chat")
        except RequestError as refused:
            self._ending = Ending(request=self.chat.request, reason="error", failure=refused.failure)
            raise
        if not self._opened:
            self._opened = True
            self._queue_s = time.perf_counter() - self._exchange.started
            self._await_more()
            with anyio.CancelScope(shield=True):
                await self._request.open()
        while self.accepted is None and self._ending is None:
            await self._arrival()
            await self._take()
        if self.started is None and (self.accepted is None or self.failure() is not None):
            raise refusal(self.failure() or Failure(500, "not_accepted", "The request was not accepted."))
        return self

    async def read(self) -> None:
        """Wait until the prompt has been read, or all is over. May be cancelled and called again.

        :raises RequestError: as for `start`.
        """
        await self.start()
        while self.started is None and self._ending is None:
            await self._arrival()
            await self._take()
        await self.start()

    async def parts(self, silence_s: float = math.inf) -> AsyncIterator[ChatDelta | ChatFinished | None]:
        """What comes, and None whenever nothing has come for so long; after the last one `ending` is set."""
        while self._ending is None:
            with anyio.move_on_after(silence_s) as limit:
                await self._arrival()
            part = None if limit.cancelled_caught else await self._take()
            if part is not None or limit.cancelled_caught:
                self._handed_out()
                yield part
                self._taken()

    async def whole(self) -> list[Choice]:
        """Every choice.

        :raises RequestError: the request did not come to a good end.
        """
        choices = [Choice() for _ in range(self.chat.n)]
        async for part in self.parts():
            if part is not None:
                choices[part.choice].take(part)
        if failure := self.failure():
            raise refusal(failure)
        return choices

    @property
    def ending(self) -> Ending:
        return self._ending or Ending(request=self.chat.request, reason="cancelled")

    def failure(self) -> Failure | None:
        """Why there is no good end; None while there may be one, and for `stop` and `length`."""
        ending = self._ending
        if ending is None or ending.reason in ("stop", "length"):
            return None
        return ending.failure or Failure(status=503, code="stopped", message=self._exchange.why)

    def figures(self) -> ChatFigures:
        done = self.done
        prompt_s, generation_s = (done.prompt_s, done.generation_s) if done else (0.0, 0.0)
        fresh = done.prompt_tokens - done.cached_tokens if done else 0
        made = done.completion_tokens if done else 0
        return ChatFigures(
            queue_s=round(self._queue_s, 4),
            ttft_s=None if self._ttft_s is None else round(self._ttft_s, 4),
            prompt_s=round(prompt_s, 4),
            prompt_tokens_per_s=round(fresh / prompt_s, 1) if prompt_s else None,
            generation_s=round(generation_s, 4),
            tokens_per_s=round(made / generation_s, 1) if generation_s else None,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._taken()
        self._ending = self._ending or Ending(request=self.chat.request, reason="cancelled")
        self._request.close()
        self._ticket.close()
        self._edge.chatted(self)

    async def _arrival(self) -> None:
        """Until a message is here; a pipeline that stands still for too long ends the request."""
        with anyio.move_on_at(self._deadline) as limit:
            await self._request.wait()
        if limit.cancelled_caught:
            seconds = self._edge.layout.chat.token_timeout_s
            failure = Failure(status=504, code="stalled", message=f"No token came within {seconds:g} s.")
            self._ending = Ending(request=self.chat.request, reason="error", failure=failure)
            self._request.close()

    async def _take(self) -> ChatDelta | ChatFinished | None:
        if self._ending is not None:
            return None
        part = None
        with anyio.CancelScope(shield=True):  # once taken it must not be lost
            part = await anext(self._request, None)
        self._await_more()
        match part:
            case None:
                self._ending = self._ending or self._request.ending
            case ChatAccepted():
                self.accepted = part
            case ChatStarted():
                self.started = part
            case ChatDone():
                self.done = part
            case ChatDelta() | ChatFinished():
                if self._ttft_s is None:
                    self._ttft_s = self._request.arrived - self._exchange.started
                return part
        return None

    def _await_more(self) -> None:
        self._deadline = anyio.current_time() + self._edge.layout.chat.token_timeout_s

    def _handed_out(self) -> None:
        """The client has so long to take what it was given; after that it is let go."""
        limit = self._edge.settings.stall_timeout_s
        why = f"The client took nothing for {limit:g} s."
        self._stall = asyncio.get_running_loop().call_later(limit, self._exchange.close, why)

    def _taken(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
