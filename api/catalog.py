"""The names that clients use for models and voices, and what they mean here."""

from collections.abc import Callable, Sequence

from ..bus.control import ModelInfo
from ..bus.errors import RequestError
from ..bus.layout import Api

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""They mean the first speech model."""

TASKS = {"CustomVoice": "custom_voice", "Base": "base", "VoiceDesign": "voice_design"}

OPENAI_VOICES = {
    "alloy": "vivian",
    "ash": "ryan",
    "ballad": "aiden",
    "coral": "serena",
    "echo": "ryan",
    "fable": "uncle_fu",
    "onyx": "uncle_fu",
    "nova": "vivian",
    "sage": "sohee",
    "shimmer": "serena",
    "verse": "aiden",
    "marin": "ono_anna",
    "cedar": "eric",
}
"""OpenAI's voices and the released presets nearest to them; a model with other presets gives them in turn."""


class Catalog:
    def __init__(self, models: Callable[[], Sequence[ModelInfo]], settings: Api) -> None:
        self._models = models
        self._settings = settings

    def models(self) -> list[ModelInfo]:
        return list(self._models())

    def find(self, name: str | None, family: str | None = None) -> ModelInfo:
        """A model by its name or an alias; None is the first of the family.

        :raises RequestError: there is none (404). The name is never looked up anywhere else.
        """
        models = [model for model in self._models() if family in (None, model.family)]
        if name is None and models:
            return models[0]
        for model in models:
            if name in (model.name, model.source):
                return model
        if name is not None and name in self._settings.model_aliases:
            return self.find(self._settings.model_aliases[name], family)
        speech = next((model for model in models if model.family == "speech"), None)
        if name in OPENAI_MODELS and speech is not None:
            return speech
        served = ", ".join(model.name for model in models) or "none of this kind"
        raise RequestError(
            f"There is no model {name!r} here; served: {served}.", "model", status=404, code="model_not_found"
        )

    def choose(self, name: str | None, task: str | None, *, cloning: bool) -> ModelInfo:
        """The speech model of a request: the one it names, else the first that can do it, else the first.

        :raises RequestError: there is none of that name (404) or kind, or the model is of another kind (400).
        """
        speech = [model for model in self._models() if model.family == "speech"]
        kind = TASKS[task] if task is not None else "base" if cloning else None
        able = [model for model in speech if model.kind == kind]
        if name is None and able:
            return able[0]
        model = self.find(name, "speech")
        if task is not None and model.kind != kind:
            names = " or ".join(found.name for found in able)
            advice = f"leave out task_type, or use model {names}" if names else "load such a model"
            raise RequestError(f"Model {model.name} is not of the kind {task}: {advice}.", "task_type")
        return model

    def lost_aliases(self) -> list[str]:
        """A sentence about each alias of the layout that means nothing here."""
        lost: list[str] = []
        for alias, name in self._settings.model_aliases.items():
            try:
                self.find(name)
            except RequestError as error:
                lost.append(f"api.model_aliases: {alias!r} means nothing. {error}")
        presets = {voice.lower() for model in self._models() for voice in model.voices}
        for alias, voice in self._settings.voice_aliases.items():
            if voice.lower() not in presets:
                lost.append(
                    f"api.voice_aliases: {alias!r} means nothing: no model here has a voice {voice!r}."
                )
        return lost

    def has_preset(self, name: str) -> bool:
        """Whether some model has a preset of this name, or an alias of one."""
        wanted = name.strip().lower()
        return any(
            wanted in self.aliases(model) or wanted in map(str.lower, model.voices)
            for model in self._models()
            if model.family == "speech"
        )

    def aliases(self, model: ModelInfo) -> dict[str, str]:
        """More names for the model's voices, and the voice that each means."""
        voices = {voice.lower(): voice for voice in model.voices}
        if not voices:
            return {}
        in_turn = [model.voices[i % len(model.voices)] for i in range(len(OPENAI_VOICES))]
        named = {
            name: voices.get(preset, other)
            for (name, preset), other in zip(OPENAI_VOICES.items(), in_turn, strict=True)
        }
        for name, voice in self._settings.voice_aliases.items():
            if voice.lower() in voices:
                named[name.lower()] = voices[voice.lower()]
        return {name: voice for name, voice in named.items() if name not in voices}

    def voice(self, model: ModelInfo, name: str | None) -> str | None:
        """The model's own name of a voice; without a name its first. None where the model has no presets.

        :raises RequestError: the model has presets, but not this one.
        """
        if not model.voices:
            # OpenAI's client cannot leave a voice out, so its names stand for none here.
            return None if name is not None and name.strip().lower() in OPENAI_VOICES else name
        if name is None:
            return model.voices[0]
        wanted = name.strip().lower()
        for voice in model.voices:
            if voice.lower() == wanted:
                return voice
        aliases = self.aliases(model)
        if wanted in aliases:
            return aliases[wanted]
        known = ", ".join([*model.voices, *aliases])
        raise RequestError(
            f"There is no voice {name!r}; model {model.name} has {known}.", "voice", code="voice_not_found"
        )
