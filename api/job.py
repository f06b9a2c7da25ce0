"""One speech request from admission to its one ending, whatever protocol carries it."""

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Self

import anyio
import msgspec

from ..bus.errors import RequestError
from ..bus.messages import Audio, Ending, Failure, Speak
from .errors import refusal
from .exchange import Exchange
from .timing import Figures, Timing

if TYPE_CHECKING:
    from .edge import Edge


class SpeechJob:
    """Start it, then iterate it for the bytes of the container. Its exchange closes it."""

    def __init__(
        self, edge: "Edge", exchange: Exchange, speak: Speak, route: str, *, received: float | None = None
    ) -> None:
        """
        :param received: when the request began, if not with its exchange.
        :raises BusyError: no place, and none to wait for.
        """
        self._edge = edge
        self._exchange = exchange
        self.speak = speak
        self.route = route
        self.rate = speak.sample_rate or edge.catalog.find(speak.model).sample_rate
        self._timing = Timing(exchange.started if received is None else received, self.rate)
        self._ticket = edge.admission.enter()
        self._request = edge.client.speak(speak, chunk=edge.layout.speech.max_chunk_frames)
        self._opened = False
        self._patience = math.inf
        """When waiting for the next message ends; one wait may be cut into several, to keep a connection alive."""
        self._closed = False
        self._first = b""
        self._ending: Ending | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._texts: deque[tuple[str, bool]] = deque()
        self._sending = anyio.Lock()
        exchange.counted = True
        exchange.own(self)

    @property
    def started(self) -> bool:
        """Whether the first bytes are here, or the ending."""
        return bool(self._first) or self._ending is not None

    async def start(self) -> Self:
        """Wait for the first bytes, which decide about the answer's status. May be cancelled and called again.

        :raises RequestError: the request ended without any, or a stage is down; the error is what to tell.
        """
        await self._ticket.wait()
        try:
            self._edge.refuse_if_down()
        except RequestError as refused:
            self._ending = Ending(request=self.speak.request, reason="error", failure=refused.failure)
            raise
        if not self._opened:
            self._opened = True
            self._timing.admitted()
            with anyio.CancelScope(shield=True):
                await self._request.open()
                await self._send_texts()
        while not self.started:
            self._first = await self._piece()
        if self._ending is not None and not self._first:
            raise refusal(self.failure() or Failure(500, "no_audio", "The model made no audio."))
        return self

    async def text(self, text: str, *, final: bool) -> None:
        """More of the text of a request that was opened with a beginning; `final` ends it."""
        self._texts.append((text, final))
        if self._opened and not self._closed:
            await self._send_texts()

    async def _send_texts(self) -> None:
        async with self._sending:
            while self._texts:
                text, final = self._texts.popleft()
                await self._request.text(text, final=final)

    async def wait(self) -> None:
        """Until more is here, or the ending, without taking it."""
        if not self._first and self._ending is None:
            await self._await_message()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next bytes, never none. After the last ones `ending` is set."""
        self._taken()
        piece, self._first = self._first, b""
        while not piece and self._ending is None:
            piece = await self._piece()
        if not piece:
            raise StopAsyncIteration
        self._handed_out()
        return piece

    async def whole(self) -> bytes:
        """Everything.

        :raises RequestError: the request did not come to a good end.
        """
        data = b"".join([piece async for piece in self])
        if failure := self.failure():
            raise refusal(failure)
        return data

    @property
    def ending(self) -> Ending:
        return self._ending or Ending(request=self.speak.request, reason="cancelled")

    def failure(self) -> Failure | None:
        """Why there is no good end; None for `stop` and `length`."""
        ending = self.ending
        if ending.reason in ("stop", "length"):
            return None
        return ending.failure or Failure(status=503, code="stopped", message=self._exchange.why)

    def figures(self) -> Figures:
        figures = self._timing.figures(self._request.parked_s)
        # Where the text was still coming, waiting for it cannot be told from work.
        return msgspec.structs.replace(figures, rtf=None) if self.speak.more_text else figures

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._taken()
        self._ending = self._ending or Ending(request=self.speak.request, reason="cancelled")
        self._request.close()
        self._ticket.close()
        self._edge.finished(self)

    async def _piece(self) -> bytes:
        """The next message's bytes; none where the container still holds them back."""
        await self._await_message()
        self._patience = math.inf
        message = None
        with anyio.CancelScope(shield=True):  # once taken it must not be lost
            message = await anext(self._request, None)
        if message is None:
            self._ending = self._ending or self._request.ending
            return b""
        assert isinstance(message, Audio)
        self._timing.note(self._request.arrived, message)
        return message.data

    async def _await_message(self) -> None:
        limit = self._edge.settings.first_audio_timeout_s
        if self._patience == math.inf:
            self._patience = anyio.current_time() + limit
        with anyio.move_on_at(self._patience) as wait:
            await self._request.wait()
        if wait.cancelled_caught:
            failure = Failure(status=504, code="stalled", message=f"No audio came within {limit:g} s.")
            self._ending = Ending(request=self.speak.request, reason="error", failure=failure)
            self._request.close()

    def _handed_out(self) -> None:
        """The client has so long to take what it was given; after that it is let go."""
        limit = self._edge.settings.stall_timeout_s
        why = f"The client took nothing for {limit:g} s."
        self._stall = asyncio.get_running_loop().call_later(limit, self._exchange.close, why)

    def _taken(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
