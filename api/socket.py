"""WebSocket `/v1/audio/speech/stream`: text comes in pieces and goes into one running request, audio comes back.

    client   session.config {…}   input.text {text}   input.done   playback {samples}   cancel   session.close
    server   audio.start {…}   binary, or audio.chunk {audio}   audio.done {…}   session.done   cancelled   error

An utterance is what lies between the first `input.text` and `input.done`. The next one may begin while the last is
still being sent; their audio comes one after the other. A client may say how many samples of an utterance it has
played, with `playback` or in `cancel`; `cancelled` then says what text was heard, and where chat shares the device
the next audio is due by what the client still has to play.

A config that is refused is told once: the utterance behind it is left out. Each further one is answered by one
error, until a config is taken.
"""

import base64
import time
from typing import Any

import anyio
import msgspec
from quart import Blueprint, websocket

from ..bus.errors import RequestError
from ..bus.messages import Failure
from .cloning import Likeness, likeness
from .edge import Edge
from .errors import openai_shape
from .exchange import Exchange, current
from .job import SpeechJob
from .schema import Cancel, Playback, SessionConfig, check_length, convert, nothing_to_say
from .speech import done

IDLE_S = 60.0
"""Without a message from the client and with nothing to send, the session ends."""
MAX_UTTERANCES = 4
"""Open at once in one session."""


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("socket", __name__)

    @routes.websocket("/v1/audio/speech/stream")
    async def stream() -> None:
        await websocket.accept()
        session = Session(edge, current())
        current().own(session)
        await session.run()
        await websocket.close(session.close_code, session.close_reason)

    _ = stream
    return routes


class Utterance:
    def __init__(self, index: int, config: SessionConfig) -> None:
        self.index = index
        self.config = config
        self.begun = time.perf_counter()
        self.letters = 0
        self.held = ""
        """Text before there was anything to say."""
        self.job: SpeechJob | None = None


class Session:
    """One connection. Everything that it runs is in its scope."""

    def __init__(self, edge: Edge, exchange: Exchange) -> None:
        self._edge = edge
        self._exchange = exchange
        self._config = SessionConfig()
        self._refused = False
        """Whether the last config was, or what may have been one: no text is spoken in another way than was asked
        for."""
        self._left_out = False
        """Whether text goes nowhere up to the next `input.done`: the client has been told why."""
        self._likeness: Likeness | None = None
        self._utterances: list[Utterance] = []
        self._filling: Utterance | None = None
        """The utterance that takes text now."""
        self._count = 0
        self._turn = anyio.Lock()
        self._scope = anyio.CancelScope()
        self.close_code = 1000
        self.close_reason = ""

    def close(self) -> None:
        self.close_code, self.close_reason = 1001, self._exchange.failure.message
        self._scope.cancel()

    async def run(self) -> None:
        with self._scope:
            async with anyio.create_task_group() as tasks:
                while message := await self._receive():
                    try:
                        await self._take(message, tasks)
                    except RequestError as error:
                        await self._fail(error.failure)
                if self._filling is not None:
                    self._cancel(self._filling)

    async def _receive(self) -> dict[str, Any] | None:
        """The client's next message; None when the session is over."""
        while True:
            with anyio.move_on_after(IDLE_S) as idle:
                message = await websocket.receive()
                try:
                    return self._parse(message)
                except RequestError as error:
                    self._refused = True  # nobody knows that it was no config
                    await self._fail(error.failure)
                    continue
            if idle.cancelled_caught and (not self._utterances or self._filling is not None):
                text = f"The session was idle for {IDLE_S:g} s."
                await self._fail(Failure(status=408, code="idle_timeout", message=text))
                self.close_code, self.close_reason = 1001, "idle"
                return None

    def _parse(self, message: str | bytes) -> dict[str, Any]:
        if isinstance(message, bytes):
            raise RequestError("The message is binary: send JSON as a text message.", code="binary_message")
        most = self._edge.settings.max_body_bytes  # as of a request over HTTP: it may hold a reference
        if len(message) > most:
            raise RequestError(
                f"The message is too long: {len(message):,} letters, and at most {most:,} are taken.",
                status=413,
                code="message_too_long",
            )
        try:
            parsed = msgspec.json.decode(message, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"The message is no JSON object: {error}", code="invalid_json") from None
        if parsed.get("type") == "session.close":
            return {}
        return parsed

    async def _take(self, message: dict[str, Any], tasks: anyio.abc.TaskGroup) -> None:
        match message:
            case {"type": "session.config"}:
                self._refused = self._left_out = True
                config = convert(message, SessionConfig)
                voice = await likeness(config, self._edge)
                self._edge.speak(
                    self._exchange.id, "", config, streamed=True, more_text=True, likeness=voice
                )  # or refused now
                self._config, self._likeness = config, voice
                self._refused = self._left_out = False
            case {"type": "input.text", "text": str(text)}:
                await self._text(text, tasks)
            case {"type": "input.done"}:
                await self._done()
            case {"type": "playback"}:
                played = convert(message, Playback)
                for job in self._jobs(played.utterance_index):
                    await job.heard(played.samples)
            case {"type": "cancel"}:
                try:
                    told = convert(message, Cancel)
                    for job in self._jobs(told.utterance_index):
                        job.played = job.played if told.samples is None else told.samples
                finally:
                    await self._cancel_all()
            case _:
                known = "session.config, input.text, input.done, playback, cancel, session.close"
                raise RequestError(f"Unknown message {message.get('type')!r}; known: {known}.", "type")

    async def _text(self, text: str, tasks: anyio.abc.TaskGroup) -> None:
        utterance = self._filling
        if utterance is None:
            if self._left_out:
                return
            if self._refused:
                self._left_out = True
                raise RequestError(
                    "The last session.config was refused, or a message could not be read: "
                    "send a session.config before any text.",
                    "type",
                )
            if len(self._utterances) >= MAX_UTTERANCES:
                raise RequestError(
                    f"At most {MAX_UTTERANCES} utterances may be open.", code="too_many_utterances"
                )
            utterance = self._filling = Utterance(self._count, self._config)
            self._count += 1
            self._utterances.append(utterance)
        utterance.letters += len(text)
        try:
            check_length(utterance.letters, self._edge.settings.max_text_letters)
        except RequestError:
            self._cancel(utterance)
            raise
        if utterance.job is not None:
            await utterance.job.text(text, final=False)
            return
        utterance.held += text
        if not utterance.held.strip():
            return
        try:
            utterance.job = self._open(utterance)
        except RequestError:
            self._cancel(utterance)
            raise
        tasks.start_soon(self._speak, utterance, utterance.job)

    def _open(self, utterance: Utterance) -> SpeechJob:
        speak = self._edge.speak(
            f"{self._exchange.id}-{utterance.index}",
            utterance.held,
            utterance.config,
            streamed=utterance.config.stream_audio,
            more_text=True,
            likeness=self._likeness,
        )
        return SpeechJob(self._edge, self._exchange, speak, "socket", received=utterance.begun)

    async def _done(self) -> None:
        utterance, self._filling = self._filling, None
        if utterance is None and self._left_out:
            self._left_out = False
            return
        if utterance is None or utterance.job is None:
            if utterance is not None:
                self._utterances.remove(utterance)
            raise nothing_to_say("text")
        await utterance.job.text("", final=True)

    def _jobs(self, index: int | None) -> list[SpeechJob]:
        """That of an utterance, by default of the one that is being sent."""
        meant = self._utterances[:1] if index is None else self._utterances
        return [each.job for each in meant if index in (None, each.index) and each.job is not None]

    async def _cancel_all(self) -> None:
        """Barge-in: everything stops, and the client is told of each utterance."""
        self._left_out = False
        for utterance in list(self._utterances) or [None]:
            told: dict[str, Any] = {"utterance_index": None, "frames": 0}
            if utterance is not None:
                self._cancel(utterance)
                told["utterance_index"] = utterance.index
                if utterance.job is not None:
                    told |= {"frames": utterance.job.figures().frames, **utterance.job.position()}
            await self._send({"type": "cancelled", **told})

    def _cancel(self, utterance: Utterance) -> None:
        if utterance is self._filling:
            self._filling = None
        if utterance in self._utterances:
            self._utterances.remove(utterance)
        if utterance.job is not None:
            utterance.job.close()

    async def _speak(self, utterance: Utterance, job: SpeechJob) -> None:
        """Send one utterance's audio, after those before it."""
        try:
            async with self._turn:
                await self._send_audio(utterance, job)
        except RequestError as error:
            if utterance in self._utterances:
                await self._fail(error.failure)
        finally:
            job.close()
            self._cancel(utterance)

    async def _send_audio(self, utterance: Utterance, job: SpeechJob) -> None:
        place = {"utterance_index": utterance.index, "sentence_index": 0}
        await job.start()
        await self._send(
            {
                "type": "audio.start",
                **place,
                "sentence_text": "",
                "format": job.speak.format,
                "sample_rate": job.rate,
                "channels": 1,
            }
        )
        total = 0
        if utterance.config.stream_audio:
            async for piece in job:
                total += len(piece)
                await self._send_piece(utterance, piece)
        else:
            data = await job.whole()
            total = len(data)
            await self._send_piece(utterance, data)
        if utterance not in self._utterances:
            return  # cancelled, and told so
        failure = job.failure()
        told = {} if failure else done(job)
        await self._send(
            {"type": "audio.done", **place, "total_bytes": total, "error": bool(failure), **told}
        )
        if failure:
            await self._fail(failure)
        await self._send({"type": "session.done", "utterance_index": utterance.index, "total_sentences": 1})

    async def _send_piece(self, utterance: Utterance, piece: bytes) -> None:
        if utterance not in self._utterances:
            return
        if utterance.config.chunk_format == "binary":
            await websocket.send(piece)
        else:
            audio = base64.b64encode(piece).decode()
            await self._send({"type": "audio.chunk", "utterance_index": utterance.index, "audio": audio})

    async def _fail(self, failure: Failure) -> None:
        shown = openai_shape(failure, self._exchange.name)
        await self._send({"type": "error", "message": failure.message, **shown})

    async def _send(self, message: dict[str, Any]) -> None:
        await websocket.send(msgspec.json.encode(message).decode())
