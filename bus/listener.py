"""The listening end of a tap, for programs: `Tap` blocks, `AsyncTap` is for asyncio.

    with Tap(kind="pcm") as tap:
        for event in tap:
            print(event.request, event.message.frame, event.missed)

Without an address the one server of this user is found. A listener that is too slow loses messages; `missed` counts
them. Nobody ever waits for it.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from . import keys, run_folder
from .errors import VivavoceError
from .layout_check import STAGES, is_tcp
from .tap import KINDS, SCHEMA, Envelope, Tapped

SOCKET = "tap"
"""Name of the Unix socket in a server's folder."""
TOPICS = 4096
"""Topics whose numbers are remembered, the latest."""


class TapError(VivavoceError):
    """The tap cannot be listened at."""


class Event(msgspec.Struct, frozen=True):
    """One message of one stage."""

    stage: str
    kind: str
    request: str
    sequence: int
    """Number of the message in its topic (stage, kind, request)."""
    missed: int
    """Messages of the topic that were lost right before this one."""
    at: float
    """When it was sent, in seconds since 1970."""
    message: Tapped


def find() -> str:
    """Address of the one server that this user runs. Raises TapError when there is none, or more than one."""
    folders = [folder for folder in run_folder.running() if (folder / SOCKET).exists()]
    if not folders:
        raise TapError(
            "no server of yours runs here: start one with `vivavoce serve`, or give its tap's address"
        )
    if len(folders) > 1:
        found = ", ".join(f"ipc://{folder / SOCKET} (pid {run_folder.pid(folder)})" for folder in folders)
        raise TapError(f"several servers run here, give one's address: {found}")
    return f"ipc://{folders[0] / SOCKET}"


class _Ears:
    """What both kinds share: the subscription, and telling what was lost."""

    def __init__(
        self,
        address: str | None = None,
        *,
        stage: str | tuple[str, ...] = (),
        kind: str | tuple[str, ...] = (),
        request: str | None = None,
        keys_file: str | Path | None = None,
        backlog: int = 1000,
    ) -> None:
        """
        :param address: `ipc://…` or `tcp://…`; None finds the server.
        :param stage: of these stages only; by default of the one that a kind usually comes from.
        :param kind: text, codes, pcm, timing or ending, one or several; by default all of them.
        :param keys_file: a client's file of keys, for TCP.
        :param backlog: messages kept until they are read; what comes after is lost.
        :raises TapError: no such kind, stage or address; no server, several, or no keys.
        :raises LayoutError: the keys cannot be used.
        """
        self._kinds = (kind,) if isinstance(kind, str) else kind
        for name in self._kinds:
            if name not in KINDS:
                raise TapError(f"no kind {name!r} of message; use {', '.join(KINDS)}")
        self._stages = (stage,) if isinstance(stage, str) else stage
        for name in self._stages:
            if name not in STAGES:
                raise TapError(f"no stage {name!r} sends anything; use {', '.join(STAGES)}")
        self.address = address or find()
        if not (self.address.startswith("ipc://") or is_tcp(self.address)):
            raise TapError(
                f"{self.address!r} is no tap's address: give ipc://PATH or tcp://HOST:PORT, or none for the one "
                "server of yours that runs here"
            )
        self.missed = 0
        """Messages lost so far."""
        self._backlog = backlog
        self._request = request
        if self.address.startswith("tcp:") and keys_file is None:
            raise TapError(
                f"{self.address} needs keys: have the server's owner make some with `vivavoce keys`"
            )
        self._keys = keys.read(keys_file) if keys_file is not None else None
        self._next: dict[str, int] = {}
        self._decode = msgspec.msgpack.Decoder(Envelope).decode
        self._decode_message: Callable[[Any], Tapped] = msgspec.msgpack.Decoder(Tapped).decode

    def _find_server(self) -> None:
        if self.address.startswith("ipc://") and not Path(self.address.removeprefix("ipc://")).exists():
            raise TapError(f"no server at {self.address}: without an address the one that runs here is found")

    def _open(self, socket: zmq.Socket[Any]) -> None:
        socket.linger = 0
        socket.rcvhwm = self._backlog
        if self._keys is not None:
            self._keys.connect(socket)
        for kind in self._kinds or (None,):
            for stage in self._stages or (KINDS[kind] if kind else ()) or (None,):
                socket.subscribe(_beginning(stage, kind, self._request))
        socket.connect(self.address)

    def _take(self, frames: list[bytes]) -> Event | None:
        """The event, None if it is not asked for. Raises TapError for another version's messages."""
        topic = frames[0].decode()
        stage, kind, request = topic.split(".", 2)
        if self._request not in (None, request) or kind not in (self._kinds or KINDS):
            return None
        if stage not in (self._stages or (stage,)):
            return None
        try:
            envelope = self._decode(frames[1])
        except msgspec.DecodeError as error:
            raise TapError(f"{self.address} does not speak as a tap does: {error}") from None
        if envelope.schema != SCHEMA:
            raise TapError(
                f"the server's taps have schema {envelope.schema}, this program reads {SCHEMA}: "
                "install the same version of vivavoce for both"
            )
        try:
            message = self._decode_message(envelope.message)
        except msgspec.ValidationError:
            return None  # a type that came later
        # Who comes late has lost nothing.
        missed = envelope.sequence - self._next.get(topic, envelope.sequence)
        self._next.pop(topic, None)
        self._next[topic] = envelope.sequence + 1
        self.missed += missed
        if len(self._next) > TOPICS:
            del self._next[next(iter(self._next))]
        return Event(stage, kind, request, envelope.sequence, missed, envelope.at, message)


def _beginning(stage: str | None, kind: str | None, request: str | None) -> str:
    """What is known of the topic `stage.kind.request`, from the left."""
    if stage is None:
        return ""
    return f"{stage}." if kind is None else f"{stage}.{kind}.{request or ''}"


class Tap(_Ears):
    """Blocks until something comes. Use as a context manager, in one thread."""

    def __enter__(self) -> Self:
        self._find_server()
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._open(self._socket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while True:
            if event := self._take(self._socket.recv_multipart()):
                return event

    def arrived(self) -> list[Event]:
        """What has come since the last look, without waiting for more."""
        events: list[Event] = []
        with suppress(zmq.Again):
            while True:
                if event := self._take(self._socket.recv_multipart(zmq.DONTWAIT)):
                    events.append(event)
        return events


class AsyncTap(_Ears):
    """For asyncio; the same, with `async`."""

    async def __aenter__(self) -> Self:
        self._find_server()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._open(self._socket)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            if event := self._take(await self._socket.recv_multipart()):
                return event
