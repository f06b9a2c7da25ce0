"""Stage `chat`: requests become tokens, in slices between which the other stages of the loop have their turn."""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import msgspec

from ...bus.channel import Inbox, Outbox
from ...bus.control import Progress
from ...bus.errors import RequestError
from ...bus.layout import Schedule
from ...bus.messages import (
    Call,
    Chat,
    ChatAccepted,
    ChatCredit,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    Close,
    Drawn,
    Ending,
    Failure,
    Likely,
    Message,
    StageTime,
)
from ...bus.turns import Party
from . import events
from .conversation import Composed, Conversation, compose, plain
from .engine import Engine
from .model import ChatModel

log = logging.getLogger(__name__)


@dataclass
class _Request:
    engine: Engine
    credit: int
    cut: bool = False
    """Whether a choice ended at its limit."""
    begun: float = field(default_factory=time.time)


class ChatStage:
    """An actor that owns the engines. It waits for messages while idle, and takes what is there between slices."""

    def __init__(self, engines: Mapping[str, Engine], progress: Progress, party: Party | None = None) -> None:
        """:param party: by which the device is shared; None: it is not."""
        self._engines = engines
        self._progress = progress
        self._party = party or Party(Schedule())
        self._requests: dict[str, _Request] = {}
        for engine in engines.values():
            with suppress(RequestError):
                _ = engine.model.grammars  # now, while nobody waits for it

    def open_requests(self) -> tuple[str, ...]:
        return tuple(self._requests)

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        try:
            await self._serve(inbox, outbox)
        finally:
            for engine in self._engines.values():
                engine.close()

    async def _serve(self, inbox: Inbox, outbox: Outbox) -> None:
        async for message in inbox:
            await self._take(message, outbox)
            while busy := [engine for engine in self._engines.values() if engine.busy]:
                for engine in busy:
                    async with self._party:
                        with self._progress:
                            told = engine.step(self._party.recalled)
                            if self._party.recalled():
                                told += [event for each in busy for event in each.wind_up()]
                    for event in told:
                        await self._tell(event, outbox)
                    for _ in range(self._party.rounds):
                        if not self._party.held:
                            break  # whoever has it now should know at once that more is to be done
                        await anyio.lowlevel.checkpoint()
                await self._take_waiting(inbox, outbox)
            self._party.rest()

    async def _take_waiting(self, inbox: Inbox, outbox: Outbox) -> None:
        try:
            while True:
                await self._take(inbox.receive_nowait(), outbox)
        except (anyio.WouldBlock, anyio.EndOfStream):
            return

    async def _take(self, message: Message, outbox: Outbox) -> None:
        name = message.request
        match message:
            case Chat():
                try:
                    with self._progress:
                        accepted, counted = self._open(message)
                    await outbox.send(accepted)
                    if counted:
                        await outbox.send(Ending(request=name, reason="stop"))
                except RequestError as error:
                    await outbox.send(Ending(request=name, reason="error", failure=error.failure))
                except Exception as error:  # the request's boundary: one request fails, the stage goes on
                    log.exception("chat request %s failed", name)
                    await outbox.send(_failed(name, str(error)))
            case ChatCredit() if name in self._requests:
                request = self._requests[name]
                request.credit += message.tokens
                if request.credit > 0:
                    request.engine.resume(name)
            case Close() if name in self._requests:
                await self._end(Ending(request=name, reason="cancelled"), outbox)
            case Ending() if name in self._requests:
                await self._end(message, outbox)
            case _:
                pass

    def _open(self, chat: Chat) -> tuple[ChatAccepted, bool]:
        """Take a request; whether only its length was asked for. Raises RequestError."""
        engine = self._engines.get(chat.model)
        if engine is None:
            raise RequestError(f"no chat model {chat.model!r}", "model", status=404, code="model_not_found")
        composed = _compose(engine.model, chat)
        accepted = ChatAccepted(request=chat.request, prompt_tokens=len(composed.prompt))
        if chat.count_only:
            return accepted, True
        if chat.logprobs is not None:
            _ = engine.model.grammars  # which name the tokens
        engine.submit(_engine_request(chat, composed))
        self._requests[chat.request] = _Request(engine, chat.lookahead)
        return accepted, False

    async def _tell(self, event: events.Event, outbox: Outbox) -> None:
        request = self._requests.get(event.request)
        if request is None:
            return
        name = event.request
        match event:
            case events.Started():
                started = ChatStarted(
                    request=name, cached_tokens=event.cached_tokens, prompt_s=event.prompt_s
                )
                await outbox.send(started)
            case events.Delta():
                await outbox.send(_delta(event, request.engine.model))
                request.credit -= event.tokens
                if request.credit <= 0:
                    request.engine.pause(name)
            case ChatFinished():
                request.cut = request.cut or event.reason == "length"
                await outbox.send(event)
            case ChatDone():
                await outbox.send(event)
                spent = StageTime(request.begun, time.time(), event.prompt_s + event.generation_s)
                reason = "length" if request.cut else "stop"
                await self._end(Ending(request=name, reason=reason, stages={"chat": spent}), outbox)
            case events.Failed():
                await self._end(_failed(name, event.message), outbox)

    async def _end(self, ending: Ending, outbox: Outbox) -> None:
        self._requests.pop(ending.request).engine.cancel(ending.request)
        await outbox.send(ending)


def _compose(model: ChatModel, chat: Chat) -> Composed:
    if chat.prompt is not None:
        return plain(model, chat.prompt if isinstance(chat.prompt, str) else list(chat.prompt))
    try:
        return compose(model, msgspec.json.decode(chat.conversation, type=Conversation))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise RequestError(f"{where.strip('`')}: {what}.", where.strip("`") or None) from None


def _engine_request(chat: Chat, composed: Composed) -> events.Request:
    return events.Request(
        id=chat.request,
        prompt=composed.prompt,
        style=composed.style,
        grammar=composed.grammar,
        max_tokens=chat.max_tokens,
        thinking_tokens=chat.thinking_tokens,
        sampling=chat.sampling,
        stop=chat.stop,
        n=chat.n,
        logprobs=chat.logprobs,
    )


def _delta(event: events.Delta, model: ChatModel) -> ChatDelta:
    def likely(token: int, logprob: float) -> Likely:
        return Likely(model.grammars.token_bytes(token), logprob)

    return ChatDelta(
        request=event.request,
        choice=event.choice,
        text=event.text,
        reasoning=event.reasoning,
        calls=tuple(Call(call.id, call.name, call.arguments) for call in event.calls),
        tokens=event.tokens,
        drawn=tuple(
            Drawn(likely(one.token, one.logprob), tuple(likely(*other) for other in one.top))
            for one in event.logprobs
        ),
    )


def _failed(name: str, why: str) -> Ending:
    failure = Failure(status=500, code="internal_error", message=f"chat failed: {why}")
    return Ending(request=name, reason="error", failure=failure)
