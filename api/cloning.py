"""The voice that a request wants imitated: from what it sends, or a stored one that it names."""

import math
from array import array
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from ..bus.errors import RequestError
from ..configs.voice_store import StoredVoice
from . import references
from .schema import Speaking, VoiceId

if TYPE_CHECKING:
    from .edge import Edge


class Likeness(NamedTuple):
    """Either `pcm` or `x_vector` is there."""

    pcm: bytes | None = None
    """16-bit mono at 24 kHz."""
    text: str | None = None
    """What is said in it."""
    x_vector: bytes | None = None
    """float32 little-endian."""
    stored: str | None = None
    """Name of the stored voice that this is."""


async def likeness(how: Speaking, edge: "Edge") -> Likeness | None:
    """The voice to imitate, None for a request that wants a preset or a described voice.

    :raises RequestError: fields that exclude each other, or a reference that cannot be used.
    """
    name = how.voice.id if isinstance(how.voice, VoiceId) else how.voice
    stored = None
    if name is not None and not edge.catalog.has_preset(name):
        stored = await anyio.to_thread.run_sync(edge.voices.find, name)
    _check(how, stored)
    if stored is not None:
        text = None if how.x_vector_only_mode else stored.text
        if text is None and how.x_vector_only_mode is False:
            raise _lacks_text(f"stored voice {stored.name!r} has no transcript")
        return Likeness(stored.pcm, text, stored=stored.name)
    if how.speaker_embedding is not None:
        return Likeness(x_vector=_packed(how.speaker_embedding))
    if how.ref_audio is None:
        return None
    if how.x_vector_only_mode is False and not (how.ref_text or "").strip():
        raise _lacks_text("`ref_text` is missing")
    settings = edge.settings
    pcm = await references.take(
        how.ref_audio, urls=settings.reference_urls, most_bytes=settings.max_body_bytes
    )
    return Likeness(pcm, None if how.x_vector_only_mode else (how.ref_text or "").strip() or None)


def _check(how: Speaking, stored: StoredVoice | None) -> None:
    if how.ref_audio is not None and how.speaker_embedding is not None:
        text = "`ref_audio` and `speaker_embedding` are two voices: send one of them."
        raise RequestError(text, "speaker_embedding")
    if stored is not None and (how.ref_audio is not None or how.speaker_embedding is not None):
        given = "ref_audio" if how.ref_audio is not None else "speaker_embedding"
        raise RequestError(
            f"Voice {stored.name!r} is a stored voice and `{given}` another: send one of them.", given
        )
    if how.ref_audio is None and how.ref_text is not None:
        raise RequestError("`ref_text` says what is in `ref_audio`, which is missing.", "ref_audio")
    if how.x_vector_only_mode and stored is None and how.ref_audio is None and how.speaker_embedding is None:
        text = "`x_vector_only_mode` needs a voice to imitate: send `ref_audio`, or name a stored voice."
        raise RequestError(text, "x_vector_only_mode")


def _lacks_text(why: str) -> RequestError:
    return RequestError(
        f"x_vector_only_mode is false, but {why}: send it, or leave the mode out.", "ref_text"
    )


def _packed(values: list[float]) -> bytes:
    if not all(math.isfinite(value) and abs(value) < 1e30 for value in values):
        raise RequestError("`speaker_embedding` holds a number that is none.", "speaker_embedding")
    packed = array("f", values)
    return packed.tobytes()
