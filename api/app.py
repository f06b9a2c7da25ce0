"""The HTTP application: every route over one running layout."""

from typing import Any, cast

from quart import Quart, Response, request

from ..bus.running import Running
from . import (
    auth,
    batch,
    chat,
    completions,
    cors,
    errors,
    health,
    messages,
    metrics,
    models,
    openapi,
    page,
    requests,
    responses,
    socket,
    speech,
    voices,
)
from .edge import Edge
from .exchange import Guard, current


def create_app(running: Running) -> Quart:
    """The app; `running` must have been entered. Its parts are in `app.extensions["vivavoce"]` (an `Edge`)."""
    app = Quart(__name__, static_folder=None)
    edge = Edge(running)
    app.config["MAX_CONTENT_LENGTH"] = edge.settings.max_body_bytes
    app.config["BODY_TIMEOUT"] = edge.settings.body_timeout_s
    app.config["RESPONSE_TIMEOUT"] = edge.settings.stall_timeout_s
    app.url_map.strict_slashes = False
    cors.install(app, edge.settings)
    auth.install(app, edge.settings)
    errors.install(app)
    for part in (
        speech,
        batch,
        socket,
        chat,
        messages,
        completions,
        responses,
        requests,
        voices,
        models,
        health,
    ):
        app.register_blueprint(part.blueprint(edge))
    app.register_blueprint(metrics.blueprint(edge.metrics))
    app.register_blueprint(page.blueprint())
    inference = (speech, batch, chat, messages, completions, responses)
    documented = (*inference, requests, voices, models, health, metrics, page, openapi)
    operations = [operation for part in documented for operation in part.OPERATIONS]
    app.register_blueprint(openapi.blueprint(operations))

    @app.after_request
    async def account(response: Response) -> Response:
        exchange = current()
        response.headers["X-Request-Id"] = exchange.name
        if response.status_code >= 400 and not exchange.counted:
            edge.metrics.refused(request.blueprint or "none")
        if edge.tracing is not None and request.url_rule is not None:
            edge.tracing.name(request.method, request.url_rule.rule, exchange.name)
        return response

    _ = account
    app.extensions["vivavoce"] = edge
    guarded = Guard(cast(Any, app.asgi_app), edge.exchanges, errors.BrokenOffError)
    app.asgi_app = cast(Any, edge.tracing.around(guarded) if edge.tracing else guarded)
    return app
