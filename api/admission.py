"""How many requests may be in the pipeline, how many may wait for a place, and who is next."""

import math
import time
from collections import deque

import anyio
import anyio.lowlevel

from .errors import BusyError


class Admission:
    def __init__(self, places: int, queue: int) -> None:
        self.places, self.queue = places, queue
        self.active = 0
        self.draining = False
        self._waiting: deque[Ticket] = deque()
        self._usual_s = 1.0
        """How long requests have held a place lately."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> "Ticket":
        """A ticket for a place.

        :raises BusyError: the queue is full (429), or the server takes no more work (503).
        """
        if self.draining:
            raise BusyError("The server is shutting down.", status=503, code="stopped", retry_after_s=5)
        ticket = Ticket(self)
        if self.active < self.places:
            self._admit(ticket)
        elif len(self._waiting) < self.queue:
            self._waiting.append(ticket)
        else:
            wait = math.ceil(self._usual_s * (len(self._waiting) + 1) / self.places)
            text = f"{self.active} requests are running and {len(self._waiting)} wait; try again later."
            raise BusyError(text, status=429, code="queue_full", retry_after_s=min(max(wait, 1), 60))
        return ticket

    def leave(self, ticket: "Ticket") -> None:
        if ticket.admitted_at is None:
            self._waiting.remove(ticket)
            return
        self._usual_s += 0.1 * (time.perf_counter() - ticket.admitted_at - self._usual_s)
        self.active -= 1
        if self._waiting:
            self._admit(self._waiting.popleft())

    def _admit(self, ticket: "Ticket") -> None:
        self.active += 1
        ticket.admitted_at = time.perf_counter()
        ticket.changed.set()


class Ticket:
    """A place, or the wait for one. Whoever has it closes it."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._closed = False
        self.changed = anyio.Event()
        self.admitted_at: float | None = None

    async def wait(self) -> None:
        """Until there is a place, or it was closed. May be cancelled and called again."""
        await self.changed.wait()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._admission.leave(self)
            self.changed.set()
