"""Keys for sockets over TCP: with CURVE both ends prove who they are, and nobody in between can read.

A server's file holds its own pair and the public keys of its clients; a client's file its own pair and the server's
public key. The machines of one layout share the server's file: it alone opens links. Clients may listen to taps.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85

from .errors import LayoutError

MACHINES, GUESTS = b"machines", b"guests"
"""ZAP domains: sockets for the holders of the server's file alone, and those for its clients too."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pair of CURVE keys, in Z85, and those of the other side."""

    public: str
    secret: str
    server: str | None = None
    """In a client's file: the public key of its server."""
    clients: tuple[str, ...] = ()
    """In a server's file: the public keys of those who may listen to its taps."""

    def serve(self, socket: zmq.Socket[Any], *, guests: bool = False) -> None:
        """Make the socket, before it binds, take only the layout's machines, or its `clients` too; see `gate`."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_server = True
        socket.zap_domain = GUESTS if guests else MACHINES
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a gate nobody gets in

    def connect(self, socket: zmq.Socket[Any]) -> None:
        """Make the socket, before it connects, prove itself to the server."""
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()
        socket.curve_serverkey = (self.server or self.public).encode()

    def admits(self, domain: bytes, client: str) -> bool:
        return client == self.public or (domain == GUESTS and client in self.clients)


def make() -> Keys:
    """A new pair."""
    public, secret = zmq.curve_keypair()
    return Keys(public=public.decode(), secret=secret.decode())


def read(path: str | Path) -> Keys:
    """Raises LayoutError where there are no keys, or others could have read them."""
    file = Path(path).expanduser()
    try:
        if file.stat().st_mode & 0o077:
            raise LayoutError(f"{file} can be read by others: chmod 600 it, or make new keys")
        return msgspec.toml.decode(file.read_bytes(), type=Keys)
    except OSError as error:
        raise LayoutError(f"no keys in {file} ({error.strerror}): make some with `vivavoce keys`") from None
    except msgspec.DecodeError as error:
        raise LayoutError(f"{file} is not a file of keys ({error}): make one with `vivavoce keys`") from None


def write(keys: Keys, path: Path) -> None:
    """A file that only its owner can read. Raises FileExistsError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text(keys))


def rewrite(keys: Keys, path: Path) -> None:
    """Replace a file of keys, whole."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write(keys, beside)
    beside.replace(path)


def text(keys: Keys) -> bytes:
    given = {name: value for name, value in msgspec.structs.asdict(keys).items() if value}
    return b"".join(
        f"{name} = {msgspec.json.encode(value).decode()}\n".encode() for name, value in given.items()
    )


@asynccontextmanager
async def gate(context: zmq.Context[Any], keys: Keys | None) -> AsyncGenerator[None]:
    """Tells ZeroMQ who is let in, for all sockets of a context (ZAP, ZeroMQ RFC 27). Nothing without keys."""
    if keys is None:
        yield
        return
    socket = zmq.asyncio.Context.shadow(context).socket(zmq.REP)
    socket.linger = 0
    socket.bind("inproc://zeromq.zap.01")
    answering = asyncio.create_task(_answer(socket, keys))
    try:
        yield
    finally:
        answering.cancel()
        socket.close()


async def _answer(socket: zmq.asyncio.Socket, keys: Keys) -> None:
    while True:
        version, number, domain, _address, _identity, kind, *proof = await socket.recv_multipart()
        admitted = kind == b"CURVE" and keys.admits(domain, z85.encode(proof[0]).decode())
        status = (b"200", b"OK") if admitted else (b"400", b"unknown key")
        await socket.send_multipart([version, number, *status, b"", b""])
