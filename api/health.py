"""Is it alive, is it ready. Answered from what this process knows, without waiting for anybody."""

import importlib.metadata
import time
from typing import Any

import msgspec
from quart import Blueprint

from .edge import Edge
from .operations import Operation

OPERATIONS = (
    Operation(
        method="get", path="/health", summary="Every process and its state.", unready="A pipeline is gone."
    ),
    Operation(method="get", path="/ready", summary="Whether new work is taken.", unready="It is not."),
    Operation(method="get", path="/readyz", summary="The same as /ready.", unready="It is not."),
    Operation(method="get", path="/v1/test", summary="Says ok, for clients that look for it."),
    Operation(method="get", path="/version", summary="This server's version."),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("health", __name__)
    running, admission = edge.running, edge.admission

    @routes.get("/health")
    async def health() -> tuple[dict[str, Any], int]:
        """200 while the pipelines live, 503 with the reason when one is gone."""
        body = {
            "status": "failed" if running.failed else "ok",
            "reason": running.failed,
            "uptime_s": time.monotonic() - running.started,
            "backend": running.backend,
            "active_requests": admission.active,
            "queued_requests": admission.waiting,
            "processes": msgspec.to_builtins(running.processes()),
        }
        return body, 503 if running.failed else 200

    @routes.get("/ready")
    @routes.get("/readyz")
    async def ready() -> tuple[dict[str, Any], int]:
        """200 when new work is taken."""
        reason = "shutting down" if admission.draining else running.failed
        models = [model.name for model in edge.catalog.models()]
        return {"ready": reason is None, "reason": reason, "models": models}, 200 if reason is None else 503

    @routes.get("/v1/test")
    async def test() -> dict[str, str]:
        """How wyoming-openai finds out that it can ask for the voices."""
        return {"status": "ok"}

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": importlib.metadata.version("vivavoce")}

    _ = health, ready, test, version
    return routes
