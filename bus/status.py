"""How the processes of a running layout are, as /health shows it."""

import msgspec

from .control import Beat
from .layout import Layout

GIVEN_UP_S = 60
"""When to ask again after what only a person can mend."""


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
    waiting_s: float
    """How long it has been waiting for the device that it shares; 0 when it is not."""
    active: dict[str, int]
    """Open requests in each stage."""
    tapped: int
    """Messages that were handed to taps."""


class Outage(msgspec.Struct, frozen=True):
    """Why a family cannot be served now, and when to ask again."""

    reason: str
    retry_after_s: int


def starved(layout: Layout, process: str, waiting_s: float) -> Outage | None:
    """What it means that a process has been waiting for its device for so long."""
    if waiting_s <= layout.supervision.device_wait_s:
        return None
    return Outage(f"the process {process} has waited for the device for {waiting_s:.1f} s", GIVEN_UP_S)


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
        waiting_s=beat.waiting_s,
        active=beat.active,
        tapped=beat.tapped,
    )
