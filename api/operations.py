"""How a route describes itself for the OpenAPI document. Each blueprint's module has its `OPERATIONS`."""

from collections.abc import Mapping
from typing import Any

import msgspec

OBJECT: dict[str, Any] = {"type": "object"}

_CAUSES = {
    400: "A wrong value, named in `error.param`, or a body that is not JSON.",
    401: "The API key is missing or wrong.",
    403: "A page from elsewhere may not do this.",
    404: "There is no such model, voice or request.",
    408: "The body did not arrive in time.",
    409: "The name is taken.",
    413: "The body is larger than this server takes.",
    415: "The body is of another type.",
    429: "The queue is full; `Retry-After` says when to come back.",
    499: "The request was cancelled by `DELETE /v1/requests/{name}` before its answer began.",
    500: "The server failed.",
    503: "A pipeline is down, or the server is shutting down.",
    504: "No audio came in time.",
}
INFERENCE = tuple(status for status in _CAUSES if status not in (403, 409))
"""Statuses of the errors that a route which works can answer with."""


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class AnthropicDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The body of every answer of Anthropic's routes that is not a success."""

    error: AnthropicDetail
    request_id: str
    type: str = "error"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """As in OpenAPI, with `{name}` for parts that vary."""
    summary: str
    body: type | None = None
    """Struct of the JSON body."""
    file: str = ""
    """Name of the recording, where the body may also be a form."""
    query: Mapping[str, str] = {}
    """Query parameters and what they mean."""
    answers: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"application/json": OBJECT})
    """Schema, or struct, by content type of the answer with status 200."""
    errors: tuple[int, ...] = ()
    problem: type = ErrorBody
    """Struct of their body."""
    unready: str = ""
    """What 503 means, where it has a body of its own."""


def cause(status: int) -> str:
    return _CAUSES[status]
