"""Reference recordings: any common container and rate in, 16-bit mono PCM at 24 kHz out, or the reason why not.

What a client sends as `ref_audio` is a data URI, base64, or, where that is switched on, an http or https address.
A path is never opened: what is neither of these is refused with the same words whether or not such a file exists.
"""

import base64
import binascii
import io
import re
from collections.abc import Iterator

import anyio.to_thread
import av
import numpy as np
import numpy.typing as npt
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from av.error import FFmpegError
from av.filter import Graph

from ..bus.errors import RequestError
from . import fetch

RATE = 24_000
SHORTEST_S, LONGEST_S = 0.5, 30.0
SILENCE = 10 ** (-50 / 20)
"""RMS of full scale that the loudest half second must reach."""
CONTAINERS = "wav,w64,mp3,mov,mp4,m4a,3gp,3g2,mj2,flac,ogg,aac,matroska,webm,aiff,caf"
"""Only these: some of FFmpeg's formats (playlists, lists of files) open other files and addresses."""

Samples = npt.NDArray[np.float32]

_DATA_URI = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)


async def take(given: str, *, urls: bool, most_bytes: int, param: str = "ref_audio") -> bytes:
    """PCM of what a client sent as a reference.

    :param urls: whether addresses may be fetched.
    :raises RequestError: it is nothing of what is taken, cannot be fetched, or is no usable recording.
    """
    if re.match(r"https?://", given, re.IGNORECASE):
        if not urls:
            raise RequestError(
                f"`{param}` is an address, and this server fetches none: send the audio itself as a data URI.",
                param,
            )
        data = await anyio.to_thread.run_sync(fetch.fetch, given, most_bytes, abandon_on_cancel=True)
    else:
        data = _decoded(given, param)
    return await anyio.to_thread.run_sync(decode, data, param)


def _decoded(given: str, param: str) -> bytes:
    found = _DATA_URI.match(given)
    text = given[found.end() :] if found else given
    try:
        return base64.b64decode(re.sub(r"\s+", "", text), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(
            f"`{param}` is neither a data URI with base64 nor base64: send the recording itself.", param
        ) from None


def decode(data: bytes, param: str = "ref_audio") -> bytes:
    """16-bit little-endian mono PCM at 24 kHz of a recording in any common container.

    :raises RequestError: no audio, too short, too long, or nothing to hear.
    """
    if not data:
        raise RequestError(f"`{param}` is empty: send a recording of {_limits()}.", param)
    try:
        samples, rate = _read(data, param)
        mono = _resampled(samples, rate)
    except (FFmpegError, ValueError, OverflowError, MemoryError, AssertionError):
        raise RequestError(
            f"`{param}` is no audio that can be read: send WAV, MP3, M4A, FLAC, Ogg or WebM.", param
        ) from None
    return usable(mono, param)


def usable(mono: Samples, param: str = "ref_audio") -> bytes:
    """16-bit PCM of samples within ±1 at 24 kHz.

    :raises RequestError: too short, too long, or nothing to hear.
    """
    seconds = len(mono) / RATE
    if seconds > LONGEST_S + 0.1:
        raise RequestError(f"`{param}` lasts {seconds:.1f} s: send a recording of {_limits()}.", param)
    if seconds < SHORTEST_S:
        raise RequestError(f"`{param}` lasts {seconds:.2f} s: send a recording of {_limits()}.", param)
    if _loudest(mono) < SILENCE:
        raise RequestError(f"`{param}` is silent: send a recording in which the voice is heard.", param)
    return np.round(np.clip(mono, -1, 1) * 32767).astype("<i2").tobytes()


def _limits() -> str:
    return f"{SHORTEST_S:g} to {LONGEST_S:g} seconds"


def _read(data: bytes, param: str) -> tuple[Samples, int]:
    """Samples [N] at the recording's own rate, its channels averaged."""
    parts: list[Samples] = []
    with av.open(io.BytesIO(data), "r", options={"format_whitelist": CONTAINERS}) as container:
        if not container.streams.audio:
            raise ValueError("no audio stream")
        stream = container.streams.audio[0]
        rate, length = 0, 0
        for frame in _frames(container, stream):
            if rate and frame.sample_rate != rate:
                raise ValueError("the rate changes")
            rate = frame.sample_rate
            parts.append(frame.to_ndarray().mean(axis=0, dtype=np.float32))
            length += len(parts[-1])
            if length > (LONGEST_S + 0.1) * rate:
                raise RequestError(
                    f"`{param}` lasts longer than {LONGEST_S:g} s: send a recording of {_limits()}.", param
                )
    if not parts:
        raise ValueError("no samples")
    joined = np.concatenate(parts)
    if not np.isfinite(joined).all():
        raise ValueError("not numbers")
    return joined, rate


def _frames(container: InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """Frames as planar floats. What cannot be decoded at the very end of a file is left out."""
    planar, any_yet = AudioResampler(format="fltp"), False
    try:
        for frame in container.decode(stream):
            yield from planar.resample(frame)
            any_yet = True
    except FFmpegError:
        if not any_yet:
            raise
    yield from planar.resample(None)


def _resampled(samples: Samples, rate: int) -> Samples:
    """At 24 kHz, with a long windowed-sinc filter."""
    if rate == RATE:
        return samples
    graph = Graph()
    steps = [
        graph.add_abuffer(format="fltp", sample_rate=rate, layout="mono", time_base=None),
        graph.add("aresample", f"{RATE}:filter_size=64:phase_shift=10:cutoff=0.97"),
        graph.add("abuffersink"),
    ]
    graph.link_nodes(*steps).configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None]), "fltp", "mono")
    frame.sample_rate = rate
    graph.push(frame)
    graph.push(None)
    parts: list[Samples] = []
    while True:
        try:
            made = graph.pull()
        except (BlockingIOError, EOFError):  # FFmpeg's "that was all"
            return np.concatenate(parts) if parts else samples[:0]
        assert isinstance(made, av.AudioFrame)
        parts.append(made.to_ndarray()[0])


def _loudest(samples: Samples) -> float:
    """RMS of the loudest half second, about its mean: a constant is not heard."""
    width = RATE // 2
    sums, squares = (
        np.concatenate([[0.0], np.cumsum(np.power(samples, power, dtype=np.float64))]) for power in (1, 2)
    )
    mean, square = ((of[width:] - of[:-width]) / width for of in (sums, squares))
    return float(np.sqrt(max((square - mean**2).max(), 0)))
