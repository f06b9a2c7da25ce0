"""The voices that can be asked for."""

from typing import Any

from quart import Blueprint, request

from ..bus.control import ModelInfo
from .catalog import Catalog
from .edge import Edge
from .operations import OBJECT, Operation

OPERATIONS = (
    Operation(
        method="get",
        path="/v1/audio/voices",
        summary="The voices that can be asked for.",
        query={"legacy": "`true` for plain names.", "model": "Only those of this model."},
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/v1/audio/speech/voices",
        summary="One entry for each model and voice.",
        query={"model_id": "Only those of this model."},
        answers={"application/json": {"type": "array", "items": OBJECT}},
        errors=(404,),
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("voices", __name__)

    @routes.get("/v1/audio/voices")
    async def voices() -> dict[str, Any]:
        """Objects, or plain names with `?legacy=true`; those of one model with `?model=`."""
        listed = list_voices(edge.catalog, request.args.get("model"))
        if request.args.get("legacy", "").lower() in ("1", "true", "yes"):
            return {"voices": [voice["id"] for voice in listed]}
        return {"voices": listed}

    @routes.get("/v1/audio/speech/voices")
    async def by_model() -> list[dict[str, Any]]:
        """One entry for each model and voice."""
        wanted = request.args.get("model_id")
        models = [edge.catalog.find(wanted, "speech")] if wanted else speech_models(edge.catalog)
        return [
            {
                "model_id": model.name,
                "voice_id": voice["id"],
                "name": voice["id"],
                "owned_by": "vivavoce",
                "sample_rate": model.sample_rate,
                "language": None,
            }
            for model in models
            for voice in voices_of(edge.catalog, model)
        ]

    _ = voices, by_model
    return routes


def speech_models(catalog: Catalog) -> list[ModelInfo]:
    return [model for model in catalog.models() if model.family == "speech"]


def voices_of(catalog: Catalog, model: ModelInfo) -> list[dict[str, Any]]:
    """Presets first, then the names that stand for one of them."""
    presets: list[dict[str, Any]] = [{"id": name, "name": name, "type": "preset"} for name in model.voices]
    others = [
        {"id": name, "name": name, "type": "alias", "alias_of": voice}
        for name, voice in catalog.aliases(model).items()
    ]
    return presets + others


def list_voices(catalog: Catalog, model: str | None) -> list[dict[str, Any]]:
    """Every voice once, with the models that have it.

    :raises RequestError: no such model.
    """
    models = [catalog.find(model, "speech")] if model else speech_models(catalog)
    listed: dict[str, dict[str, Any]] = {}
    for info in models:
        for voice in voices_of(catalog, info):
            listed.setdefault(voice["id"], {**voice, "models": []})["models"].append(info.name)
    return list(listed.values())
