"""`DELETE /v1/requests/{name}`: end a running request, whoever holds its connection, and learn how far it came."""

from typing import Any

from quart import Blueprint, request

from ..bus.errors import RequestError
from .edge import Edge
from .exchange import Exchange, current
from .job import SpeechJob
from .operations import Operation

OPERATIONS = (
    Operation(
        method="delete",
        path="/v1/requests/{name}",
        summary="Cancel the running request with this X-Request-Id, and say how much of it was heard.",
        query={"samples_heard": "What the client has played of it, for the text that it heard."},
        errors=(400, 401, 404),
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("requests", __name__)

    @routes.delete("/v1/requests/<name>")
    async def cancel(name: str) -> dict[str, Any]:
        heard = _samples(request.args.get("samples_heard"))
        found = [exchange for exchange in edge.exchanges.find(name) if exchange is not current()]
        if not found:
            raise RequestError(f"No request {name!r} is running.", status=404, code="request_not_found")
        speech = [position for exchange in found for position in _cancelled(exchange, heard)]
        return {"id": name, "object": "request", "status": "cancelled", "speech": speech}

    _ = cancel
    return routes


def _cancelled(exchange: Exchange, heard: int | None) -> list[dict[str, Any]]:
    """End it; what is told of each of its speech requests."""
    jobs = [thing for thing in exchange.owned if isinstance(thing, SpeechJob) and not thing.over]
    exchange.close("The request was cancelled.", code="cancelled", status=499)
    for job in jobs:
        job.played = job.played if heard is None else heard
    return [job.position() for job in jobs]


def _samples(given: str | None) -> int | None:
    """Raises RequestError."""
    if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise RequestError("`samples_heard` is a number of samples.", "samples_heard")
    return None if given is None else int(given)
