"""The models that are served."""

import time
from typing import Any

from quart import Blueprint

from ..bus.control import ModelInfo
from .edge import Edge
from .operations import Operation
from .voices import voices_of

OPERATIONS = (
    Operation(method="get", path="/v1/models", summary="The models that are served."),
    Operation(
        method="get",
        path="/v1/models/{name}",
        summary="One model, by its name or an alias, with its voices.",
        errors=(404,),
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("models", __name__)
    created = int(time.time())

    def described(model: ModelInfo) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "vivavoce",
            "family": model.family,
            "kind": model.kind,
            "size": model.size,
        }
        if model.family == "speech":
            shown |= {"languages": list(model.languages), "sample_rate": model.sample_rate}
        else:
            shown["context_length"] = model.context
        return shown

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described(model) for model in edge.catalog.models()]}

    @routes.get("/v1/models/<path:name>")
    async def one(name: str) -> dict[str, Any]:
        model = edge.catalog.find(name)
        return {**described(model), "id": name, "voices": voices_of(edge.catalog, model)}

    _ = models, one
    return routes
