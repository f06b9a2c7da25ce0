"""A reply that is spoken while it is written: the text of one chat request goes into one running speech request."""

import base64
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from ..bus.errors import RequestError
from ..bus.messages import ChatDelta, ChatFinished, Failure, Speak
from .chat_job import ChatJob, Choice
from .chat_schema import ChatAudio, ChatBody
from .cloning import likeness
from .edge import Edge
from .errors import refusal
from .exchange import current
from .job import SpeechJob
from .schema import Format

KEPT_S = 3600
MOST_KEPT = 256


async def speak_of(edge: Edge, body: ChatBody) -> Speak:
    """The speech request for a reply. Raises RequestError for a voice, model or format that cannot be had."""
    if not any(model.family == "speech" for model in edge.catalog.models()):
        text = "This server has no speech model: leave audio out of `modalities`, or start it with one."
        raise RequestError(text, "modalities", code="unsupported_parameter")
    how = body.audio
    if how is None:
        text = "`audio` is missing: `modalities` asks for audio."
        raise RequestError(text, "audio", code="missing_required_parameter")
    if body.n > 1:
        raise RequestError("`n` must be 1 for an answer that is spoken.", "n")
    edge.refuse_if_down("speech")
    # Chat's seed may be negative, a voice's not.
    seed = body.seed % 2**63 if how.seed is None and body.seed is not None else how.seed
    how = msgspec.structs.replace(how, response_format=_container(how), seed=seed)
    try:
        voice = await likeness(how, edge)
        name = f"{current().id}-voice"
        return edge.speak(name, "", how, streamed=body.stream, more_text=True, likeness=voice)
    except RequestError as error:
        error.failure = _in_audio(error.failure)
        raise


def _container(how: ChatAudio) -> Format:
    """Raises RequestError."""
    kind = "pcm" if how.format == "pcm16" else how.format
    if kind is not None and how.response_format not in (None, kind):
        text = "`format` and `response_format` are one field by two names: send one of them."
        raise RequestError(text, "audio.format")
    return kind or how.response_format or "wav"


def _in_audio(failure: Failure) -> Failure:
    """Naming the field where the client gave it."""
    if failure.param not in ChatAudio.__struct_fields__:
        return failure
    return msgspec.structs.replace(failure, param=f"audio.{failure.param}")


class Voice(SpeechJob):
    """The speech request of a reply; it has an account of its own only where there was something to say."""

    def failure(self) -> Failure | None:
        failure = super().failure()
        return None if failure is None else _in_audio(failure)

    def _account(self) -> None:
        failure = self.failure()
        if self._text.strip() and (failure is None or failure.code != "empty_input"):
            super()._account()


class Spoken:
    """A source of parts like a `ChatJob`, with bytes of the container among them, in the order of their making.

    The finish comes last. The voice may end before the text does, and goes on after it. Reasoning and calls are not
    spoken. Both requests are granted as much as the client takes.
    """

    def __init__(self, chat: ChatJob, voice: Voice) -> None:
        self.chat = chat
        self.voice = voice
        self.audio = b""
        """Of a reply that is whole."""
        self._speaking = False
        """Whether there has been something to say."""
        self._finished: ChatFinished | None = None
        self._failure: Failure | None = None
        """Why the voice failed."""

    async def parts(
        self, silence_s: float = math.inf
    ) -> AsyncIterator[ChatDelta | ChatFinished | bytes | None]:
        """What comes, and None whenever nothing has come for so long."""
        chat, voice = self.chat, self.voice
        while self._writes or self._speaks:
            with anyio.move_on_after(silence_s) as limit:
                await self._arrival()
            parts = (None,) if limit.cancelled_caught else (await self._write(), await self._speak())
            for part in parts:
                if part or limit.cancelled_caught:
                    chat.handed_out()
                    yield part
                    chat.taken()
        if self._finished is not None and self.failure() is None:
            cut = self._speaking and voice.ending.reason == "length"
            yield msgspec.structs.replace(self._finished, reason="length") if cut else self._finished

    async def whole(self) -> list[Choice]:
        """The one choice; `audio` has what was spoken.

        :raises RequestError: one of the requests did not come to a good end.
        """
        choice, pieces = Choice(), list[bytes]()
        async for part in self.parts():
            if isinstance(part, bytes):
                pieces.append(part)
            elif part is not None:
                choice.take(part)
        if failure := self.failure():
            raise refusal(failure)
        self.audio = b"".join(pieces)
        return [choice]

    def failure(self) -> Failure | None:
        # The voice may have been closed while a part was being sent.
        return self._failure or self.chat.failure() or (self.voice.failure() if self._speaking else None)

    @property
    def _writes(self) -> bool:
        return not self.chat.over

    @property
    def _speaks(self) -> bool:
        return self._speaking and not self.voice.over

    async def _arrival(self) -> None:
        """Until either request has something. May be cancelled."""
        if (self._writes and self.chat.ready) or (self._speaks and self.voice.ready):
            await anyio.lowlevel.checkpoint()
            return
        async with anyio.create_task_group() as tasks:

            async def written() -> None:
                await self.chat.wait()
                tasks.cancel_scope.cancel()

            async def spoken() -> None:
                with suppress(RequestError):  # then it is over, and `failure` tells why
                    await self.voice.open()
                    await self.voice.wait()
                tasks.cancel_scope.cancel()

            if self._writes:
                tasks.start_soon(written)
            if self._speaks:
                tasks.start_soon(spoken)

    async def _write(self) -> ChatDelta | None:
        """Take what the chat has told, and have it spoken."""
        if not self._writes or not self.chat.ready:
            return None
        part = await self.chat.take()
        if isinstance(part, ChatFinished):
            self._finished = part
        elif part is not None:
            self._speaking = self._speaking or bool(part.text.strip())
            if part.text and not self.voice.over:
                await self.voice.text(part.text, final=False)
            return part
        if self.chat.over:
            if not self._speaking or self.chat.failure() is not None:
                self._speaking = False
                self.voice.close()
            elif not self.voice.over:
                await self.voice.text("", final=True)
        return None

    async def _speak(self) -> bytes:
        """Take what the voice has said."""
        if not self._speaking or not self.voice.ready:  # also where it has just ended
            return b""
        piece = await self.voice.piece()
        if self.voice.over and (failure := self.voice.failure()) is not None:
            if failure.code == "empty_input":  # nothing but marks that nobody says
                self._speaking = False
            elif self._failure is None and self.chat.failure() is None:
                self._failure = failure
                self.chat.close()
        return piece


class Joined:
    """Base64 of bytes that come in pieces: whole samples in each, and together the base64 of the whole."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> str:
        data = self._held + data
        cut = len(data) - len(data) % 6
        self._held = data[cut:]
        return base64.b64encode(data[:cut]).decode()

    def finish(self) -> str:
        return base64.b64encode(self._held).decode()


class Transcripts:
    """What was said in the latest spoken replies, which a conversation may name by the id of their audio."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def keep(self, name: str, text: str) -> int:
        """Until when it is kept, in seconds since 1970."""
        expires = int(time.time()) + KEPT_S
        self._kept[name] = text, expires
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return expires

    def recall(self, messages: list[Any]) -> list[Any]:
        """The messages with the text of replies that they name only. Raises RequestError."""
        return [self._recall(message, f"messages[{n}]") for n, message in enumerate(messages)]

    def _recall(self, message: Any, where: str) -> Any:
        match message:
            case {"role": "assistant", "audio": {"id": str(name)}} if not message.get("content"):
                text, expires = self._kept.get(name, ("", 0))
                if expires < time.time():
                    raise RequestError(
                        f"{where}.audio: there is no audio {name!r}; send its transcript as `content`.", where
                    )
                return {**message, "content": text}
            case _:
                return message
