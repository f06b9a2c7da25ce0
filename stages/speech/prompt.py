"""Stage `prompt`: the request's text, voice and instructions become the rows that the talker starts from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from ...bus.channel import Outbox
from ...bus.errors import RequestError
from ...bus.messages import Close, Credit, Ending, Message, Prompt, Speak, Text
from ..actor import Actor
from .qwen3.model import Qwen3TTS
from .qwen3.prompt import build


class PromptStage(Actor[Speak]):
    """The first stage: it also turns the API's `Close` into the `Ending` that frees every stage behind it."""

    def __init__(self, models: Mapping[str, Qwen3TTS], progress: AbstractContextManager[None]) -> None:
        super().__init__(progress)
        self._models = models

    def open(self, speak: Speak) -> Speak:
        if speak.model not in self._models:
            raise RequestError(
                f"no speech model {speak.model!r}", param="model", status=404, code="model_not_found"
            )
        return speak

    async def handle(self, state: Speak, message: Message, outbox: Outbox) -> None:
        match message:
            case Credit() | Text():
                await outbox.send(message)
            case Close():
                await self.finish(Ending(request=message.request, reason="cancelled"), outbox)
            case _:
                raise TypeError(f"prompt takes no {type(message).__name__}")

    async def opened(self, state: Speak, outbox: Outbox) -> None:
        prompt = build(
            self._models[state.model],
            state.text,
            voice=state.voice,
            language=state.language,
            instructions=state.instructions,
            full_text=state.full_text,
        )
        await outbox.send(
            Prompt(
                request=state.request,
                prefill=prompt.prefill,
                trailing=prompt.trailing,
                pad=prompt.pad,
                text_tokens=prompt.text_tokens,
            )
        )
