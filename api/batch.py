"""`POST /v1/audio/speech/batch`: many texts in, each with its own result or error."""

import base64
import time
from typing import Any

import anyio
import msgspec
from quart import Blueprint, Response

from ..bus.errors import RequestError
from ..bus.formats import FORMATS
from .cloning import likeness
from .edge import Edge
from .errors import openai_shape
from .exchange import Exchange, current
from .job import SpeechJob
from .operations import INFERENCE, Operation
from .schema import BatchBody, BatchItem, convert, read_json
from .speech import done

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/audio/speech/batch",
        summary="Speak several texts, each with its own result or error.",
        body=BatchBody,
        errors=INFERENCE,
    ),
)

AT_ONCE = 4
"""Items of one batch in the pipeline at the same time."""


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("batch", __name__)

    @routes.post("/v1/audio/speech/batch")
    async def batch() -> Response:
        given = await read_json()
        items = convert(given, BatchBody).items
        if len(items) > edge.settings.max_batch_items:
            raise RequestError(
                f"A batch has at most {edge.settings.max_batch_items} items; this one has {len(items)}.",
                "items",
            )
        common = {name: value for name, value in given.items() if name != "items"}
        results: list[dict[str, Any]] = [{} for _ in items]
        limiter = anyio.CapacityLimiter(AT_ONCE)
        exchange = current()

        async def work(index: int) -> None:
            async with limiter:
                results[index] = await _result(edge, exchange, index, common, items[index])

        async with anyio.create_task_group() as tasks:
            for index in range(len(items)):
                tasks.start_soon(work, index)
        succeeded = sum(result["status"] == "success" for result in results)
        body = {
            "id": exchange.id,
            "results": results,
            "total": len(items),
            "succeeded": succeeded,
            "failed": len(items) - succeeded,
        }
        answer = Response(msgspec.json.encode(body), content_type="application/json")
        answer.timeout = None
        return answer

    _ = batch
    return routes


async def _result(
    edge: Edge, exchange: Exchange, index: int, common: dict[str, Any], given: Any
) -> dict[str, Any]:
    try:
        if not isinstance(given, dict):
            raise RequestError(f"`items[{index}]` must be a JSON object.", "items")
        item = convert({**common, **given}, BatchItem)
        voice = await likeness(item, edge)
        speak = edge.speak(f"{exchange.id}-{index}", item.input, item, streamed=False, likeness=voice)
        job = SpeechJob(edge, exchange, speak, "batch", received=time.perf_counter())
        try:
            await job.start()
            data = await job.whole()
        finally:
            job.close()
    except RequestError as error:
        return {"index": index, "status": "error", **openai_shape(error.failure, exchange.id)}
    return {
        "index": index,
        "status": "success",
        "audio_data": base64.b64encode(data).decode(),
        "media_type": FORMATS[speak.format].content_type,
        **done(job),
    }
