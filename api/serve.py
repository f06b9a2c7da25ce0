"""A running server: the port, the signals, and an end that comes in time on every Python version."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self, cast

import anyio
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config

from ..bus.control import Notice
from ..bus.errors import StartError
from ..bus.layout import Layout
from ..bus.running import Running
from .app import create_app
from .edge import Edge
from .errors import BrokenOffError

log = logging.getLogger(__name__)

SEND_BUFFER_BYTES = 64 * 1024
"""What the kernel may hold for a client that does not read; by default it grows to over a minute of audio."""
LAST_WORDS_S = 2.0
"""For the errors of requests that are ended at the deadline to reach their clients."""
CLOSING_S = 3.0
"""For connections to close. From Python 3.12 on asyncio would wait for them without limit."""


async def serve(
    layout: Layout,
    *,
    notify: Callable[[Notice], None] = lambda _: None,
    listening: Callable[[str, Running], None] = lambda _url, _running: None,
) -> int:
    """Load the layout and serve until SIGINT or SIGTERM; a second signal ends it at once.

    Returns the exit status: 0, or 128 and the signal's number where it came before anything was served.

    :param notify: is told the steps of loading.
    :param listening: is told the address once requests are taken.
    :raises StartError: the port or a model cannot be had.
    """
    bound = bind(layout.api.host, layout.api.port)
    try:
        stop = anyio.Event()
        asyncio.get_running_loop().set_exception_handler(partial(_report, stop))
        with anyio.CancelScope() as everything, _Signals(stop, everything) as signals:
            async with Running(layout, notify) as running:
                signals.loaded = True
                await serve_running(running, bound, stop, listening=lambda url: listening(url, running))
        return signals.status
    finally:
        bound.close()


async def serve_running(
    running: Running, bound: socket.socket, stop: anyio.Event, *, listening: Callable[[str], None]
) -> None:
    """Serve what runs already until `stop`, then finish or end what is open. Takes the bound socket over."""
    settings = running.layout.api
    app = create_app(running)
    edge: Edge = app.extensions["vivavoce"]
    url = address(bound)
    config = Config()
    bound.listen(config.backlog)
    config.bind = [f"fd://{bound.detach()}"]  # Hypercorn closes it
    config.keep_alive_timeout = settings.idle_timeout_s
    # Sessions refuse what is longer than a body may be; here only what they should not even hold.
    config.websocket_max_message_size = 2 * settings.max_body_bytes
    config.graceful_timeout = 1.0
    config.include_server_header = False
    config.errorlog = logging.getLogger("vivavoce.http")
    if settings.host not in ("127.0.0.1", "::1", "localhost") and settings.api_key is None:
        log.warning("Anyone who can reach %s may use this server: set an API key.", settings.host)
    for sentence in edge.catalog.lost_aliases():
        log.warning("%s", sentence)

    async def stopped() -> None:
        await stop.wait()
        await _drain(edge, settings.drain_s)
        scope.deadline = anyio.current_time() + CLOSING_S

    with anyio.CancelScope() as scope:
        listening(url)
        with suppress(asyncio.InvalidStateError):  # what Hypercorn makes of being cancelled while it closes
            await hypercorn_serve(cast(Any, app), config, shutdown_trigger=stopped)
    if edge.tracing is not None:
        await edge.tracing.close()


async def _drain(edge: Edge, seconds: float) -> None:
    """Take no new work, let what is open finish, end what is still open after the deadline."""
    edge.admission.draining = edge.chat_admission.draining = True
    with anyio.move_on_after(seconds):
        await edge.exchanges.wait_empty()
    edge.exchanges.close_all("The server is shutting down.")
    with anyio.move_on_after(LAST_WORDS_S):
        await edge.exchanges.wait_empty()


def _report(stop: anyio.Event, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody waits for any more. Connections that are broken off at the end are no news."""
    if not (stop.is_set() and isinstance(context.get("exception"), asyncio.CancelledError | BrokenOffError)):
        loop.default_exception_handler(context)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    :raises StartError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise StartError(f"cannot listen on {host} port {port} ({error.strerror}): choose another") from None
    return bound


def address(bound: socket.socket) -> str:
    host, port, *_ = bound.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Signals:
    """SIGINT and SIGTERM: while loading the first ends everything; later the first stops, the second ends."""

    def __init__(self, stop: anyio.Event, everything: anyio.CancelScope) -> None:
        self._stop = stop
        self._everything = everything
        self.loaded = False
        self.status = 0

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._received, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _received(self, number: int) -> None:
        if not self.loaded and not self.status:
            self.status = 128 + number
        if self._stop.is_set():
            log.warning("Stopped by a second signal: what was open is broken off.")
        if self._stop.is_set() or not self.loaded:
            self._everything.cancel()
        self._stop.set()
