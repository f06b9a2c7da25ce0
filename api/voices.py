"""The voices that can be asked for: presets, other names for them, and stored ones, which come and go here."""

from functools import partial
from typing import Any

import anyio.to_thread
from quart import Blueprint, request

from ..bus.control import ModelInfo
from ..bus.errors import RequestError
from ..configs.voice_store import StoredVoice, check_name
from . import forms, references
from .catalog import Catalog
from .edge import Edge
from .operations import OBJECT, Operation
from .schema import VoiceBody

OPERATIONS = (
    Operation(
        method="get",
        path="/v1/audio/voices",
        summary="The voices that can be asked for.",
        query={"legacy": "`true` for plain names.", "model": "Only those of this model."},
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/v1/audio/voices",
        summary="Store a voice to imitate.",
        body=VoiceBody,
        file="audio_sample",
        errors=(400, 401, 403, 408, 409, 413, 415, 500),
    ),
    Operation(
        method="delete",
        path="/v1/audio/voices/{name}",
        summary="Forget a stored voice.",
        errors=(401, 404),
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
        wanted = request.args.get("model")
        listed = list_voices(edge.catalog, wanted) + await stored_voices(edge, wanted)
        if request.args.get("legacy", "").lower() in ("1", "true", "yes"):
            return {"voices": [voice["id"] for voice in listed]}
        refused = await anyio.to_thread.run_sync(edge.voices.refused)
        return {"voices": listed, **({"refused": refused} if refused else {})}

    @routes.post("/v1/audio/voices")
    async def add() -> dict[str, Any]:
        body, data = await forms.read(VoiceBody, edge.settings, "audio_sample", "file")
        return described(edge, await store(edge, body, data))

    @routes.delete("/v1/audio/voices/<path:name>")
    async def remove(name: str) -> dict[str, Any]:
        if not await anyio.to_thread.run_sync(edge.voices.remove, name):
            raise RequestError(
                "There is no stored voice of this name.", "name", status=404, code="voice_not_found"
            )
        return {"id": name, "object": "audio.voice", "deleted": True}

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

    _ = voices, by_model, add, remove
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


async def stored_voices(edge: Edge, model: str | None = None) -> list[dict[str, Any]]:
    """The stored voices, where there is a model that can imitate them."""
    able = _imitators(edge.catalog)
    if model is not None:
        wanted = edge.catalog.find(model, "speech").name
        able = [name for name in able if name == wanted]
    if not able:
        return []
    return [
        {**described(edge, voice), "models": able}
        for voice in await anyio.to_thread.run_sync(edge.voices.all)
    ]


def described(edge: Edge, voice: StoredVoice) -> dict[str, Any]:
    """A stored voice, without its sound."""
    return {
        "object": "audio.voice",
        "id": voice.name,
        "name": voice.name,
        "created_at": voice.created,
        "type": "stored",
        "models": _imitators(edge.catalog),
        "seconds": round(voice.seconds, 3),
        "ref_text": voice.text,
        "consent": voice.consent,
        "description": voice.description,
    }


async def store(edge: Edge, body: VoiceBody, data: bytes | None) -> StoredVoice:
    """Keep a voice; `data` is its recording where that is not in the body.

    :raises RequestError: a bad or taken name, no usable recording, or no model that could imitate it.
    """
    check_name(body.name)
    if not _imitators(edge.catalog):
        raise RequestError(
            "No loaded model can imitate a voice: load a Base checkpoint, then store it.", "model"
        )
    if edge.catalog.has_preset(body.name):
        raise RequestError(
            f"{body.name!r} is a preset voice: choose another name.", "name", status=409, code="voice_exists"
        )
    if data is not None:
        pcm = await anyio.to_thread.run_sync(references.decode, data, "audio_sample")
    elif body.ref_audio is not None:
        settings = edge.settings
        pcm = await references.take(
            body.ref_audio, urls=settings.reference_urls, most_bytes=settings.max_body_bytes
        )
    else:
        raise RequestError(
            "The recording is missing: send it as `audio_sample` in multipart/form-data, or as `ref_audio`.",
            "audio_sample",
            code="missing_required_parameter",
        )
    add = partial(
        edge.voices.add,
        body.name,
        pcm,
        text=(body.ref_text or "").strip() or None,
        consent=body.consent,
        description=body.description,
    )
    return await anyio.to_thread.run_sync(add)


def _imitators(catalog: Catalog) -> list[str]:
    return [model.name for model in speech_models(catalog) if model.kind == "base"]
