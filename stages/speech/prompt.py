"""Stage `prompt`: the request's text, voice and instructions become the rows that the talker starts from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b

import anyio.lowlevel
import msgspec

from ...bus.channel import Inbox, Outbox
from ...bus.errors import RequestError
from ...bus.layout import Speech
from ...bus.messages import Close, Credit, Ending, Message, Prompt, Rows, Speak, Text
from ...bus.turns import SpeechParty
from ...configs.voice_files import VoiceFiles
from ..actor import Actor
from .family import check
from .kept import Kept
from .qwen3.clone import Clone, build_clone, reference_prefix
from .qwen3.model import Qwen3TTS
from .qwen3.prompt import Prompt as PromptRows
from .qwen3.prompt import TextFeed, build, prefix_rows
from .qwen3.reference import Listener
from .text import pause_after, split
from .text_cleaning import Cleaner, clean
from .waiting import Waiting

DESIGN_LETTERS = 6000


@dataclass
class _Request:
    speak: Speak
    model: Qwen3TTS
    clone: Clone | None = None
    feed: TextFeed | None = None
    """Of a text that is still arriving."""
    cleaner: Cleaner | None = None
    """Of such a text, where it is to be cleaned."""


class PromptStage(Actor[_Request]):
    """The first stage: it also turns the API's `Close` into the `Ending` that frees every stage behind it."""

    name = "prompt"

    def __init__(
        self,
        models: Mapping[str, Qwen3TTS],
        progress: AbstractContextManager[None],
        settings: Speech | None = None,
        party: SpeechParty | None = None,
        files: VoiceFiles | None = None,
    ) -> None:
        super().__init__(progress, party)
        self._models = models
        self._settings = settings or Speech()
        self.heard: Kept[Clone] = Kept(
            "voice",
            self._settings.voice_cache_bytes // 8,
            files,
            parts=lambda clone: [[clone.x_vector], [] if clone.codes is None else [clone.codes]],
            whole=lambda groups: Clone(groups[0][0], groups[1][0] if groups[1] else None),
        )
        self.heard.load(models)
        self._listeners = {
            name: Listener(model, self._settings.reference_silence_s, self.heard)
            for name, model in models.items()
            if model.kind == "base"
        }

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        self._waiting = Waiting(inbox)
        async for message in self._waiting:
            await self._serve(message, outbox)

    async def enter(self, speak: Speak) -> tuple[_Request, Speak]:
        model = check(self._models, speak)
        if speak.reference is None and speak.x_vector is None:
            return _Request(speak, model), speak
        listener, text = self._listeners[speak.model], (speak.reference_text or "").strip() or None
        if speak.reference is None:
            assert speak.x_vector is not None
            clone, key = listener.given(speak.x_vector), listener.key(speak.x_vector)
        else:
            key = listener.key(speak.reference)
            clone = await self._hear(speak, key, text)
        bare = msgspec.structs.replace(
            speak, reference=None, x_vector=None, primer=clone.codes, voice_key=key
        )
        return _Request(bare, model, clone), bare

    async def opened(self, state: _Request, outbox: Outbox) -> None:
        speak = state.speak
        self._bound(speak, state.model)
        wanted = self._settings.clean_text if speak.clean is None else speak.clean
        if speak.more_text:
            state.feed, state.cleaner = self._text_feed(state), Cleaner() if wanted else None
            await self._feed(state, state.feed, speak.text, False, outbox)
            return
        text = clean(speak.text) if wanted else speak.text
        # A described voice comes out a little different each time: its parts are as long as a model can speak.
        described = state.model.kind == "voice_design"
        parts = split(text, DESIGN_LETTERS if described else self._settings.part_letters)
        self._party.move(speak.request)
        for part in parts or [text]:
            rows, pause = self.rows(speak, state.model, state.clone, part), pause_after(part)
            await self._start(state, rows, True, outbox, parts=max(len(parts), 1), pause=pause)

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

    async def _hear(self, speak: Speak, key: str, text: str | None) -> Clone:
        """Encode a reference in steps, so that running requests go on meanwhile, and as long as it is wanted."""
        steps = self._listeners[speak.model].hear(speak, key, text)
        while not self._waiting.closed(speak.request):
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            await anyio.lowlevel.checkpoint()
        raise RequestError("The request was stopped.", status=503, code="stopped")

    def rows(self, speak: Speak, model: Qwen3TTS, clone: Clone | None, text: str) -> PromptRows:
        """The prompt of a text, or of a part of it."""
        if clone is not None:
            layout = "full" if speak.full_text else "streaming"
            if layout == "streaming" and clone.codes is not None and self._reference_first:
                layout = "reference_first"
            return build_clone(model, text, clone, language=speak.language, layout=layout)
        return build(
            model,
            text,
            voice=speak.voice,
            language=speak.language,
            instructions=speak.instructions,
            full_text=speak.full_text is not False,
        )

    def _bound(self, speak: Speak, model: Qwen3TTS) -> None:
        """:raises RequestError: the instructions are too long."""
        most, given = self._settings.instruction_tokens, speak.instructions or ""
        tokens = len(model.templates.instruction(given)) if given and model.takes_instructions else 0
        if tokens > most:
            raise RequestError(
                f"instructions have {tokens} tokens for model {speak.model}; {most} are the most.",
                "instructions",
                code="string_too_long",
            )

    @property
    def _reference_first(self) -> bool:
        return self._settings.clone_layout == "reference_first"

    def _text_feed(self, state: _Request) -> TextFeed:
        """Text that is not known yet cannot lie beside the reference: all of that comes first."""
        speak, model = state.speak, state.model
        if state.clone is not None:
            return TextFeed(model, *reference_prefix(model, state.clone, speak.language))
        role, _ = model.templates.spoken("")
        prefix = prefix_rows(
            model, role, voice=speak.voice, language=speak.language, instructions=speak.instructions
        )
        return TextFeed(model, prefix, model.rows.codec_bos)

    async def _feed(self, state: _Request, feed: TextFeed, text: str, final: bool, outbox: Outbox) -> None:
        if state.cleaner is not None:
            text = state.cleaner.feed(text, final=final)
        feed.add(text, final=final, words=state.cleaner is not None)
        if not feed.started:
            if feed.ready:
                self._party.move(state.speak.request)
                await self._start(state, feed.prompt(), final, outbox)
            return
        rows, tokens = feed.rows()
        if tokens or final:
            request = state.speak.request
            spent = self.spent(request)
            await outbox.send(Rows(request=request, rows=rows, text_tokens=tokens, final=final, spent=spent))

    async def _start(
        self,
        state: _Request,
        rows: PromptRows,
        final: bool,
        outbox: Outbox,
        *,
        parts: int = 1,
        pause: float = 0.0,
    ) -> None:
        await outbox.send(
            Prompt(
                request=state.speak.request,
                prefill=rows.prefill,
                trailing=rows.trailing,
                pad=rows.pad,
                text_tokens=rows.text_tokens,
                final=final,
                static=rows.static,
                static_key=_static_key(state.speak, rows.static, self._settings.clone_layout),
                parts=parts,
                pause=pause,
                spent=self.spent(state.speak.request),
            )
        )


def _static_key(speak: Speak, static: int, clone_layout: str) -> str:
    """A hash of all that the first `static` rows depend on beside the model."""
    voice = (speak.voice, speak.language, speak.instructions, speak.voice_key, speak.reference_text)
    layout = (speak.full_text, speak.more_text, static, clone_layout)
    return blake2b(msgspec.msgpack.encode((voice, layout)), digest_size=16).hexdigest()
