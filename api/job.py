"""A request from admission to its one ending, whatever protocol carries it; here in general, and for speech."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from ..bus.client import ChatRequest, SpeechRequest
from ..bus.errors import RequestError
from ..bus.messages import Audio, Ending, Failure, Speak
from .admission import Admission
from .errors import refusal
from .exchange import Exchange
from .timing import Figures, Timing

if TYPE_CHECKING:
    from .edge import Edge

Request = TypeVar("Request", SpeechRequest, ChatRequest)


class Job(ABC, Generic[Request]):
    """Its exchange closes it."""

    what = ""
    """What it waits for, in the words of errors."""

    def __init__(
        self, edge: "Edge", exchange: Exchange, route: str, name: str, request: Request, admission: Admission
    ) -> None:
        """
        :param name: of the request in the pipeline.
        :raises BusyError: no place, and none to wait for.
        """
        self._edge = edge
        self._exchange = exchange
        self.route = route
        self.name = name
        self._request = request
        self._ticket = admission.enter()
        self._opened = False
        self._closed = False
        self._patience = math.inf
        """When waiting for the next message ends; one wait may be cut into several, to keep a connection alive."""
        self._waiting: anyio.CancelScope | None = None
        self._ending: Ending | None = None
        self._stall: asyncio.TimerHandle | None = None
        exchange.counted = True
        exchange.own(self)

    async def open(self) -> None:
        """Wait for a place, then send the request, if it is not over. May be cancelled and called again.

        :raises RequestError: its stages are down.
        """
        await self._ticket.wait()
        if self.over:
            return
        try:
            self._edge.refuse_if_down(self._request.family)
        except RequestError as refused:
            self._ending = Ending(request=self.name, reason="error", failure=refused.failure)
            raise
        if not self._opened:
            self._opened = True
            with anyio.CancelScope(shield=True):
                await self._request.open()
                await self._begun()

    async def _begun(self) -> None:
        """The request has been sent."""

    async def wait(self) -> None:
        """Until a message is here, or the ending, without taking it. What stands still for too long is ended."""
        if self.ready:
            await anyio.lowlevel.checkpoint()
            return
        if self._patience == math.inf:
            self._patience = anyio.current_time() + self._limit_s
        with anyio.move_on_at(self._patience) as self._waiting:
            await self._request.wait()
        if self._waiting.cancelled_caught:
            text = f"No {self.what} came within {self._limit_s:g} s."
            failure = Failure(status=504, code="stalled", message=text)
            self._ending = Ending(request=self.name, reason="error", failure=failure)
            self._request.close()

    def _postpone(self) -> None:
        """Count the time until the next message has to be here anew, where it is counted."""
        if self._waiting is not None and self._patience < math.inf:
            self._patience = self._waiting.deadline = anyio.current_time() + self._limit_s

    async def _next(self) -> Any:
        """Take the next message; None at the end, with which `ending` is set."""
        await self.wait()
        self._patience = math.inf
        if self._ending is not None:
            return None
        message = None
        with anyio.CancelScope(shield=True):  # once taken it must not be lost
            message = await anext(self._request, None)
        if message is None:
            self._ending = self._ending or self._request.ending
        return message

    @property
    @abstractmethod
    def _limit_s(self) -> float:
        """How long the next message may take."""

    @property
    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        return self.over or self._request.ready

    @property
    def over(self) -> bool:
        return self._ending is not None

    @property
    def ending(self) -> Ending:
        return self._ending or Ending(request=self.name, reason="cancelled")

    def failure(self) -> Failure | None:
        """Why there is no good end; None while there may be one, and for `stop` and `length`."""
        if self._ending is None or self._ending.reason in ("stop", "length"):
            return None
        return self._ending.failure or self._exchange.failure

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._exchange.disown(self)
        self.taken()
        self._ending = self.ending
        self._request.close()
        self._ticket.close()
        self._account()

    def _account(self) -> None:
        """Called once, at the end."""

    def handed_out(self) -> None:
        """The client has so long to take what it was given; after that it is let go."""
        limit = self._edge.settings.stall_timeout_s
        why = f"The client took nothing for {limit:g} s."
        self._stall = asyncio.get_running_loop().call_later(limit, self._exchange.close, why)

    def taken(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


class SpeechJob(Job[SpeechRequest]):
    """Start it, then iterate it for the bytes of the container."""

    what = "audio"

    def __init__(
        self, edge: "Edge", exchange: Exchange, speak: Speak, route: str, *, received: float | None = None
    ) -> None:
        """
        :param received: when the request began, if not with its exchange.
        :raises BusyError: no place, and none to wait for.
        """
        request = edge.client.speak(speak, chunk=edge.layout.speech.max_chunk_frames)
        self.speak = speak
        self.rate = speak.sample_rate or edge.catalog.find(speak.model).sample_rate
        self._timing = Timing(exchange.started if received is None else received, self.rate)
        self._first = b""
        self._text = speak.text
        """As much of it as there is."""
        self.played: int | None = None
        """Samples that the client says it has played."""
        self._texts: deque[tuple[str, bool]] = deque()
        self._sending = anyio.Lock()
        # Last: the exchange closes the job at once where its client is gone already.
        super().__init__(edge, exchange, route, speak.request, request, edge.admission)

    @property
    def started(self) -> bool:
        """Whether the first bytes are here, or the ending."""
        return bool(self._first) or self.over

    async def start(self) -> Self:
        """Wait for the first bytes, which decide about the answer's status. May be cancelled and called again.

        :raises RequestError: the request ended without any, or a stage is down; the error is what to tell.
        """
        await self.open()
        while not self.started:
            self._first = await self.piece()
        if self.over and not self._first:
            raise refusal(self.failure() or Failure(500, "no_audio", "The model made no audio."))
        return self

    async def piece(self) -> bytes:
        """The next message's bytes; none where the container still holds them back, and at the end."""
        message = await self._next()
        if message is None:
            return b""
        assert isinstance(message, Audio)
        self._timing.note(self._request.arrived, message)
        return message.data

    async def _begun(self) -> None:
        self._timing.admitted()
        await self._send_texts()

    async def text(self, text: str, *, final: bool) -> None:
        """More of the text of a request that was opened with a beginning; `final` ends it."""
        self._texts.append((text, final))
        self._text += text
        self._postpone()
        if self._opened and not self._closed:
            await self._send_texts()

    async def heard(self, samples: int) -> None:
        """The client has played so much by now, which only grows; what it needs next is due accordingly."""
        self.played = max(samples, self.played or 0)
        if self._sent and not self._closed:
            await self._request.played(min(self.played, self._sent) / self.rate)

    async def _send_texts(self) -> None:
        async with self._sending:
            while self._texts:
                text, final = self._texts.popleft()
                await self._request.text(text, final=final)

    async def wait(self) -> None:
        if not self._first:
            await super().wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next bytes, never none. After the last ones `ending` is set."""
        self.taken()
        piece, self._first = self._first, b""
        while not piece and not self.over:
            piece = await self.piece()
        if not piece:
            raise StopAsyncIteration
        self.handed_out()
        return piece

    async def whole(self) -> bytes:
        """Everything.

        :raises RequestError: the request did not come to a good end.
        """
        data = b"".join([piece async for piece in self])
        if failure := self.failure():
            raise refusal(failure)
        return data

    def figures(self) -> Figures:
        figures = self._timing.figures(self._request.parked_s)
        # Where the text was still coming, waiting for it cannot be told from work.
        return msgspec.structs.replace(figures, rtf=None) if self.speak.more_text else figures

    @property
    def _limit_s(self) -> float:
        return self._edge.settings.first_audio_timeout_s

    @property
    def _sent(self) -> int:
        """Samples. What is not streamed goes out at the end."""
        return self._timing.samples if self.speak.container_streamed else 0

    def position(self) -> dict[str, Any]:
        """How much the client was sent and has heard, in samples, and the text that this covers (see `Pace`)."""
        heard = self._sent if self.played is None else min(self.played, self._sent)
        return {
            "samples_sent": self._sent,
            "samples_heard": None if self.played is None else heard,
            "sample_rate": self.rate,
            "text": self._edge.pace.covered(self._text, heard / self.rate * self.speak.speed),
        }

    def _account(self) -> None:
        if self.ending.reason == "stop":
            self._edge.pace.learn(self._text, self._timing.samples / self.rate * self.speak.speed)
        self._edge.finished(self)
