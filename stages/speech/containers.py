"""Audio containers, each written piece by piece: 16-bit mono PCM in, the container's bytes out.

A response is one container from one encoder. Streamed or whole, a format's packets are the same; only headers that
hold a length differ (WAV, FLAC).
"""

import io
import struct
from fractions import Fraction
from typing import NamedTuple, Protocol, cast

import av
import numpy as np
from av.audio.stream import AudioStream

from ...bus.errors import RequestError
from ...bus.formats import FORMATS


class Container(Protocol):
    """One response's encoder. The joined results of `feed` and `finish` are one file."""

    def feed(self, samples: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Pcm:
    """Bare 16-bit little-endian samples."""

    def feed(self, samples: bytes) -> bytes:
        return samples

    def finish(self) -> bytes:
        return b""


class StreamedWav:
    """A header with all-ones sizes (length unknown), then the samples."""

    def __init__(self, rate: int) -> None:
        self._head = wav_header(None, rate=rate)

    def feed(self, samples: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + samples

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        return head


class WholeWav:
    """Exact sizes: everything is held back until the end."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._samples = bytearray()

    def feed(self, samples: bytes) -> bytes:
        self._samples += samples
        return b""

    def finish(self) -> bytes:
        return wav_header(len(self._samples), rate=self._rate) + bytes(self._samples)


def wav_header(data_bytes: int | None, *, rate: int) -> bytes:
    """The 44 bytes before the samples of a mono 16-bit WAV; None for a length not known yet."""
    riff, data = (0xFFFFFFFF, 0xFFFFFFFF) if data_bytes is None else (data_bytes + 36, data_bytes)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", data
    )


class _Codec(NamedTuple):
    muxer: str
    encoder: str
    bit_rate: int
    muxer_options: dict[str, str]
    encoder_options: dict[str, str]


_CODECS = {
    # No Xing frame and no ID3: joined bodies stay one MP3, and nothing has to be written back at the end. Without
    # the bit reservoir a packet leaves as soon as its samples are in.
    "mp3": _Codec("mp3", "libmp3lame", 64_000, {"write_xing": "0", "id3v2_version": "0"}, {"reservoir": "0"}),
    "opus": _Codec("ogg", "libopus", 48_000, {"page_duration": "20000"}, {"application": "voip"}),
    "aac": _Codec("adts", "aac", 64_000, {}, {}),
    "flac": _Codec("flac", "flac", 0, {"metadata_header_padding": "0"}, {"frame_size": "1920"}),
}


class _Sink:
    """What FFmpeg writes, until it is taken. Without `seek`, so that it never goes back."""

    def __init__(self) -> None:
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._held)
        self._held.clear()
        return data


class _WholeSink(io.BytesIO):
    """Everything is held back until the end, so that the header can be completed."""

    def take(self) -> bytes:
        return b""


class Encoded:
    """A format that FFmpeg writes: one encoder and one muxer for the whole response."""

    def __init__(self, name: str, rate: int, *, streamed: bool) -> None:
        codec = _CODECS[name]
        self._rate = rate
        self._position = 0
        self._sink = _Sink() if streamed else _WholeSink()
        # bitexact: no version strings and no random stream number, so that equal requests give equal bytes.
        options = {**codec.muxer_options, "flush_packets": "1", "fflags": "+bitexact"}
        self._file = av.open(self._sink, "w", format=codec.muxer, options=options)
        bits = {"b": str(min(codec.bit_rate, 4 * rate))} if codec.bit_rate else {}
        encoder_options = {**codec.encoder_options, **bits, "flags": "+bitexact"}
        self._stream = cast(AudioStream, self._file.add_stream(codec.encoder, rate, options=encoder_options))
        self._stream.layout = "mono"

    def feed(self, samples: bytes) -> bytes:
        if samples:
            frame = av.AudioFrame.from_ndarray(np.frombuffer(samples, "<i2")[None], "s16", "mono")
            frame.sample_rate, frame.time_base = self._rate, Fraction(1, self._rate)
            frame.pts = self._position
            self._position += frame.samples
            self._file.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        if self._position:
            self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.getvalue() if isinstance(self._sink, _WholeSink) else self._sink.take()


def container(name: str, *, rate: int, streamed: bool) -> Container:
    """A new container by its `response_format` name.

    :raises RequestError: no such format, or one that cannot have this rate.
    """
    kind = FORMATS.get(name)
    if kind is None:
        raise RequestError(f"There is no format {name!r}; use {', '.join(FORMATS)}.", "response_format")
    if rate not in kind.rates:
        rates = ", ".join(map(str, kind.rates))
        raise RequestError(f"{name} cannot have {rate} samples a second; use {rates}.", "sample_rate")
    match name:
        case "pcm":
            return Pcm()
        case "wav":
            return StreamedWav(rate) if streamed else WholeWav(rate)
        case _:
            return Encoded(name, rate, streamed=streamed)
