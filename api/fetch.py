"""Fetching a reference from an address that a client gives, without becoming its way into this network.

Every name is resolved once, every address it has must be a public one, and the connection goes to exactly that
address; redirects are followed a few times and checked the same way. Sizes and times are bounded. Blocking: run it
in a thread.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

from ..bus.errors import RequestError

REDIRECTS = 3
TIMEOUT_S = 10.0
_PIECE = 64 * 1024
_REDIRECTING = (301, 302, 303, 307, 308)
_INSIDE = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
"""Addresses that look public but name an IPv4 address which may not be."""


def is_public(text: str) -> bool:
    """Whether an IP address may be connected to on a client's behalf."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif any(address in network for network in _INSIDE):
            return False
    return address.is_global and not address.is_multicast


def fetch(url: str, most_bytes: int, *, allowed: Callable[[str], bool] = is_public) -> bytes:
    """The body of an http or https address.

    :raises RequestError: not public, not there, too large, too slow, or not of these schemes.
    """
    until = time.monotonic() + TIMEOUT_S
    try:
        for _ in range(REDIRECTS + 1):
            answer = _get(url, most_bytes, until, allowed)
            if isinstance(answer, bytes):
                return answer
            url = answer
    except (OSError, http.client.HTTPException, UnicodeError, ValueError):
        raise _refusal("cannot be fetched") from None
    raise _refusal("redirects too often")


def _get(url: str, most_bytes: int, until: float, allowed: Callable[[str], bool]) -> bytes | str:
    """The body, or where it is said to be instead."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise _refusal("is not a plain http or https address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    # No word about what is there: an answer must not tell inside addresses apart.
    if not addresses or not all(map(allowed, addresses)):
        raise _refusal("is not a public address")
    plain = socket.create_connection((addresses[0], port), timeout=_left(until))
    with plain:
        secured: socket.socket = plain
        if parts.scheme == "https":
            secured = ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
        with secured:
            connection = http.client.HTTPConnection(parts.hostname, port)
            connection.sock = secured
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Host": parts.netloc, "Accept": "audio/*,*/*"})
            secured.settimeout(_left(until))
            response = connection.getresponse()
            if response.status in _REDIRECTING:
                return urljoin(url, response.getheader("Location") or "")
            if response.status != 200:
                raise _refusal(f"answered with status {response.status}")
            return _body(response, secured, most_bytes, until)


def _body(
    response: http.client.HTTPResponse, connection: socket.socket, most_bytes: int, until: float
) -> bytes:
    data = bytearray()
    while True:
        connection.settimeout(_left(until))
        piece = response.read1(_PIECE)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > most_bytes:
            raise _refusal(f"is larger than {most_bytes} bytes")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refusal(why: str) -> RequestError:
    return RequestError(f"The address in `ref_audio` {why}.", "ref_audio")
