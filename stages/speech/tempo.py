"""Faster or slower with the pitch kept, and other sample rates: FFmpeg filters on a stream of 16-bit mono PCM."""

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
from av.filter import Graph

MODEL_RATE = 24_000


class Tempo:
    """One response's filters. What comes out depends on the samples alone, not on how they were cut."""

    def __init__(self, speed: float, rate: int, *, source_rate: int = MODEL_RATE) -> None:
        self._rate = source_rate
        self._position = 0
        self._graph = Graph()
        steps = [
            self._graph.add_abuffer(
                format="s16", sample_rate=source_rate, layout="mono", time_base=Fraction(1, source_rate)
            ),
            *(self._graph.add("atempo", f"{factor:.6f}") for factor in factors(speed)),
            self._graph.add("aresample", str(rate)),
            self._graph.add("aformat", "sample_fmts=s16:channel_layouts=mono"),
            self._graph.add("abuffersink"),
        ]
        self._graph.link_nodes(*steps).configure()

    def feed(self, samples: bytes) -> bytes:
        frame = av.AudioFrame.from_ndarray(np.frombuffer(samples, "<i2")[None], "s16", "mono")
        frame.sample_rate, frame.time_base = self._rate, Fraction(1, self._rate)
        frame.pts = self._position
        self._position += frame.samples
        self._graph.push(frame)
        return self._pull()

    def finish(self) -> bytes:
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> bytes:
        return b"".join(frame.to_ndarray().tobytes() for frame in self._frames())

    def _frames(self) -> Iterator[av.AudioFrame]:
        while True:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):  # FFmpeg's "more input first" and "that was all"
                return
            assert isinstance(frame, av.AudioFrame)
            yield frame


def factors(speed: float) -> list[float]:
    """Factors within 0.5 … 2 whose product is `speed`: outside of that one atempo drops or cannot stretch sound."""
    steps: list[float] = []
    while speed > 2 or speed < 0.5:
        step = 2.0 if speed > 2 else 0.5
        steps.append(step)
        speed /= step
    return [*steps, speed] if speed != 1 else steps
