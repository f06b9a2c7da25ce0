"""`POST /v1/audio/speech`: text in; audio as it is made, as events, or whole."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
from quart import Blueprint, Response

from ..bus.errors import RequestError
from ..bus.formats import FORMATS
from . import forms, sse
from .cloning import likeness
from .edge import Edge
from .errors import BrokenOffError, openai_shape
from .exchange import current
from .job import SpeechJob
from .operations import INFERENCE, OBJECT, Operation
from .schema import SpeechBody
from .timeline import Timeline
from .timing import stage_seconds

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/audio/speech",
        summary="Speak a text: streamed as it is made, as events, or whole.",
        body=SpeechBody,
        file="ref_audio",
        answers={
            **{kind.content_type: {"type": "string", "format": "binary"} for kind in FORMATS.values()},
            "text/event-stream": OBJECT,  # each event
        },
        errors=(*INFERENCE, 403),
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("speech", __name__)

    @routes.post("/v1/audio/speech")
    async def speech() -> Response:
        body, recording = await forms.read(SpeechBody, edge.settings, "ref_audio")
        if recording is not None:
            body.ref_audio = base64.b64encode(recording).decode()
        events = body.stream_format == "sse"
        if events and body.stream is False:
            text = "`stream_format` sse is a stream and `stream` is false: leave one of them out."
            raise RequestError(text, "stream")
        whole = body.stream is False
        voice = await likeness(body, edge)
        speak = edge.speak(current().id, body.input, body, streamed=not whole, likeness=voice)
        timeline = None
        if events and body.timeline and edge.running.tap is not None:
            timeline = Timeline(edge.running.tap, current())
        job = SpeechJob(edge, current(), speak, "speech")
        if events:
            # The status is that of the first audio or of the refusal, unless either is long in coming.
            with anyio.move_on_after(edge.settings.keep_alive_s):
                await job.start()
            return _described(sse.response(_events(job, edge.settings.keep_alive_s, timeline)), job)
        await job.start()
        if whole:
            answer = Response(await job.whole(), content_type=FORMATS[speak.format].content_type)
            answer.headers["X-Finish-Reason"] = job.ending.reason
        else:
            answer = Response(_pieces(job), content_type=FORMATS[speak.format].content_type)
            answer.timeout = None  # Quart's own limit would cut a healthy stream
            answer.headers["X-Accel-Buffering"] = "no"
        return _described(answer, job)

    _ = speech
    return routes


async def _pieces(job: SpeechJob) -> AsyncIterator[bytes]:
    async for piece in job:
        yield piece
    if failure := job.failure():
        raise BrokenOffError(failure.message)


async def _events(job: SpeechJob, keep_alive_s: float, timeline: Timeline | None) -> AsyncIterator[bytes]:
    def told() -> dict[str, Any]:
        return {} if timeline is None else {"timeline": timeline.arrived()}

    try:
        async for comment in sse.comments_until(job.start, keep_alive_s):
            yield comment
    except RequestError as refusal:
        yield sse.event("speech.audio.error", openai_shape(refusal.failure, job.speak.request))
        return
    while True:
        async for comment in sse.comments_until(job.wait, keep_alive_s):
            yield comment
        piece = await anext(job, None)
        if piece is None:
            break
        yield sse.event("speech.audio.delta", {"audio": base64.b64encode(piece).decode(), **told()})
    if failure := job.failure():
        yield sse.event("speech.audio.error", openai_shape(failure, job.speak.request))
    else:
        yield sse.event("speech.audio.done", {**done(job), **told()})


def done(job: SpeechJob) -> dict[str, object]:
    """What is known at a good end."""
    ending = job.ending
    return {
        "usage": usage(job),
        "finish_reason": ending.reason,
        "seed": job.speak.seed,
        "timing": {**msgspec.to_builtins(job.figures()), "stages": stage_seconds(ending)},
    }


def usage(job: SpeechJob) -> dict[str, int]:
    """Text tokens in, frames out."""
    text, frames = job.ending.text_tokens, job.ending.frames
    return {"input_tokens": text, "output_tokens": frames, "total_tokens": text + frames}


def _described(answer: Response, job: SpeechJob) -> Response:
    """Headers about the audio and the time so far."""
    figures = job.figures()
    answer.headers["X-Sample-Rate"] = str(job.rate)
    answer.headers["X-Channels"] = "1"
    answer.headers["X-Bit-Depth"] = "16"
    answer.headers["X-Seed"] = str(job.speak.seed)
    spans = {
        "queue": figures.queue_s,
        "ttfa": figures.ttfa_s,
        "audible": figures.ttfa_audible_s,
        **stage_seconds(job.ending),
    }
    answer.headers["Server-Timing"] = ", ".join(
        f"{name};dur={seconds * 1e3:.1f}" for name, seconds in spans.items() if seconds is not None
    )
    for name, value in (("X-TTFA-Ms", figures.ttfa_s), ("X-TTFA-Audible-Ms", figures.ttfa_audible_s)):
        if value is not None:
            answer.headers[name] = f"{value * 1e3:.1f}"
    answer.headers["X-Queue-Ms"] = f"{figures.queue_s * 1e3:.1f}"
    if "X-Finish-Reason" in answer.headers:
        answer.headers["X-RTF"] = f"{figures.rtf or 0:.3f}"
        answer.headers["X-Frames"] = str(figures.frames)
        answer.headers["X-Underrun-Ms"] = f"{figures.underrun_s * 1e3:.1f}"
        tokens = usage(job)
        answer.headers["X-Input-Tokens"] = str(tokens["input_tokens"])
        answer.headers["X-Output-Tokens"] = str(tokens["output_tokens"])
    return answer
