"""Which model can do what: a request that its model cannot serve is refused with the names of those that could."""

from collections.abc import Callable, Mapping

from ...bus.errors import RequestError
from ...bus.messages import Speak
from .qwen3.model import Qwen3TTS

Models = Mapping[str, Qwen3TTS]


def check(models: Models, speak: Speak) -> Qwen3TTS:
    """The model of a request.

    :raises RequestError: there is none of that name, or it lacks what the request needs.
    """
    model = models.get(speak.model)
    if model is None:
        raise RequestError(f"no speech model {speak.model!r}", "model", status=404, code="model_not_found")
    cloning = speak.reference is not None or speak.x_vector is not None
    if cloning and model.kind != "base":
        if speak.stored:
            raise RequestError(
                f"Voice {speak.stored!r} is a stored voice, which model {speak.model} cannot imitate: "
                f"{_use(models, _clones)}.",
                "voice",
            )
        given = "ref_audio" if speak.reference is not None else "speaker_embedding"
        raise RequestError(
            f"Model {speak.model} cannot imitate a voice: leave out {given}, or {_use(models, _clones)}.",
            given,
        )
    if model.kind == "base":
        _check_base(models, speak, cloning)
    elif model.kind == "voice_design":
        _check_design(models, speak)
    elif speak.instructions and not model.takes_instructions:
        raise RequestError(
            f"Model {speak.model} takes no instructions: leave them out, or {_use(models, _instructed)}.",
            "instructions",
        )
    return model


def _check_base(models: Models, speak: Speak, cloning: bool) -> None:
    if speak.voice:
        raise RequestError(
            f"There is no voice {speak.voice!r}: model {speak.model} imitates references and has no presets. "
            f"Send ref_audio, or {_use(models, _presets)}.",
            "voice",
            code="voice_not_found",
        )
    if not cloning:
        raise RequestError(
            f"Model {speak.model} needs a reference: send ref_audio or speaker_embedding, name a stored voice, or "
            f"{_use(models, _presets)}.",
            "ref_audio",
            code="missing_required_parameter",
        )
    if speak.instructions:
        raise RequestError(
            f"Model {speak.model} imitates a voice and takes no instructions: leave them out, or "
            f"{_use(models, _instructed)}.",
            "instructions",
        )


def _check_design(models: Models, speak: Speak) -> None:
    if speak.voice:
        raise RequestError(
            f"There is no voice {speak.voice!r}: model {speak.model} makes voices from a description. Describe one "
            f"in `instructions`, or {_use(models, _presets)}.",
            "voice",
            code="voice_not_found",
        )
    if not (speak.instructions or "").strip():
        raise RequestError(
            f"Model {speak.model} makes a voice from a description: give it in `instructions`, or "
            f"{_use(models, _presets)}.",
            "instructions",
            code="missing_required_parameter",
        )


def _use(models: Models, can: Callable[[Qwen3TTS], bool]) -> str:
    names = [name for name, model in models.items() if can(model)]
    if not names:
        return "load another model: none of those here can do it"
    return f"use model {' or '.join(names)}"


def _clones(model: Qwen3TTS) -> bool:
    return model.kind == "base"


def _presets(model: Qwen3TTS) -> bool:
    return bool(model.voices)


def _instructed(model: Qwen3TTS) -> bool:
    return model.kind != "base" and model.takes_instructions
