"""Refusals and failures as answers: one shape for each API family, for every status, HTTP errors included."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from quart import Quart, Response, has_request_context, request, websocket
from quart.wrappers.base import BaseRequestWebsocket
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing.exceptions import WebsocketMismatch

from ..bus.errors import RequestError
from ..bus.messages import Failure
from .exchange import current

log = logging.getLogger(__name__)


class BusyError(RequestError):
    """Too many requests wait already, or the server is about to stop."""

    def __init__(self, message: str, *, status: int, code: str, retry_after_s: int) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after_s = retry_after_s


class BrokenOffError(Exception):
    """A body that cannot be completed: the connection ends without the end of the body."""


def openai_shape(failure: Failure, _request_id: str) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(failure.status, "server_error" if failure.status >= 500 else "invalid_request_error")
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


def anthropic_shape(failure: Failure, request_id: str) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    kind = kinds.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": failure.message},
        "request_id": request_id,
    }


Shape = Callable[[Failure, str], dict[str, Any]]

# By the start of the path; everything else has OpenAI's shape.
SHAPES: dict[str, Shape] = {"/v1/messages": anthropic_shape}


def shape_of(path: str) -> Shape:
    return next((shape for prefix, shape in SHAPES.items() if path.startswith(prefix)), openai_shape)


def asked() -> BaseRequestWebsocket:
    """The request or WebSocket being handled."""
    return request if has_request_context() else websocket


def answer(failure: Failure, *, retry_after_s: int | None = None) -> Response:
    """The failure in the shape that the requested path has."""
    if not current().counted:  # a job tells of its ending itself
        log.info("%s: refused: %s", asked().path, failure.message, extra={"status": failure.status})
    body = shape_of(asked().path)(failure, current().name)
    response = Response(msgspec.json.encode(body), failure.status, content_type="application/json")
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(retry_after_s)
    if failure.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def refusal(failure: Failure) -> RequestError:
    """The failure of a stage, as an exception."""
    if failure.status == 503:
        return BusyError(failure.message, status=503, code=failure.code, retry_after_s=5)
    return RequestError(failure.message, failure.param, status=failure.status, code=failure.code)


_HTTP = {
    400: ("bad_request", "The request cannot be read."),
    404: ("not_found", "There is no route {path}."),
    405: ("method_not_allowed", "{path} cannot be asked with {method}."),
    408: ("body_timeout", "The body did not arrive in time."),
    413: ("body_too_large", "The body is larger than this server takes."),
    426: ("upgrade_required", "{path} is a WebSocket: ask for it with `Upgrade: websocket`."),
}


def install(app: Quart) -> None:
    """Have the app answer every error in its family's shape."""

    @app.errorhandler(RequestError)
    async def refused(error: RequestError) -> Response:
        return answer(error.failure, retry_after_s=getattr(error, "retry_after_s", None))

    @app.errorhandler(HTTPException)
    async def http(error: HTTPException) -> Response:
        mismatch = isinstance(error, WebsocketMismatch) and has_request_context()
        status = 426 if mismatch else error.code or 500
        code, text = _HTTP.get(
            status, (error.name.lower().replace(" ", "_"), error.description or error.name)
        )
        text = text.format(path=asked().path, method=getattr(asked(), "method", "WebSocket"))
        response = answer(Failure(status=status, code=code, message=text))
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        if mismatch:
            response.headers["Upgrade"] = "websocket"
        return response

    @app.errorhandler(Exception)
    async def unexpected(error: Exception) -> Response:
        log.error("%s failed", asked().path, exc_info=error)
        return answer(Failure(status=500, code="internal_error", message=f"The server failed: {error}"))

    _ = refused, http, unexpected
