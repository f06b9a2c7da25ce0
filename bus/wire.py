"""Channels between event loops: one ZeroMQ DEALER–DEALER pair a link, msgpack inside.

The consumer binds and the producer connects, so the producer can always queue. Nothing meant for a dead process
reaches its successor: the address of a link is new with every incarnation of either side, and over TCP, where it
is fixed, every message names the incarnations that it is between. `linger` is 0; a socket has one reader task for
its whole life and no time limit on its receive (a cancelled receive can lose a message). There is no high-water
mark: what bounds the flow is credit.
"""

import logging
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import zmq
import zmq.asyncio

from .channel import Sender
from .errors import StartError
from .keys import Keys
from .messages import SCHEMA, Message, Tensor

log = logging.getLogger(__name__)


def kinds(union: Any) -> frozenset[type[Message]]:
    """The message types of a union, or of a single type."""
    return frozenset(get_args(union) or (union,))


def _pack(value: Any) -> Any:
    view = memoryview(value)
    return Tensor(str(value.dtype).rpartition(".")[2], tuple(value.shape), view.tobytes())


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)


def encode(message: msgspec.Struct) -> bytes:
    """msgpack of a message; arrays are computed here if they were not yet."""
    return _encoder.encode(message)


class Decoder:
    """Decodes the messages of one link. Raises msgspec.ValidationError for anything else."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def __call__(self, data: bytes | memoryview) -> Any:
        return self._decoder.decode(data)


def control_socket(
    context: zmq.Context[Any], address: str, *, bind: bool, keys: Keys | None = None
) -> zmq.asyncio.Socket:
    """A DEALER between a supervisor and its process. Raises StartError for an address that cannot be had."""
    made = zmq.asyncio.Context.shadow(context).socket(zmq.DEALER)
    _prepare(made, address, keys, bind=bind)
    return made


def _prepare(made: zmq.Socket[Any], address: str, keys: Keys | None, *, bind: bool) -> None:
    made.linger = 0
    made.sndhwm = made.rcvhwm = 0
    if keys is not None and address.startswith("tcp:"):
        (keys.serve if bind else keys.connect)(made)
    try:
        (made.bind if bind else made.connect)(address)
    except zmq.ZMQError as error:
        made.close()
        raise StartError(f"the address {address} cannot be had: {error.strerror}") from None


def tag(source_epoch: int, target_epoch: int) -> bytes:
    """What a message over TCP begins with: the schema, and the incarnations that it is between."""
    return b"".join(number.to_bytes(2) for number in (SCHEMA, source_epoch & 0xFFFF, target_epoch & 0xFFFF))


class Outgoing:
    """The producer's end of a link."""

    def __init__(
        self, context: zmq.Context[Any], address: str, keys: Keys | None = None, tag: bytes = b""
    ) -> None:
        self._context = context
        self._keys = keys
        self._open(address, tag)

    def _open(self, address: str, tag: bytes) -> None:
        self._tag = tag
        self._socket = self._context.socket(zmq.DEALER)
        _prepare(self._socket, address, self._keys, bind=False)

    async def send(self, item: Message) -> None:
        """Queue a message; it never waits."""
        try:
            self._socket.send(self._tag + encode(item), zmq.DONTWAIT)
        except zmq.Again:
            # The other loop has ended, so nobody can take it. Whoever watches that loop ends its requests.
            log.debug("a %s had nowhere to go", type(item).__name__)

    def reopen(self, address: str, tag: bytes = b"") -> None:
        """Go on at another address; what the old peer has not taken is dropped."""
        self.close()
        self._open(address, tag)

    def close(self) -> None:
        self._socket.close()


class Incoming:
    """The consumer's end of a link."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        union: Any,
        keys: Keys | None = None,
        tag: bytes = b"",
    ) -> None:
        self.tag = tag
        """What messages of the living begin with; others are dropped."""
        self._decode = Decoder(union)
        self._address = address
        self._socket = control_socket(context, address, bind=True, keys=keys)

    async def pump(self, inbox: Sender) -> None:
        """Forward what arrives into the inbox, until cancelled; then close."""
        try:
            while True:
                frames: Sequence[bytes] = await self._socket.recv_multipart()
                data, tag = frames[0], self.tag
                if data.startswith(tag):
                    await inbox.send(self._decode(memoryview(data)[len(tag) :]))
                elif data[:2] != tag[:2]:
                    log.error(
                        "%s: another version of vivavoce sends; install the same on both", self._address
                    )
        finally:
            self._socket.close()
