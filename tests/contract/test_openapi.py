"""The OpenAPI document against the routes that there are, and against what they answer."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from vivavoce.api.app import create_app


async def test_every_route_is_described_and_nothing_else(server: Any, http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    app = create_app(server.running)
    served = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        if not rule.websocket
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert described == served
    assert document["openapi"] == "3.1.0"


async def test_bodies_are_the_structs(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    schema = document["components"]["schemas"]["SpeechBody"]
    assert schema["required"] == ["input"]
    speed = schema["properties"]["speed"]
    assert speed["default"] == 1.0
    limits = speed["anyOf"][0]
    assert (limits["minimum"], limits["maximum"]) == (0.25, 4.0)
    answers = document["paths"]["/v1/audio/speech"]["post"]["responses"]
    assert {"audio/mpeg", "text/event-stream"} <= set(answers["200"]["content"])
    assert {"400", "401", "404", "413", "415", "429", "499", "500", "503", "504"} <= set(answers)
    assert "DELETE /v1/requests/{name}" in answers["499"]["description"]


async def test_an_answer_that_is_a_struct(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    responses = document["paths"]["/v1/requests/{name}"]["delete"]["responses"]
    told = responses["200"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    assert told == {"$ref": "#/components/schemas/CancelledRequest"}
    assert set(schemas["CancelledRequest"]["properties"]) == {"id", "object", "status", "speech"}
    (position,) = schemas["CancelledRequest"]["properties"]["speech"]["items"].values()
    fields = schemas[position.rpartition("/")[2]]["properties"]
    assert fields["samples_heard"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert set(fields) == {"samples_sent", "samples_heard", "sample_rate", "text"}
    assert "request" in responses["404"]["description"]


CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
)


async def test_schemathesis_finds_nothing(
    serve_with: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """No 5xx; no status, content type or body that the document does not tell of; no wrong value taken.

    One request that nobody reads has the only place, so that good requests cost no speech: they get 429.
    """
    pytest.importorskip("schemathesis")
    options = ["--phases=coverage,fuzzing", "--max-examples=4", "--seed=1", "--no-color"]
    async with serve_with(max_concurrent=1, max_queued=0) as server, connect(server.port) as parked:
        await parked.speak(input="A long story begins here, and it goes on. " * 20, response_format="pcm")
        await parked.head()
        url = f"{server.url}/openapi.json"
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            url,
            *options,
            "--checks",
            ",".join(CHECKS),
        ]
        result = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout.decode()[-4000:]


@pytest.mark.parametrize("path", ["/", "/docs", "/web/app.js", "/web/style.css", "/web/docs.js"])
async def test_the_pages_load_nothing_from_elsewhere(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.get(path)
    assert reply.status_code == 200
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert not re.search(r"(?:src|href|fetch\()[=\"'`]*https?://", reply.text)


async def test_pages_that_are_not_there(http: httpx.AsyncClient) -> None:
    for path in ("/web/index.html", "/web/../app.py", "/web/%2e%2e/app.py", "/web/"):
        assert (await http.get(path)).status_code == 404
