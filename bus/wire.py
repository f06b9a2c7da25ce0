"""Channels between event loops: one ZeroMQ DEALER–DEALER pair a link, msgpack inside.

The consumer binds and the producer connects, to an address that is new with every incarnation of either side: the
producer can always queue, and nothing meant for a dead process reaches its successor. `linger` is 0; a socket has
one reader task for its whole life and no time limit on its receive (a cancelled receive can lose a message).
High-water marks are only a ceiling: what bounds the flow is credit.
"""

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import zmq
import zmq.asyncio

from .channel import Sender
from .messages import Message, Tensor

CEILING = 10_000  # messages; never reached while credits are kept


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


def socket(context: zmq.Context[Any], address: str, *, bind: bool) -> zmq.asyncio.Socket:
    """A DEALER of the kind that every link uses."""
    made = zmq.asyncio.Context.shadow(context).socket(zmq.DEALER)
    made.linger = 0
    made.sndhwm = made.rcvhwm = CEILING
    if bind:
        made.bind(address)
    else:
        made.connect(address)
    return made


class Outgoing:
    """The producer's end of a link."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._context = context
        self._socket = socket(context, address, bind=False)

    async def send(self, item: Message) -> None:
        await self._socket.send(encode(item))

    def reopen(self, address: str) -> None:
        """Go on at another address; what the old peer has not taken is dropped."""
        self.close()
        self._socket = socket(self._context, address, bind=False)

    def close(self) -> None:
        self._socket.close()


class Incoming:
    """The consumer's end of a link."""

    def __init__(self, context: zmq.Context[Any], address: str, union: Any) -> None:
        self._decode = Decoder(union)
        self._socket = socket(context, address, bind=True)

    async def pump(self, inbox: Sender) -> None:
        """Forward what arrives into the inbox, until cancelled; then close."""
        try:
            while True:
                frames: Sequence[bytes] = await self._socket.recv_multipart()
                await inbox.send(self._decode(frames[0]))
        finally:
            self._socket.close()
