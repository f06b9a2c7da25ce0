"""What the bench's processes tell each other, and what comes out."""

from typing import Literal

import msgspec

Name = Literal["vivavoce", "mlx-audio"]


class Plan(msgspec.Struct, frozen=True):
    """What one worker measures."""

    side: Name
    folder: str
    """The checkpoint, its EOS id outside the vocabulary."""
    layout: str
    text: str
    voice: str
    frames: int


class About(msgspec.Struct, frozen=True):
    """The first answer of a worker: loaded and ready."""

    backend: str
    device: str
    blas: str | None
    version: str
    load_s: float


class Run(msgspec.Struct, frozen=True):
    """One request, pipelined as it runs in use."""

    frames: int
    ttfa_s: float
    """From the call to the first audio, in-process."""
    total_s: float
    cpu_s: float
    """Processor time of the whole process during the run."""
    peak_bytes: int
    """Most memory that MLX held during the run, weights included."""

    @property
    def ms_per_frame(self) -> float:
        """Time from the first audio to the end, for each frame after the first."""
        return (self.total_s - self.ttfa_s) * 1000 / max(self.frames - 1, 1)

    @property
    def rtf(self) -> float:
        return self.total_s / (self.frames * 0.08)


class Waits(msgspec.Struct, frozen=True):
    """How often Python waits for the device, for each frame of one request."""

    reads: float
    """Values read: item(), int(), bool(), numpy.array()."""
    barriers: float
    """Calls of mx.eval and mx.synchronize."""
    traces: int | None = None
    """Compiled steps traced by all requests so far; None where nothing is compiled."""


class Piece(msgspec.Struct, frozen=True):
    """One stage, one frame a call, a barrier after each call: seconds for each frame, in their order."""

    build: list[float]
    """Until Python has queued the work: graph building."""
    total: list[float]
    """Until the device has done it."""


class Pieces(msgspec.Struct, frozen=True):
    talker: Piece
    code_predictor: Piece
    codec_decoder: Piece
    codec_decoder_8: list[float] | None = None
    """Seconds for each frame with eight frames a call."""


class Spread(msgspec.Struct, frozen=True):
    median: float
    p95: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side's figures."""

    version: str
    load_s: float
    runs: int
    frames: list[int]
    ms_per_frame: Spread
    ttfa_ms: Spread
    rtf: Spread
    cpu_ms_per_frame: Spread
    peak_memory_bytes: int
    stage_ms: dict[str, Spread]
    python_ms_per_frame: float
    host_reads_per_frame: float
    barriers_per_frame: float
    retraces: int | None


class Ratio(msgspec.Struct, frozen=True):
    """mlx-audio's median divided by ours: above 1 we are ahead."""

    ms_per_frame: float
    ttfa: float
    rtf: float
    cpu_ms_per_frame: float
    peak_memory: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    hardware: str
    model: str
    text: str
    frames: int
    runs: int
    measures: dict[str, str]
    vivavoce: Side
    mlx_audio: Side | None = None
    ratio: Ratio | None = None


MEASURES = {
    "method": "one process a side, in alternation, one warm-up run each discarded; p95 over runs or frames",
    "frames": "fixed: the EOS id is moved outside the vocabulary for both sides, watchdogs are off",
    "ms_per_frame": "(end - first audio) / (frames - 1), pipelined, in the chunks that each side makes: "
    "ours up to the layout's max_chunk_frames, mlx-audio's of one frame",
    "ttfa_ms": "call to first audio, in-process: ours through every stage to the client, "
    "mlx-audio's to the first chunk that its generator yields",
    "cpu_ms_per_frame": "processor time of all threads during a request / frames: hardly moved by other programs",
    "rtf": "wall seconds of the whole request / seconds of audio",
    "stage_ms": "a separate pass, a barrier after each stage; so their sum is not ms_per_frame",
    "python_ms_per_frame": "time until Python had queued a frame's three steps (graph building), sum of medians",
    "host_reads_per_frame": "item(), int(), bool(), tolist(), numpy.array() on MLX arrays in one request / frames",
    "barriers_per_frame": "mx.eval and mx.synchronize in one request / frames",
    "retraces": "compiled steps that requests had to trace anew, the warm-up one among them; none on a CPU, where "
    "nothing is compiled",
    "peak_memory_bytes": "MLX's peak during the measured runs, weights included",
    "dtypes": "each side's own choice for this checkpoint: ours computes in fp32 on a CPU, "
    "mlx-audio in the dtype that is stored",
    "blas": "OpenBLAS is loaded first for both sides where it is installed",
}
"""What each figure means: part of the JSON, because a figure without it says nothing."""
