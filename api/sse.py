"""Server-sent events: `event` and `data` lines, and comments while there is nothing to say."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import msgspec
from quart import Response

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
"""The last line of OpenAI's chat streams."""


def event(kind: str, data: dict[str, Any]) -> bytes:
    """One event; its type is in the data too, as OpenAI's clients expect."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **data}))


def data(value: dict[str, Any]) -> bytes:
    """One event without a name."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def response(events: AsyncIterator[bytes]) -> Response:
    answer = Response(events, content_type="text/event-stream; charset=utf-8")
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["X-Accel-Buffering"] = "no"
    answer.timeout = None  # Quart's own limit would cut a healthy stream
    return answer


async def comments_until(ready: Callable[[], Awaitable[object]], every_s: float) -> AsyncIterator[bytes]:
    """Comments, one each `every_s`, until `ready` returns. It must bear being cancelled and called again."""
    while True:
        with anyio.move_on_after(every_s) as limit:
            await ready()
        if not limit.cancelled_caught:
            return
        yield COMMENT
