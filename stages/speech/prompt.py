"""Stage `prompt`: the request's text, voice and instructions become the rows that the talker starts from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ...bus.channel import Outbox
from ...bus.errors import RequestError
from ...bus.messages import Close, Credit, Ending, Message, Prompt, Rows, Speak, Text
from ..actor import Actor
from .qwen3.model import Qwen3TTS
from .qwen3.prompt import Prompt as PromptRows
from .qwen3.prompt import TextFeed, build


@dataclass
class _Request:
    speak: Speak
    feed: TextFeed | None = None
    """Of a text that is still arriving."""


class PromptStage(Actor[_Request]):
    """The first stage: it also turns the API's `Close` into the `Ending` that frees every stage behind it."""

    def __init__(self, models: Mapping[str, Qwen3TTS], progress: AbstractContextManager[None]) -> None:
        super().__init__(progress)
        self._models = models

    def open(self, speak: Speak) -> _Request:
        if speak.model not in self._models:
            raise RequestError(
                f"no speech model {speak.model!r}", "model", status=404, code="model_not_found"
            )
        return _Request(speak)

    async def opened(self, state: _Request, outbox: Outbox) -> None:
        speak, model = state.speak, self._models[state.speak.model]
        if speak.more_text:
            state.feed = TextFeed(
                model, voice=speak.voice, language=speak.language, instructions=speak.instructions
            )
            await self._feed(state, state.feed, speak.text, False, outbox)
            return
        rows = build(
            model,
            speak.text,
            voice=speak.voice,
            language=speak.language,
            instructions=speak.instructions,
            full_text=speak.full_text,
        )
        await self._start(speak, rows, True, outbox)

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        match message:
            case Credit():
                await outbox.send(message)
            case Text():
                if state.feed is None:
                    raise RequestError("this request's text was given whole, no more can be added", "input")
                await self._feed(state, state.feed, message.text, message.final, outbox)
            case Close():
                await self.finish(Ending(request=message.request, reason="cancelled"), outbox)
            case _:
                raise TypeError(f"prompt takes no {type(message).__name__}")

    async def _feed(self, state: _Request, feed: TextFeed, text: str, final: bool, outbox: Outbox) -> None:
        feed.add(text, final=final)
        if not feed.started:
            if feed.ready:
                await self._start(state.speak, feed.prompt(), final, outbox)
            return
        rows, tokens = feed.rows()
        if tokens or final:
            request = state.speak.request
            await outbox.send(Rows(request=request, rows=rows, text_tokens=tokens, final=final))

    async def _start(self, speak: Speak, rows: PromptRows, final: bool, outbox: Outbox) -> None:
        await outbox.send(
            Prompt(
                request=speak.request,
                prefill=rows.prefill,
                trailing=rows.trailing,
                pad=rows.pad,
                text_tokens=rows.text_tokens,
                final=final,
            )
        )
