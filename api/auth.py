"""The API key, on every route that makes the server work; and browsers of foreign pages, on WebSockets."""

import hmac
from urllib.parse import urlsplit

from quart import Quart, request, websocket
from quart.wrappers.base import BaseRequestWebsocket

from ..bus.errors import RequestError
from ..bus.layout import Api

READING = ("GET", "HEAD", "OPTIONS")
"""These only tell what is there; apps ask them without a key before they have one."""


def install(app: Quart, settings: Api) -> None:
    @app.before_request
    async def of_request() -> None:
        if request.method not in READING:
            check_key(request, settings.api_key)

    @app.before_websocket
    async def of_websocket() -> None:
        check_key(websocket, settings.api_key)
        check_origin(websocket.headers.get("Origin"), websocket.host, settings)

    _ = of_request, of_websocket


def check_key(asked: BaseRequestWebsocket, key: str | None) -> None:
    """`Authorization: Bearer KEY` or `x-api-key: KEY`.

    :raises RequestError: 401 where a key is asked for and neither has it.
    """
    if key is None:
        return
    scheme, _, bearer = asked.headers.get("Authorization", "").partition(" ")
    given = (bearer if scheme.lower() == "bearer" else "", asked.headers.get("x-api-key", ""))
    if not any(hmac.compare_digest(one.strip().encode("latin-1"), key.encode()) for one in given):
        text = "This server asks for its API key, as `Authorization: Bearer` or `x-api-key`."
        raise RequestError(text, status=401, code="invalid_api_key")


def check_origin(origin: str | None, host: str, settings: Api) -> None:
    """A WebSocket is no business of pages from elsewhere: browsers let any page open one, with no preflight.

    :raises RequestError: 403.
    """
    if origin is None or urlsplit(origin).netloc == host or is_allowed(origin, settings):
        return
    raise RequestError(
        f"Pages from {origin} may not use this server: add it to `cors_origins`.",
        status=403,
        code="origin_not_allowed",
    )


def is_allowed(origin: str, settings: Api) -> bool:
    return "*" in settings.cors_origins or origin in settings.cors_origins
