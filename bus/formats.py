"""The audio formats of a response: what the API promises and the encoder writes."""

import msgspec

_ANY = (8_000, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


class AudioFormat(msgspec.Struct, frozen=True):
    content_type: str
    rates: tuple[int, ...] = _ANY
    """Samples a second that it can have."""


# Opus knows no other rates.
FORMATS = {
    "mp3": AudioFormat("audio/mpeg"),
    "opus": AudioFormat("audio/ogg", (8_000, 12_000, 16_000, 24_000, 48_000)),
    "aac": AudioFormat("audio/aac"),
    "flac": AudioFormat("audio/flac"),
    "wav": AudioFormat("audio/wav"),
    "pcm": AudioFormat("audio/pcm"),
}
