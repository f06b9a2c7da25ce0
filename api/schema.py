"""What clients send, as typed structs. Unknown fields are taken and ignored; wrong values of known ones are not.

A field that is null is as if it were absent.
"""

import unicodedata
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta
from quart import request

from ..bus.errors import RequestError

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
Rate = Literal[8000, 12000, 16000, 22050, 24000, 32000, 44100, 48000]
LETTERS = 4096
"""Most letters of what describes a voice, or is said in a recording of it."""
Words = Annotated[str, Meta(max_length=LETTERS)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seed = Number


class VoiceId(msgspec.Struct):
    id: str


class Speaking(msgspec.Struct, kw_only=True):
    """How something is to be spoken: the fields that every way of asking for speech has."""

    model: str | None = None
    voice: str | VoiceId | None = None
    instructions: Words | None = None
    """How to speak; for a VoiceDesign model the description of the voice."""
    task_type: Literal["CustomVoice", "Base", "VoiceDesign"] | None = None
    """What kind of model is meant; without `model` it chooses one."""
    ref_audio: Annotated[str, Meta(min_length=1)] | None = None
    """A voice to imitate: a recording of 0.5 to 30 s as data URI or base64."""
    ref_text: Words | None = None
    """What is said in it; without, the voice is imitated by its x-vector alone."""
    x_vector_only_mode: bool | None = None
    speaker_embedding: Annotated[list[float], Meta(min_length=1, max_length=8192)] | None = None
    """An x-vector, in place of a recording."""
    non_streaming_mode: bool | None = None
    """Whether the whole text is read before the first frame; by default as in the official code."""
    clean_text: bool | None = None
    """Whether Markdown, tags, addresses and emoji are taken out of the text."""
    language: Annotated[str, Meta(max_length=64)] | None = None
    response_format: Format | None = None
    sample_rate: Rate | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0
    seed: Seed | None = None
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=2, le=1_000_000)] | None = None
    """Most frames of 80 ms."""
    max_tokens: Annotated[int, Meta(ge=2, le=1_000_000)] | None = None
    """Another name for `max_new_tokens`."""


class VoiceBody(msgspec.Struct, kw_only=True):
    """Body of `POST /v1/audio/voices`."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    ref_audio: Annotated[str, Meta(min_length=1)] | None = None
    """A recording of 0.5 to 30 s as data URI or base64."""
    ref_text: Words | None = None
    """What is said in it."""
    consent: Words | None = None
    """Who allowed the use of the voice, in your words."""
    description: Words | None = None


class SpeechBody(Speaking, kw_only=True):
    """Body of `POST /v1/audio/speech`."""

    input: str
    stream: bool | None = None
    """Absent means stream; false means the whole body at once."""
    stream_format: Literal["audio", "sse"] = "audio"
    timeline: bool = False
    """With events: each tells when the stages handed on which frames, where this server has taps."""


class SessionConfig(Speaking, kw_only=True):
    """`session.config` on the WebSocket: how the next utterances are to be spoken."""

    stream_audio: bool = True
    """False sends an utterance's audio in one piece."""
    chunk_format: Literal["binary", "json"] = "binary"
    """Audio as binary messages, or as `audio.chunk` with base64."""


class Playback(msgspec.Struct, kw_only=True):
    """`playback` on the WebSocket: how many samples of an utterance the client has played."""

    samples: Number
    utterance_index: Number | None = None
    """By default the one that is being sent."""


class Cancel(msgspec.Struct, kw_only=True):
    """`cancel` on the WebSocket: everything stops; the rest is as in `playback`, for what the client has heard."""

    samples: Number | None = None
    utterance_index: Number | None = None


class BatchItem(Speaking, kw_only=True):
    """One text of a batch, with what is different for it."""

    input: str


class BatchBody(Speaking, kw_only=True):
    """Body of `POST /v1/audio/speech/batch`: what is given beside the items holds for all of them."""

    items: Annotated[list[Any], Meta(min_length=1)]


T = TypeVar("T")


async def read(kind: type[T]) -> T:
    """The JSON body of the current request.

    :raises RequestError: 415 for another content type, 400 for what is not JSON or not of this kind.
    """
    return convert(await read_json(), kind)


async def read_json() -> Any:
    """The JSON body of the current request, as it is.

    :raises RequestError: 415 for another content type, 400 for what is not JSON.
    """
    content = request.mimetype.lower()
    if not content and "Origin" not in request.headers:  # without a type a web page could ask unasked
        content = "application/json"
    if content != "application/json" and not content.endswith("+json"):
        text = f"The body is {content or 'of no type'}; send application/json."
        raise RequestError(text, status=415, code="unsupported_media_type")
    data = await request.get_data(cache=False)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not JSON: {error}", code="invalid_json") from None


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """A decoded JSON value as this kind; where not `strict`, numbers and truth values may be text.

    :raises RequestError: naming the field, and what it may be.
    """
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_json")
    given: dict[str, Any] = {name: _whole(part) for name, part in value.items() if part is not None}
    try:
        return msgspec.convert(given, kind, strict=strict)
    except (msgspec.ValidationError, OverflowError) as error:
        text, _, where = str(error).partition(" - at `$")
        path = where.strip(".`")
        field = path.split("[")[0] or None
        if field is None and "required field" in text:
            field = text.split("`")[1]
            raise RequestError(f"`{field}` is missing.", field, code="missing_required_parameter") from None
        name = f"`{path}`: " if path else ""
        raise RequestError(f"{name}{text}{_allowed(kind, path)}.", field) from None


def _whole(value: Any) -> Any:
    """To JSON 3.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _allowed(kind: type, path: str) -> str:
    """The values of a field that has a fixed set."""
    field, _, inner = path.partition(".")
    for info in msgspec.structs.fields(kind):
        if info.encode_name == field.split("[")[0]:
            for option in (info.type, *get_args(info.type)):
                if inner and isinstance(option, type) and issubclass(option, msgspec.Struct):
                    return _allowed(option, inner)
                values = get_args(option)
                if values and all(isinstance(value, str | int) for value in values):
                    return f"; allowed: {', '.join(map(str, values))}"
    return ""


def check_text(text: str, longest: int) -> str:
    """The text, if there is anything to say.

    :raises RequestError: nothing but white space and invisible characters, or too long.
    """
    check_length(len(text), longest)
    if not any(unicodedata.category(letter)[0] not in "ZC" for letter in text):
        raise nothing_to_say("input")
    return text


def nothing_to_say(field: str) -> RequestError:
    return RequestError(f"`{field}` is empty: there is nothing to say.", field, code="empty_input")


def check_length(letters: int, longest: int) -> None:
    """:raises RequestError: the text is too long."""
    if letters > longest:
        raise RequestError(
            f"`input` has {letters} letters; at most {longest} are taken.",
            "input",
            code="string_above_max_length",
        )
