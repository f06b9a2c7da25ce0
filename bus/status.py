"""How the processes of a running layout are, as /health shows it."""

import msgspec

from .control import Beat
from .layout import Layout


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process as /health shows it."""

    name: str
    pid: int
    state: str
    """`loading`, `ready`, `restarting`, `failed` (given up) or `stopped`."""
    restarts: int
    stages: tuple[str, ...]
    rss_bytes: int
    device_steps: int
    last_progress_s: float
    busy_s: float
    """How long the device step under way has taken; 0 when idle."""
    active: dict[str, int]
    """Open requests in each stage."""
    tapped: int
    """Messages that were handed to taps."""


class Outage(msgspec.Struct, frozen=True):
    """Why a family cannot be served now, and when to ask again."""

    reason: str
    retry_after_s: int


def status_of(layout: Layout, name: str, pid: int, state: str, restarts: int, beat: Beat) -> ProcessStatus:
    process = layout.find(name)
    return ProcessStatus(
        name=name,
        pid=pid,
        state=state,
        restarts=restarts,
        stages=process.loop + process.device,
        rss_bytes=beat.rss_bytes,
        device_steps=beat.device_steps,
        last_progress_s=beat.last_progress_s,
        busy_s=beat.busy_s,
        active=beat.active,
        tapped=beat.tapped,
    )
