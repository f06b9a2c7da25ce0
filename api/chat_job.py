"""One chat request from admission to its one ending, whatever protocol carries it."""

import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

import anyio
import msgspec

from ..bus.client import ChatRequest
from ..bus.messages import (
    Call,
    Chat,
    ChatAccepted,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    Drawn,
    Failure,
)
from .errors import refusal
from .exchange import Exchange
from .job import Job

if TYPE_CHECKING:
    from .edge import Edge


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
        self._calls: dict[str, Call] = {}
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
            self.drawn += part.drawn
            for call in part.calls:
                before = self._calls.get(call.id)
                self._calls[call.id] = Call(
                    call.id, call.name, (before.arguments if before else "") + call.arguments
                )

    @property
    def calls(self) -> list[Call]:
        """Those that are whole: not the one that the limit cut, nor one that is not JSON."""
        return [call for call in self._calls.values() if is_whole(call.arguments)]


def is_whole(arguments: str) -> bool:
    """Whether that is all of a call's arguments."""
    try:
        msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return False
    return True


class ChatJob(Job[ChatRequest]):
    """Start it, then take its parts."""

    what = "token"

    def __init__(self, edge: "Edge", exchange: Exchange, chat: Chat, route: str) -> None:
        """:raises BusyError: no place, and none to wait for."""
        self.chat = chat
        self.created = int(time.time())
        self._queue_s = 0.0
        self._ttft_s: float | None = None
        self.accepted: ChatAccepted | None = None
        self.started: ChatStarted | None = None
        self.done: ChatDone | None = None
        self._taken = 0
        """Tokens of the answer so far."""
        # Last, since it closes the job at once where the client has left already.
        request = edge.client.chat(chat)
        super().__init__(edge, exchange, route, chat.request, request, edge.chat_admission)

    async def start(self) -> Self:
        """Wait until the request is accepted. May be cancelled and called again.

        :raises RequestError: it is refused, or its stage is down.
        """
        await self.open()
        while self.accepted is None and not self.over:
            await self.take()
        if self.started is None and (self.accepted is None or self.failure() is not None):
            raise refusal(self.failure() or Failure(500, "not_accepted", "The request was not accepted."))
        return self

    async def _begun(self) -> None:
        self._queue_s = time.perf_counter() - self._exchange.started

    async def read(self) -> None:
        """Wait until the prompt has been read, or all is over. May be cancelled and called again.

        :raises RequestError: as for `start`.
        """
        await self.start()
        while self.started is None and not self.over:
            await self.take()
        await self.start()

    async def parts(self, silence_s: float = math.inf) -> AsyncIterator[ChatDelta | ChatFinished | None]:
        """What comes, and None whenever nothing has come for so long; after the last one `ending` is set."""
        while not self.over:
            with anyio.move_on_after(silence_s) as limit:
                await self.wait()
            part = None if limit.cancelled_caught else await self.take()
            if part is not None or limit.cancelled_caught:
                self.handed_out()
                yield part
                self.taken()

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

    async def take(self) -> ChatDelta | ChatFinished | None:
        """Take the next message; None where it is none for the client."""
        match part := await self._next():
            case ChatAccepted():
                self.accepted = part
            case ChatStarted():
                self.started = part
            case ChatDone():
                self.done = part
            case ChatDelta() | ChatFinished():
                if isinstance(part, ChatDelta):
                    self._taken += part.tokens
                if self._ttft_s is None:
                    self._ttft_s = self._request.arrived - self._exchange.started
                return part
            case _:
                pass
        return None

    def tokens(self) -> tuple[int, int, int]:
        """Of the prompt, of those the cached ones, and of the answer as far as it was taken."""
        if self.done is not None:
            return self.done.prompt_tokens, self.done.cached_tokens, self.done.completion_tokens
        if self.accepted is None or self.started is None:
            return 0, 0, 0
        return self.accepted.prompt_tokens, self.started.cached_tokens, self._taken

    def figures(self) -> ChatFigures:
        read = self.done or self.started
        prompt_s = read.prompt_s if read else 0.0
        generation_s = self.done.generation_s if self.done else 0.0
        prompt, cached, made = self.tokens()
        fresh = prompt - cached
        return ChatFigures(
            queue_s=round(self._queue_s, 4),
            ttft_s=None if self._ttft_s is None else round(self._ttft_s, 4),
            prompt_s=round(prompt_s, 4),
            prompt_tokens_per_s=round(fresh / prompt_s, 1) if prompt_s else None,
            generation_s=round(generation_s, 4),
            tokens_per_s=round(made / generation_s, 1) if generation_s else None,
        )

    @property
    def _limit_s(self) -> float:
        return self._edge.layout.chat.token_timeout_s

    def _account(self) -> None:
        self._edge.chatted(self)
