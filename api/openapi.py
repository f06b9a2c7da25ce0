"""`/openapi.json`, made from the structs that the routes decode with, and a page that shows it."""

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from quart import Blueprint, Response

from .forms import STRUCTURED
from .operations import Operation, cause

OPERATIONS = (
    Operation(method="get", path="/openapi.json", summary="This document."),
    Operation(
        method="get",
        path="/docs",
        summary="A page that shows this document.",
        answers={"text/html": {"type": "string"}},
    ),
)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    kinds = [operation.body for operation in operations if operation.body is not None]
    told = [answer for operation in operations for answer in operation.answers.values()]
    sent = dict.fromkeys(kind for kind in told if isinstance(kind, type))
    sent |= dict.fromkeys(operation.problem for operation in operations)
    made, schemas = msgspec.json.schema_components(
        [*sent, *kinds], ref_template="#/components/schemas/{name}"
    )
    for kind in kinds:
        _allow_null(schemas[kind.__name__])
    described = dict(zip([*sent, *kinds], made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = paths.setdefault(operation.path, {})
        path[operation.method] = _operation(operation, described)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vivavoce",
            "version": importlib.metadata.version("vivavoce"),
            "description": "Speech and chat, after OpenAI and Anthropic. WebSocket: /v1/audio/speech/stream",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _allow_null(schema: dict[str, Any]) -> None:
    """A field that is null is as if it were absent (see `schema`)."""
    for name, part in schema["properties"].items():
        nullable = any(option.get("type") == "null" for option in part.get("anyOf", ()))
        if name not in schema.get("required", ()) and not nullable:
            default = {"default": part.pop("default")} if "default" in part else {}
            schema["properties"][name] = {"anyOf": [part, {"type": "null"}], **default}


def _operation(operation: Operation, described: dict[type, dict[str, Any]]) -> dict[str, Any]:
    content = {
        kind: {"schema": described[answer] if isinstance(answer, type) else answer}
        for kind, answer in operation.answers.items()
    }
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for status in operation.errors:
        told = {"application/json": {"schema": described[operation.problem]}}
        responses[str(status)] = {"description": cause(status), "content": told}
    if operation.unready:
        responses["503"] = {"description": operation.unready, "content": content}
    made: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    parts = re.findall(r"{(\w+)}", operation.path)
    text = {"type": "string"}
    made["parameters"] = [
        *({"name": part, "in": "path", "required": True, "schema": text} for part in parts),
        *(
            {"name": name, "in": "query", "required": False, "schema": text, "description": meaning}
            for name, meaning in operation.query.items()
        ),
    ]
    if operation.body is not None:
        schema = {"application/json": {"schema": described[operation.body]}}
        if operation.file:
            recording = {"properties": {operation.file: {"type": "string", "format": "binary"}}}
            form = {"allOf": [described[operation.body], recording]}
            names = {field.encode_name for field in msgspec.structs.fields(operation.body)}
            encoding = {name: {"contentType": "application/json"} for name in STRUCTURED if name in names}
            schema["multipart/form-data"] = {"schema": form, "encoding": encoding}
        made["requestBody"] = {"required": True, "content": schema}
    if operation.method != "get":
        made["security"] = [{}, {"bearer": []}, {"header": []}]
    return made


def blueprint(operations: Sequence[Operation]) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    data = msgspec.json.encode(document(operations))

    @routes.get("/openapi.json")
    async def read() -> Response:
        return Response(data, content_type="application/json")

    _ = read
    return routes
