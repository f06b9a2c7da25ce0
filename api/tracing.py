"""Spans for OpenTelemetry, where the extra `otel` is installed: one a request, and in it one for each stage.

OpenTelemetry's own environment variables say where they go: nothing is made without OTEL_EXPORTER_OTLP_ENDPOINT (or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT). A caller's `traceparent` is the parent of its request's span.
"""

import importlib.metadata
import logging
import os
import threading
from typing import Any

import anyio

from ..bus.messages import Ending
from .exchange import AsgiApp, Receive, Scope, Send

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""For the last spans to be taken when the server ends."""
TARGETS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def start() -> "Tracing | None":
    """None where no target is given, or the extra is not installed."""
    if not any(os.environ.get(name) for name in TARGETS):
        return None
    try:
        return Tracing()
    except ImportError as error:
        log.warning("No spans are sent: install `vivavoce[otel]` (%s).", error)
        return None


class Tracing:
    def __init__(self) -> None:
        """:raises ImportError: the extra is not installed."""
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        version = importlib.metadata.version("vivavoce")
        name = os.environ.get("OTEL_SERVICE_NAME", "vivavoce")
        provider = TracerProvider(
            resource=Resource.create({"service.name": name, "service.version": version}),
            shutdown_on_exit=False,  # it would wait for a collector that does not answer; see `close`
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._shut_down = provider.shutdown
        self._trace = trace
        self._tracer = provider.get_tracer("vivavoce", version)
        self._parent = TraceContextTextMapPropagator().extract

    async def close(self) -> None:
        """Send what is left. A collector that does not take it in time holds nothing up."""
        sending = threading.Thread(target=self._shut_down, daemon=True)
        sending.start()
        await anyio.to_thread.run_sync(sending.join, FAREWELL_S)

    def around(self, app: AsgiApp) -> AsgiApp:
        """The app, with a span around each request."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] not in ("http", "websocket"):
                await app(scope, receive, send)
                return
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
            }
            method = scope.get("method", "WEBSOCKET")
            with self._tracer.start_as_current_span(
                method,
                context=self._parent(headers),
                kind=self._trace.SpanKind.SERVER,
                attributes={"http.request.method": method, "url.path": scope["path"]},
            ) as span:

                async def sent(message: dict[str, Any]) -> None:
                    if "status" in message:
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(self._trace.StatusCode.ERROR)
                    await send(message)

                await app(scope, receive, sent)

        return traced

    def name(self, method: str, route: str, request_id: str) -> None:
        """What the current request turned out to be."""
        span = self._trace.get_current_span()
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "vivavoce.request_id": request_id})

    def ended(self, ending: Ending, figures: dict[str, Any]) -> None:
        """A job of the current request has ended: its figures, and the stages' spans."""
        about = {"vivavoce.request": ending.request, "vivavoce.ending": ending.reason}
        told = {
            f"vivavoce.{name}": value for name, value in figures.items() if isinstance(value, int | float)
        }
        span = self._trace.get_current_span()
        span.set_attributes({**about, **told})
        if ending.reason == "error":
            span.set_status(self._trace.StatusCode.ERROR, ending.failure.message if ending.failure else None)
        for stage, time in ending.stages.items():
            attributes = {**about, "vivavoce.busy_s": time.busy_s}
            made = self._tracer.start_span(stage, attributes=attributes, start_time=round(time.begun * 1e9))
            made.end(round(time.ended * 1e9))
