"""What a device or a stage process says about itself, and what it is told."""

import time
from collections.abc import Callable

import msgspec

from .messages import Failure


class Loading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A step of start-up, for people: what, and the share that is done (0 to 1)."""

    what: str
    done: float = 0.0


class ModelInfo(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A loaded model as the API needs to know it."""

    name: str
    family: str
    kind: str
    """`custom_voice`, `base` or `voice_design`; for chat the model type."""
    size: str
    source: str
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    sample_rate: int = 24_000
    max_frames: int = 0
    instructions: bool = False
    context: int = 0
    """Tokens of prompt and answer together, for chat."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Loaded, warm, serving."""

    backend: str
    models: tuple[ModelInfo, ...]
    hints: tuple[str, ...] = ()
    """One sentence each: how this machine could be faster."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process could not start."""

    why: str


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A sign of life of a process's loop, and how far its device has come."""

    device_steps: int
    last_progress_s: float
    busy_s: float
    rss_bytes: int
    active: dict[str, int]
    deaths: int = 0
    """Of other processes, as far as every loop of this one has linked to their successors."""
    tapped: int = 0
    """Messages that were handed to taps."""
    waiting_s: float = 0.0
    """How long it has been waiting for a device that it shares."""


class Relink(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Another process has died and comes back as incarnation `epoch`."""

    process: str
    epoch: int
    failure: Failure


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Finish the step under way and exit."""


Notice = Loading | Ready
FromProcess = Loading | Ready | Failed | Beat
ToProcess = Relink | Stop


class Progress:
    """Counts the work of a device. Written by its thread, read by any: every field is one word."""

    def __init__(self) -> None:
        self.steps = 0
        self.busy_since: float | None = None
        self.active: Callable[[], dict[str, int]] = dict
        """Open requests in each stage on the device."""
        self.waiting_s: Callable[[], float] = float
        """How long the device has been waited for, where it is shared; 0 when it is not."""
        self._last = time.monotonic()

    def __enter__(self) -> None:
        self.busy_since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.steps += 1
        self._last = time.monotonic()
        self.busy_since = None

    @property
    def age_s(self) -> float:
        """Seconds since the last step ended."""
        return time.monotonic() - self._last

    @property
    def busy_s(self) -> float:
        """Seconds that the step under way has taken, 0.0 when idle."""
        since = self.busy_since
        return 0.0 if since is None else time.monotonic() - since
