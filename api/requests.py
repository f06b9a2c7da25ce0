"""`DELETE /v1/requests/{name}`: end a running request, whoever holds its connection, and learn how far it came."""

from typing import Literal

import msgspec
from quart import Blueprint, Response, request

from ..bus.errors import RequestError
from .edge import Edge
from .exchange import Exchange, current
from .job import SpeechJob
from .operations import Operation


class Position(msgspec.Struct):
    """How far a speech request came, in samples at `sample_rate`, and the text that was heard."""

    samples_sent: int
    samples_heard: int | None
    sample_rate: int
    text: str


class CancelledRequest(msgspec.Struct, kw_only=True):
    """What `DELETE /v1/requests/{name}` answers."""

    id: str
    object: Literal["request"] = "request"
    status: Literal["cancelled"] = "cancelled"
    speech: list[Position]
    """Of each speech request that was running."""


OPERATIONS = (
    Operation(
        method="delete",
        path="/v1/requests/{name}",
        summary="Cancel the running request with this X-Request-Id, and say how much of it was heard.",
        query={"samples_heard": "What the client has played of it, for the text that it heard."},
        answers={"application/json": CancelledRequest},
        errors=(400, 401, 404),
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("requests", __name__)

    @routes.delete("/v1/requests/<name>")
    async def cancel(name: str) -> Response:
        heard = _samples(request.args.get("samples_heard"))
        found = [exchange for exchange in edge.exchanges.find(name) if exchange is not current()]
        if not found:
            raise RequestError(f"No request {name!r} is running.", status=404, code="request_not_found")
        speech = [position for exchange in found for position in _cancelled(exchange, heard)]
        told = CancelledRequest(id=name, speech=speech)
        return Response(msgspec.json.encode(told), content_type="application/json")

    _ = cancel
    return routes


def _cancelled(exchange: Exchange, heard: int | None) -> list[Position]:
    """End it; what is told of each of its speech requests."""
    jobs = [thing for thing in exchange.owned if isinstance(thing, SpeechJob) and not thing.over]
    exchange.close("The request was cancelled.", code="cancelled", status=499)
    for job in jobs:
        job.played = job.played if heard is None else heard
    return [Position(**job.position()) for job in jobs]


def _samples(given: str | None) -> int | None:
    """Raises RequestError."""
    if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise RequestError("`samples_heard` is a number of samples.", "samples_heard")
    return None if given is None else int(given)
