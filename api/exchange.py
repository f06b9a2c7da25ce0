"""One HTTP request or WebSocket from its first byte to its last, and what has to be let go when it is over.

Quart cancels a handler when the client leaves, but such a cancellation can get lost. So what a request holds is
owned by its exchange, which watches the connection itself, below Quart.
"""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol

import anyio
from quart import has_request_context, request, websocket

from ..bus.messages import Failure

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY = "vivavoce.exchange"
_NAME = re.compile(rb"[\x21-\x7e]{1,128}")

LINGER_S = 2.0
"""For a client that is refused to stop sending."""

request_name: ContextVar[str | None] = ContextVar("request_name", default=None)
"""The request id that log lines carry."""


class Closable(Protocol):
    def close(self) -> None:
        """Let go. May be called more than once, never waits, and wakes whoever waits on it."""
        ...


class Exchange:
    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = time.perf_counter()
        """When the request arrived."""
        self.id = f"req-{uuid.uuid4().hex}"
        """Unique for the life of the server."""
        asked = next((value for name, value in headers if name.lower() == b"x-request-id"), b"")
        self.name = asked.decode() if _NAME.fullmatch(asked) else self.id
        """What the client calls it."""
        self.gone = False
        """Whether the client has left."""
        self.over = False
        self.failure = Failure(status=503, code="stopped", message="The request was stopped.")
        """What requests end with that are closed before their end."""
        self.counted = False
        """Whether a job has taken over the account of it."""
        self.owned: list[Closable] = []

    def own(self, thing: Closable) -> None:
        """Close this when the exchange is over, however that comes about."""
        if self.over:
            thing.close()
        else:
            self.owned.append(thing)

    def disown(self, thing: Closable) -> None:
        """It has been closed already."""
        if thing in self.owned:
            self.owned.remove(thing)

    def close(self, why: str | None = None, *, code: str = "stopped", status: int = 503) -> None:
        """:param why: told to the client, if it is still there."""
        self.over = True
        if why is not None:
            self.failure = Failure(status=status, code=code, message=why)
        while self.owned:
            self.owned.pop().close()


def current() -> Exchange:
    """The exchange of the request or WebSocket being handled."""
    return (request if has_request_context() else websocket).scope[KEY]  # type: ignore[literal-required]


class Exchanges:
    """Those that are open."""

    def __init__(self) -> None:
        self._open: set[Exchange] = set()
        self._emptied = anyio.Event()

    def add(self, exchange: Exchange) -> None:
        self._open.add(exchange)

    def remove(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if not self._open:
            self._emptied.set()

    def find(self, name: str) -> list[Exchange]:
        """Those that their clients, or the server, call so."""
        return [exchange for exchange in self._open if name in (exchange.name, exchange.id)]

    async def wait_empty(self) -> None:
        while self._open:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def close_all(self, why: str) -> None:
        for exchange in list(self._open):
            exchange.close(why)


class Guard:
    """An ASGI app around the app: gives every exchange its life, and ends broken bodies without an end."""

    def __init__(self, app: AsgiApp, exchanges: Exchanges, broken: type[Exception]) -> None:
        """:param broken: raised by a body that cannot be completed."""
        self._app = app
        self._exchanges = exchanges
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope["headers"])
        request_name.set(exchange.name)

        read = anyio.Event()

        async def watched() -> dict[str, Any]:
            message = await receive()
            if not message.get("more_body"):
                read.set()
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                exchange.gone = True
                exchange.close("The client has left.")
            return message

        async def sent(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                # All of the answer is out. A connection that is closed with something unread is reset, and then its
                # client might never see it.
                with anyio.move_on_after(LINGER_S):
                    await read.wait()
            await send(message)

        self._exchanges.add(exchange)
        try:
            await self._app({**scope, KEY: exchange}, watched, sent)
        except* self._broken as errors:  # Quart may raise it alone or in a group
            # Returning with the body open makes Hypercorn drop the connection: no terminating chunk.
            log.info("%s was broken off: %s", scope["path"], errors.exceptions[0])
        finally:
            exchange.close()
            self._exchanges.remove(exchange)
