"""Reference recordings of every common kind (case O10), rubbish, and addresses that must not be fetched."""

import base64
import io
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.api import fetch, references
from vivavoce.bus.errors import RequestError

Wave = npt.NDArray[np.float64]
PITCH = 150.0


def voice(rate: int, seconds: float = 2.0) -> Wave:
    time = np.arange(round(rate * seconds)) / rate
    return 0.1 * np.sum([np.sin(2 * np.pi * PITCH * k * time + k) / k for k in range(1, 9)], axis=0)


def wav(
    samples: Wave, rate: int, kind: str = "s16", *, extensible: bool = False, lists: bool = False
) -> bytes:
    """samples [N] or [N, channels] as WAV of s16, s24 or f32."""
    channels = samples.shape[1] if samples.ndim == 2 else 1
    flat = samples.reshape(-1)
    match kind:
        case "s24":
            whole = np.round(flat * (2**23 - 1)).astype("<i4")
            data, bits, tag = whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes(), 24, 1
        case "f32":
            data, bits, tag = flat.astype("<f4").tobytes(), 32, 3
        case _:
            data, bits, tag = np.round(flat * 32767).astype("<i2").tobytes(), 16, 1
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * width, width, bits)
    if extensible:
        guid = struct.pack("<H", tag) + bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHI", 22, bits, 3 if channels == 2 else 4) + guid
    words = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf60.16.100\0"
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += (
        (words if lists else b"") + b"data" + struct.pack("<I", len(data)) + data + (words if lists else b"")
    )
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def encoded(container: str, codec: str, rate: int = 48000) -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout="mono")
        wanted = stream.codec_context.format.name
        convert = av.AudioResampler(format=wanted, layout="mono", rate=rate)
        samples = voice(rate).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        for part in convert.resample(frame):
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return target.getvalue()


def pitch(pcm: bytes) -> float:
    samples = np.frombuffer(pcm, "<i2").astype(float)
    middle = samples[len(samples) // 4 :][:16384]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), 1 << 18))
    return float(np.argmax(spectrum) * 24000 / (1 << 18))


GOOD: dict[str, Callable[[], bytes]] = {
    "control": lambda: wav(voice(24000), 24000),
    "stereo with one silent channel": lambda: wav(np.stack([voice(48000), voice(48000) * 0], 1), 48000),
    "24 bit": lambda: wav(voice(44100), 44100, "s24"),
    "float": lambda: wav(voice(16000), 16000, "f32"),
    "extensible": lambda: wav(voice(48000), 48000, extensible=True),
    "extensible 24-bit stereo": lambda: wav(np.stack([voice(48000)] * 2, 1), 48000, "s24", extensible=True),
    "lists around the data": lambda: wav(voice(24000), 24000, lists=True),
    "mp3": lambda: encoded("mp3", "libmp3lame"),
    "m4a": lambda: encoded("mp4", "aac"),
    "flac": lambda: encoded("flac", "flac"),
    "ogg opus": lambda: encoded("ogg", "libopus"),
    "webm opus": lambda: encoded("webm", "libopus"),
    "8 kHz": lambda: wav(voice(8000), 8000),
    "no full stop": lambda: wav(voice(24000), 24000)[:-1001],
}


@pytest.mark.parametrize("kind", GOOD)
def test_common_recordings_are_read(kind: str) -> None:
    pcm = references.decode(GOOD[kind]())
    assert abs(len(pcm) / 48000 - 2) < 0.1
    assert abs(pitch(pcm) - PITCH) < 1.5


def test_no_click_from_chunks_and_no_aliases() -> None:
    """A LIST chunk is not sound; what 24 kHz cannot hold is not folded down."""
    plain, listed = wav(voice(24000), 24000), wav(voice(24000), 24000, lists=True)
    assert references.decode(plain) == references.decode(listed)
    time = np.arange(96000) / 48000
    hiss = 0.5 * np.sin(2 * np.pi * 17000 * time)
    mixed = references.decode(wav(voice(48000) + hiss, 48000))
    clean = references.decode(wav(voice(48000), 48000))
    gap = np.frombuffer(mixed, "<i2").astype(float) - np.frombuffer(clean, "<i2")
    assert np.sqrt(np.mean(gap[2000:-2000] ** 2)) < 12  # of an amplitude of 16,384: 60 dB down


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (wav(voice(24000, 0.2), 24000), "0.20 s"),
        (wav(voice(24000, 31), 24000), "longer than 30 s"),
        (wav(voice(24000) * 0, 24000), "silent"),
        (wav(voice(24000) * 1e-4, 24000), "silent"),
        (wav(voice(24000) * 1e-4 + 0.2, 24000), "silent"),  # a microphone's offset
        (wav(np.full(48000, np.nan), 24000, "f32"), "no audio"),
        (bytes(range(256)) * 40, "no audio"),
        (b"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:1,\nfile:///etc/hostname\n", "no audio"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "no audio"),
        (wav(voice(24000), 24000)[:40], "no audio"),
    ],
)
def test_the_rest_is_refused_with_its_cause(data: bytes, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        references.decode(data)
    assert says in refused.value.failure.message
    assert (refused.value.failure.status, refused.value.failure.param) == (400, "ref_audio")


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from(
        ["RIFF", "ID3\x04", "fLaC", "OggS", "\0\0\0\x20ftypM4A ", "\x1a\x45\xdf\xa3", "", "FORM"]
    ),
    st.integers(0, 3000),
)
def test_whatever_the_bytes_are_the_answer_is_a_refusal_or_sound(tail: bytes, head: str, at: int) -> None:
    good = bytearray(wav(voice(8000, 0.6), 8000, extensible=True))
    good[at : at + len(tail)] = tail
    for data in (head.encode("latin-1") + tail, bytes(good)):
        with suppress(RequestError):  # anything else would be a 500
            assert len(references.decode(data)) >= 24000


@pytest.mark.parametrize("form", ["data:audio/wav;base64,{}", "data:audio/x-wav;codecs=1;base64,{}", "{}"])
async def test_a_data_uri_and_base64_are_taken(form: str) -> None:
    given = form.format(base64.b64encode(wav(voice(24000), 24000)).decode())
    assert len(await references.take(given, urls=False, most_bytes=10**6)) == 96000


@pytest.mark.parametrize(
    "given",
    [
        "/etc/hostname",
        "/no/such/file.wav",
        "file:///etc/hostname",
        "../voices/a.wav",
        "C:\\a.wav",
        "ftp://a/b",
        "\0",
    ],
)
async def test_paths_are_never_opened(given: str) -> None:
    """O09: the same words for what exists and what does not."""
    with pytest.raises(RequestError) as refused:
        await references.take(given, urls=True, most_bytes=10**6)
    assert "neither a data URI" in refused.value.failure.message


async def test_addresses_are_refused_where_they_are_not_switched_on() -> None:
    with pytest.raises(RequestError) as refused:
        await references.take("https://example.org/a.wav", urls=False, most_bytes=10**6)
    assert "fetches none" in refused.value.failure.message


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *(
            "::1",
            "fe80::1%eth0",
            "fc00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "224.0.0.1",
        ),
    ],
)
def test_no_address_inside_is_public(address: str) -> None:
    assert not fetch.is_public(address)


def test_a_public_address_is_public() -> None:
    assert fetch.is_public("93.184.215.14")
    assert fetch.is_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/a",
        "http://localhost:9/a",
        "http://[::1]:9/",
        "http://2130706433/",
        "http://a:b@c/",
    ],
)
def test_inside_addresses_are_not_fetched(url: str) -> None:
    with pytest.raises(RequestError) as refused:
        fetch.fetch(url, 1000)
    assert "public" in refused.value.failure.message or "plain" in refused.value.failure.message


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/again":
            self.send_response(302)
            self.send_header("Location", "/again")
        elif self.path.startswith("/to"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
        else:
            self.send_response(200)
        self.end_headers()
        if self.path == "/sound":
            self.wfile.write(b"sound")
        elif self.path == "/endless":
            for _ in range(100):
                self.wfile.write(bytes(1000))

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetching_follows_redirects_within_limits(site: str) -> None:
    def here(address: str) -> bool:
        return address == "127.0.0.1"

    assert fetch.fetch(f"{site}/sound", 1000, allowed=here) == b"sound"
    assert fetch.fetch(f"{site}/to?/sound", 1000, allowed=here) == b"sound"
    for path, says in [
        ("/again", "too often"),
        ("/endless", "larger than 5000"),
        ("/to?http://127.0.0.2/", "public"),
        ("/to?file:///etc/hostname", "plain"),
    ]:
        with pytest.raises(RequestError) as refused:
            fetch.fetch(site + path, 5000, allowed=here)
        assert says in refused.value.failure.message
