"""Containers and tempo on samples alone: any cut of the input gives the same bytes, and they decode."""

import io
import wave
from collections.abc import Iterator

import av
import numpy as np
import pytest

from vivavoce.bus.errors import RequestError
from vivavoce.bus.formats import FORMATS
from vivavoce.stages.speech.containers import container
from vivavoce.stages.speech.encoder import leading_silence
from vivavoce.stages.speech.tempo import Tempo, factors

RATE = 24_000


def tone(seconds: float, hz: float = 220.0) -> bytes:
    """A tone that swells, 16-bit mono."""
    t = np.arange(int(seconds * RATE)) / RATE
    return (0.5 * np.sin(2 * np.pi * hz * t) * (0.6 + 0.4 * np.sin(5 * t)) * 32767).astype("<i2").tobytes()


def cut(samples: bytes, frames: int) -> Iterator[bytes]:
    step = frames * 3840
    yield from (samples[i : i + step] for i in range(0, len(samples), step))


def written(name: str, pieces: Iterator[bytes], *, streamed: bool, rate: int = RATE) -> list[bytes]:
    made = container(name, rate=rate, streamed=streamed)
    return [*(made.feed(piece) for piece in pieces), made.finish()]


def decoded(data: bytes) -> np.ndarray:
    """Samples as float, mono, at the file's own rate (Opus: 48 kHz)."""
    with av.open(io.BytesIO(data), "r") as file:
        to_float = av.AudioResampler("flt", "mono")
        return np.concatenate(
            [part.to_ndarray().ravel() for frame in file.decode(audio=0) for part in to_float.resample(frame)]
        )


@pytest.mark.parametrize("name", FORMATS)
def test_the_cut_of_the_input_changes_no_byte(name: str):
    samples = tone(2.1)
    one = b"".join(written(name, cut(samples, 1), streamed=True))
    assert b"".join(written(name, cut(samples, 4), streamed=True)) == one
    assert b"".join(written(name, cut(samples, 1000), streamed=True)) == one


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac"])
def test_streamed_and_whole_decode_to_the_same_samples(name: str):
    samples = tone(2.1)
    streamed = decoded(b"".join(written(name, cut(samples, 1), streamed=True)))
    whole = decoded(b"".join(written(name, cut(samples, 1), streamed=False)))
    assert np.array_equal(streamed, whole)
    rate = 48_000 if name == "opus" else RATE
    padding = {"mp3": 0.1, "aac": 0.1}.get(name, 0.0)
    assert 2.1 <= len(whole) / rate <= 2.1 + padding


@pytest.mark.parametrize("name", ["mp3", "opus", "flac", "wav", "pcm"])
def test_the_first_frame_leaves_at_once(name: str):
    made = container(name, rate=RATE, streamed=True)
    assert made.feed(tone(0.08))


def test_aac_leaves_with_the_second_frame():
    """Its packets are 1,024 samples and it looks one ahead."""
    made = container("aac", rate=RATE, streamed=True)
    made.feed(tone(0.08))
    assert made.feed(tone(0.08))


@pytest.mark.parametrize("name", FORMATS)
def test_magic_bytes(name: str):
    data = b"".join(written(name, cut(tone(0.4), 1), streamed=True))
    magic = {"mp3": b"\xff", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF", "pcm": b""}
    assert data.startswith(magic[name])
    assert not data.startswith(b"ID3")


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_other_rates(name: str, rate: int):
    tempo = Tempo(1.0, rate)
    pieces = [*(tempo.feed(piece) for piece in cut(tone(1.0), 1)), tempo.finish()]
    data = b"".join(written(name, iter(pieces), streamed=True, rate=rate))
    with av.open(io.BytesIO(data)) as file:
        assert file.streams.audio[0].rate == (48_000 if name == "opus" else rate)
    assert abs(sum(map(len, pieces)) / 2 / rate - 1.0) < 0.01


def test_a_rate_that_a_format_cannot_have_is_refused():
    with pytest.raises(RequestError) as refusal:
        container("opus", rate=44_100, streamed=True)
    assert refusal.value.failure.param == "sample_rate"


def test_whole_wav_has_exact_sizes():
    samples = tone(0.5)
    data = b"".join(written("wav", cut(samples, 1), streamed=False))
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert int.from_bytes(data[40:44], "little") == len(data) - 44 == len(samples)


def test_streamed_wav_is_read_by_the_wave_module():
    samples = tone(0.5)
    data = b"".join(written("wav", cut(samples, 1), streamed=True))
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(data)) as file:
        assert file.readframes(len(samples)) == samples


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.5, 2.0, 3.0, 4.0])
def test_speed_changes_length_and_keeps_pitch(speed: float):
    samples = tone(4.0, hz=300.0)
    tempo = Tempo(speed, RATE)
    out = b"".join([*(tempo.feed(piece) for piece in cut(samples, 1)), tempo.finish()])
    assert abs(len(out) / len(samples) * speed - 1) < 0.05
    spectrum = np.abs(np.fft.rfft(np.frombuffer(out, "<i2").astype(float)))
    peak = int(spectrum.argmax()) * RATE / (len(out) // 2)
    assert abs(peak - 300.0) < 6.0


@pytest.mark.parametrize(("speed", "rate"), [(1.3, RATE), (0.4, 16_000), (1.0, 44_100)])
def test_tempo_does_not_depend_on_the_cut(speed: float, rate: int):
    def through(frames: int) -> bytes:
        tempo = Tempo(speed, rate)
        return b"".join([*(tempo.feed(piece) for piece in cut(tone(2.0), frames)), tempo.finish()])

    assert through(1) == through(3) == through(1000)


@pytest.mark.parametrize("speed", [0.25, 0.3, 0.5, 1.0, 1.9, 2.5, 4.0])
def test_factors_multiply_to_the_speed(speed: float):
    assert np.prod(factors(speed)) == pytest.approx(speed)
    assert all(0.5 <= factor <= 2 for factor in factors(speed))


def test_leading_silence():
    assert leading_silence(bytes(20)) == 10
    assert leading_silence(np.array([0, 5, -4000, 0], "<i2").tobytes()) == 2
