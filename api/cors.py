"""Cross-origin answers for web pages that are allowed to call, errors included. Credentials are never allowed."""

from quart import Quart, Response, request

from ..bus.layout import Api
from .auth import is_allowed

EXPOSED = ", ".join(
    [
        *(
            "X-Request-Id",
            "X-Sample-Rate",
            "X-Channels",
            "X-Bit-Depth",
            "X-Seed",
            "X-Finish-Reason",
            "Retry-After",
        ),
        *("X-TTFA-Ms", "X-TTFA-Audible-Ms", "X-Queue-Ms", "X-RTF", "X-Frames", "X-Underrun-Ms"),
        *("X-Input-Tokens", "X-Output-Tokens", "Server-Timing"),
    ]
)


def install(app: Quart, settings: Api) -> None:
    @app.before_request
    async def preflight() -> Response | None:
        """Answered for every path, before the key is asked for: browsers send none here."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        return Response(status=204)

    @app.after_request
    async def allow(response: Response) -> Response:
        origin = request.headers.get("Origin")
        if not settings.cors_origins:
            return response
        response.headers.add("Vary", "Origin")
        if origin is None or not is_allowed(origin, settings):
            return response
        response.headers["Access-Control-Allow-Origin"] = "*" if "*" in settings.cors_origins else origin
        if "Access-Control-Request-Method" in request.headers:
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
            if asked := request.headers.get("Access-Control-Request-Headers"):
                response.headers["Access-Control-Allow-Headers"] = asked
            response.headers["Access-Control-Max-Age"] = "600"
            if request.headers.get("Access-Control-Request-Private-Network") == "true":
                response.headers["Access-Control-Allow-Private-Network"] = "true"
        else:
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
        return response

    _ = preflight, allow
