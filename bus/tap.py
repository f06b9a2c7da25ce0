"""Taps: outside programs listen to what flows between the stages, without anybody waiting for them.

    stages ─Publisher▶ taps ─Exchange▶ tap (Unix socket), or TCP with keys ─▶ listener.Tap, AsyncTap

Every message is two frames: the topic `stage.kind.request`, and msgpack of `[schema, sequence, at, message]`. The
sequence numbers count the messages of one topic; a number that is missing was lost, because the listener did not
read in time. Within one schema number fields are only ever added, at the end.

| kind | stage | message |
|---|---|---|
| text | api | Speak (opens a request, with its text), Text (more text for it) |
| text | chat | ChatDelta: what a token, or the end of a choice, added to the answer |
| codes | code_predictor | Codes: 16 codes of a frame, one frame late, since until then the device works on them |
| codes | code_predictor | Seam: between the parts of a long text, where chunks of the codec end |
| pcm | codec_decoder | Pcm: 16-bit mono samples at the model's rate |
| ending | api | Ending, once for each request, when its client has had everything |
| ending | others | Ending, behind all else that the stage sent for the request |
| timing | all | Timing: a stage has sent a message of the pipeline |

What one stage sends arrives in order; between stages only the times tell what came first.
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from . import wire
from .keys import Keys
from .messages import (
    ChatCredit,
    ChatDelta,
    Close,
    Codes,
    Credit,
    Ending,
    Feedback,
    Message,
    Pcm,
    Seam,
    Speak,
    Text,
)

SCHEMA = 1
KINDS: dict[str, tuple[str, ...]] = {
    "text": ("api", "chat"),
    "codes": ("code_predictor",),
    "pcm": ("codec_decoder",),
    "ending": ("api",),
    "timing": (),
}
"""The stages whose messages of a kind are usually meant; none is all."""


class Timing(Message, frozen=True, kw_only=True):
    """A stage has sent a message; when, is in the envelope."""

    sent: str
    """Its type, such as `Prompt`, `Hidden`, `Codes`, `Pcm` or `Audio`."""
    frame: int | None = None
    """Its first frame, where it has one."""
    frames: int | None = None
    """How many frames it tells of, where it says so."""


Tapped = Speak | Text | ChatDelta | Codes | Seam | Pcm | Ending | Timing


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    sequence: int
    """Number of the message in its topic, from 0."""
    at: float
    """When it was sent, in seconds since 1970."""
    message: msgspec.Raw


@dataclass
class Tally:
    """Written by one loop, read by any."""

    tapped: int = 0
    """Messages that somebody listened to."""


class Publisher:
    """Publishes what the stages of one loop send. Lossy, and never waits."""

    def __init__(
        self, context: zmq.Context[Any], address: str, backlog: int, tally: Tally, keys: Keys | None = None
    ) -> None:
        """:param keys: for an address over TCP."""
        self._tally = tally
        self._socket = zmq.asyncio.Context.shadow(context).socket(zmq.XPUB)
        self._socket.linger = 0
        self._socket.sndhwm = backlog
        if keys is not None and address.startswith("tcp:"):
            keys.connect(self._socket)
        self._socket.connect(address)
        self._wanted: tuple[str, ...] = ()
        """Beginnings of the topics that somebody listens to."""
        self._sequences: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        """Next number of each kind, by stage and request."""
        self._held: dict[str, Codes] = {}

    async def listen(self) -> None:
        """Learn who listens to what, until cancelled; then close."""
        try:
            while True:
                (event,) = await self._socket.recv_multipart()
                topic = event[1:].decode()
                others = set(self._wanted) - {topic}
                self._wanted = tuple(others | {topic} if event[:1] == b"\x01" else others)
                if not self._wanted:
                    self._held.clear()
                    self._sequences.clear()
        finally:
            self._socket.close()

    def watch(self, stage: str, message: Message) -> None:
        """Called with everything that a stage sends."""
        if not self._wanted:
            return
        now, request = time.time(), message.request
        if not isinstance(message, Credit | ChatCredit | Feedback | Close):
            self._publish(stage, "timing", now, _timing(message))
        match message:
            case Codes() if stage == "code_predictor":
                if (ready := self._held.get(request)) is not None:
                    self._publish(stage, "codes", now, ready)
                self._held[request] = message
            case Seam() if stage == "code_predictor":
                self._settle(message, now)
                self._publish(stage, "codes", now, message)
            case Ending():
                if stage == "code_predictor":
                    self._settle(message, now)
                self._publish(stage, "ending", now, message)
            case Pcm() if stage == "codec_decoder":
                self._publish(stage, "pcm", now, message)
            case Speak() | Text() if stage == "api":
                self._publish(stage, "text", now, message)
            case ChatDelta() if message.text:
                self._publish(stage, "text", now, message)
            case _:
                pass
        if isinstance(message, Ending if stage != "api" else Close):
            self._sequences.pop((stage, request), None)

    def ended(self, ending: Ending) -> None:
        """Called with the one ending of a request, as its client saw it."""
        if self._wanted:
            self._publish("api", "ending", time.time(), ending)

    def _settle(self, end: Seam | Ending, now: float) -> None:
        """Publish the frame held back, unless it turned out to be the end: then it was made, but is not spoken."""
        last = self._held.pop(end.request, None)
        good = isinstance(end, Seam) or end.reason in ("stop", "length")
        if last is not None and good and last.frame < end.frames:
            self._publish("code_predictor", "codes", now, last)

    def _publish(self, stage: str, kind: str, now: float, message: Message) -> None:
        topic = f"{stage}.{kind}.{message.request}"
        if not topic.startswith(self._wanted):
            return
        numbers = self._sequences[stage, message.request]
        number = numbers.get(kind, 0)
        numbers[kind] = number + 1
        self._tally.tapped += 1
        envelope = Envelope(SCHEMA, number, now, msgspec.Raw(wire.encode(message)))
        self._socket.send_multipart([topic.encode(), wire.encode(envelope)])


def _timing(message: Message) -> Timing:
    return Timing(
        request=message.request,
        sent=type(message).__name__,
        frame=getattr(message, "frame", None),
        frames=getattr(message, "frames", None),
    )


class Exchange:
    """Takes what is published at one address and hands it to the listeners at another, on a thread of ZeroMQ's.

    Ends with its context.
    """

    def __init__(
        self, context: zmq.Context[Any], source: str, target: str, backlog: int, keys: Keys | None = None
    ) -> None:
        """With keys one end is over TCP, and the other joins an exchange that is there.

        Raises zmq.ZMQError for an address not to be had.
        """
        self._source = context.socket(zmq.XSUB)
        self._target = context.socket(zmq.XPUB)
        self._source.linger = self._target.linger = 0
        self._target.sndhwm = backlog
        try:
            for end, address in ((self._source, source), (self._target, target)):
                if keys is None:
                    end.bind(address)
                elif address.startswith("ipc:"):
                    end.connect(address)
                else:
                    keys.serve(end, guests=end is self._target)
                    end.bind(address)
        except zmq.ZMQError:
            self._source.close()
            self._target.close()
            raise
        self.address = self._target.last_endpoint.decode().rstrip("\0")
        threading.Thread(target=self._run, name="taps").start()

    def _run(self) -> None:
        try:
            zmq.proxy(self._source, self._target)
        except zmq.ContextTerminated:
            self._source.close()
            self._target.close()
