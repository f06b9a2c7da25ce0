"""When each stage handed on each frame of a request, heard at the server's own tap: lossy, as taps are."""

import time
from typing import Any

from ..bus.listener import Tap
from ..bus.messages import FAMILIES
from ..bus.tap import Timing
from .exchange import Exchange


class Timeline:
    """Its exchange closes it."""

    def __init__(self, address: str, exchange: Exchange) -> None:
        """:param address: of the tap."""
        self._tap = Tap(address, stage=FAMILIES["speech"], kind="timing", request=exchange.id)
        self._tap.__enter__()
        self._zero = time.time() - (time.perf_counter() - exchange.started)
        self._closed = False
        exchange.own(self)

    def arrived(self) -> list[dict[str, Any]]:
        """What has become known since the last look, by the time; seconds from the arrival of the request."""
        events = [] if self._closed else sorted(self._tap.arrived(), key=lambda event: event.at)
        return [
            {
                "stage": event.stage,
                "sent": event.message.sent,
                "frame": event.message.frame,
                "frames": event.message.frames,
                "at_s": round(event.at - self._zero, 4),
            }
            for event in events
            if isinstance(event.message, Timing)
        ]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tap.__exit__(None, None, None)
