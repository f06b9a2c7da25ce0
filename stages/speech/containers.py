"""Audio containers, each written piece by piece: 16-bit mono PCM in, the container's bytes out."""

import struct
from typing import Protocol

SAMPLE_RATE = 24_000


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

    def __init__(self) -> None:
        self._head = wav_header(None)

    def feed(self, samples: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + samples

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        return head


class WholeWav:
    """Exact sizes: everything is held back until the end."""

    def __init__(self) -> None:
        self._samples = bytearray()

    def feed(self, samples: bytes) -> bytes:
        self._samples += samples
        return b""

    def finish(self) -> bytes:
        return wav_header(len(self._samples)) + bytes(self._samples)


def wav_header(data_bytes: int | None, *, rate: int = SAMPLE_RATE) -> bytes:
    """The 44 bytes before the samples of a mono 16-bit WAV; None for a length not known yet."""
    riff, data = (0xFFFFFFFF, 0xFFFFFFFF) if data_bytes is None else (data_bytes + 36, data_bytes)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", data
    )


def container(name: str, *, streamed: bool) -> Container:
    """A new container by its `response_format` name."""
    match name:
        case "pcm":
            return Pcm()
        case "wav":
            return StreamedWav() if streamed else WholeWav()
        case _:
            raise ValueError(f"no container {name!r}")
