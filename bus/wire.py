"""Channels between event loops: one ZeroMQ DEALER–DEALER pair a link, msgpack inside.

One side binds, the other connects; `linger` is 0; a socket has one reader task for its whole life and no time
limit on its receive (a cancelled receive can lose a message). High-water marks are only a ceiling: what bounds
the flow is credit.
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


def encode(message: Message) -> bytes:
    """msgpack of a message; arrays are computed here if they were not yet."""
    return _encoder.encode(message)


class Decoder:
    """Decodes the messages of one link. Raises msgspec.ValidationError for anything else."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def __call__(self, data: bytes | memoryview) -> Message:
        return self._decoder.decode(data)


class Link:
    """One end of a link: `send` on the producing side, `pump` on the consuming side."""

    def __init__(self, context: zmq.Context[Any], address: str, union: Any, *, bind: bool) -> None:
        self._decode = Decoder(union)
        self._socket = zmq.asyncio.Context.shadow(context).socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = self._socket.rcvhwm = CEILING
        if bind:
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    async def send(self, item: Message) -> None:
        await self._socket.send(encode(item))

    async def pump(self, inbox: Sender) -> None:
        """Forward what arrives into the inbox, for ever."""
        while True:
            frames: Sequence[bytes] = await self._socket.recv_multipart()
            await inbox.send(self._decode(frames[0]))

    def close(self) -> None:
        self._socket.close()
