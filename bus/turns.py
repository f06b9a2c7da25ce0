"""A party's end of the scheduler, on a device thread: it holds the device, or waits for it.

Everything here runs on the loop of the device thread and touches no device itself.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Self

import anyio

from .layout import Schedule
from .messages import FAMILIES
from .schedule import FRAME_S, Ask, Grant, Lost, Playout, Recall, Release, Said, Told, cost_after

FIRST_COST_S = 0.04
"""What a frame is taken to cost before any was measured."""

Trace = Callable[[str, float, float], object]
"""Is told what a party did, from when, until when: `use` the device for a slice; `hold` it, from its grant until it
is given back; of that `handover`, since another was known to want it; `wait`, since it should have had it."""


class Party:
    """Chat on a device thread: `async with` it around each slice. Without `tell` the device is always its own."""

    urgency = math.inf
    """When it has to have the device for what is done inside `async with`: whenever."""

    def __init__(
        self,
        settings: Schedule,
        tell: Callable[[Said], object] | None = None,
        *,
        look: Callable[[], None] = lambda: None,
        rounds: int = 1,
        drain: Callable[[], None] | None = None,
        trace: Trace = lambda _what, _begun, _ended: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        :param tell: takes what is said to the arbiter.
        :param look: takes what the arbiter has told by now, without a turn of the loop.
        :param rounds: turns of the loop to be left to others between two slices.
        :param drain: waits for what is queued on the device, before that is given to another process; None where
            all queue on one stream.
        """
        self.alone = self.held = tell is None
        self.rounds = rounds
        self._settings = settings
        self._tell: Callable[[Said], object] = tell or (lambda _said: None)
        self._look = look
        self._drain = drain
        self._trace = trace
        self._clock = clock
        self._wanted_since: float | None = None
        self._number = 0
        self._asked: float | None = None
        self._waiting_since: float | None = None
        """From when on it should have had what it asked for."""
        self._users = 0
        """Inside `async with`, or about to be."""
        self._began: float | None = None
        self._held_since = 0.0
        self._granted = anyio.Event()

    def join(self) -> None:
        """The stages are ready: take part."""
        self._tell(Release(0))

    def take(self, told: Told) -> None:
        """What the arbiter tells."""
        match told:
            case Grant(number=number, wanted=wanted):
                now = self._clock()
                if (since := self._waiting_since) is not None and since < now:
                    self._trace("wait", since, now)
                self.held, self._held_since, self._number = True, now, number
                self._asked = self._waiting_since = None
                self._wanted_since = now if wanted else None
                self._granted.set()
            case Recall():
                if self.held:  # not given back meanwhile
                    self._wanted_since = self._clock()
            case Lost():
                if self.held:  # likewise: what was asked for since then will be granted
                    self._part()
        self._settle()

    async def __aenter__(self) -> Self:
        """Wait for the device."""
        self._users += 1
        try:
            while not self.held:
                self._ask(self.urgency)
                await self._granted.wait()
        except BaseException:
            self._users -= 1
            raise
        if self._began is None:
            self._began = self._clock()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users and self._began is not None:
            self._trace("use", self._began, self._clock())
            self._began = None
        self._settle()

    def recalled(self) -> bool:
        """Whether another process waits for the device, and for what is queued on it, as far as is known by now."""
        self._look()
        return self._drain is not None and self._wanted_since is not None

    @property
    def waiting_s(self) -> float:
        """For how long it should have had the device; 0 where it does not wait. May be read by any thread."""
        since = self._waiting_since
        return 0.0 if since is None else max(self._clock() - since, 0.0)

    def rest(self) -> None:
        """There is nothing to do for now."""
        if self.held and not self.alone and not self._users:
            self._give_up()

    def _settle(self) -> None:
        """Give the device back where another wants it and no slice is under way."""
        if self._wanted_since is not None and not self._users:
            self._give_up()

    def _ask(self, due: float) -> None:
        if self._asked is None or due < self._asked:
            self._asked = due
            now = self._clock()
            since = now if math.isinf(due) else max(due, now)
            self._waiting_since = since if self._waiting_since is None else min(since, self._waiting_since)
            self._tell(Ask(None if due == math.inf else max(due - now, 0.0)))

    def _give_up(self) -> None:
        if self._drain is not None:
            self._drain()
        if self._wanted_since is not None:
            self._trace("handover", self._wanted_since, self._clock())
        self._part()
        self._tell(Release(self._number))

    def _part(self) -> None:
        self._trace("hold", self._held_since, self._clock())
        self.held, self._wanted_since = False, None
        self._granted = anyio.Event()


class SpeechParty(Party):
    """Speech on a device thread. Its stages need the device at once; the talker may wait before each frame.

    A request is moving from its prompt, or from the beginning of a frame, until the talker asks for the next one:
    the device is not given back in between.
    """

    urgency = -math.inf

    def __init__(
        self,
        settings: Schedule,
        tell: Callable[[Said], object] | None = None,
        *,
        stages: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """:param stages: of the device thread."""
        super().__init__(settings, tell, **options)
        here = [stage for stage in FAMILIES["speech"] if stage in stages]
        self.last = here[-1] if tell is not None and "talker" in here else ""
        """The stage that a request leaves the device thread from; none where nothing waits for its frames."""
        self.cost_s = FIRST_COST_S
        """What a frame takes, by those that followed each other: it rises at once and falls slowly."""
        self._moving: dict[str, float | None] = {}
        """When the frame was begun, if right behind the one before: frames are queued, and what a frame waits for
        is the one before, so that only those in a row tell how long the device has work."""
        self._waiting: dict[str, float] = {}
        """When the next frame has to be begun."""
        self._late: set[str] = set()
        """Those that have nothing in hand: no other goes on with a burst meanwhile."""
        self._fresh = False
        """Whether nothing has been begun since the grant: it is good for one frame at least."""
        self._turned = anyio.Event()

    def take(self, told: Told) -> None:
        if isinstance(told, Grant):
            self._fresh = True
        elif isinstance(told, Lost) and self.held:
            self._moving.clear()
            self._late.clear()
        super().take(told)

    def move(self, request: str, *, heard: bool = False) -> None:
        """A prompt is on its way to the talker.

        :param heard: whether its listener has audio already.
        """
        if self.last and request not in self._waiting:
            self._moving[request] = None
            if not heard:
                self._late.add(request)

    def ready(self, request: str, playout: Playout, frame: int) -> bool:
        """A frame could be begun. True: go on, False: `turn` will tell when."""
        now = self._clock()
        playout.reach(frame, now)
        if self.alone:
            return True
        if (began := self._moving.pop(request, None)) is not None:
            took = min(now - began, FRAME_S)  # with more no listener is ever served in time
            self.cost_s = cost_after(self.cost_s, took)
        self._late.discard(request)
        due = playout.due(frame, now, self.cost_s, self._settings, in_row=not self._late)
        if due < now:
            self._late.add(request)
        due = min(due, self._waiting.pop(request, math.inf))
        if self.held and self._may(due):
            self._begin(request, now)
            self._settle()
            return True
        self._waiting[request] = due
        self._settle()
        return False

    def still(self, request: str) -> None:
        """The request is over, or waits for something else than the device."""
        self._moving.pop(request, None)
        self._waiting.pop(request, None)
        self._late.discard(request)
        self._settle()

    def turn(self) -> str | None:
        """The waiting request whose frame is to be begun now, if there is one."""
        if not self.held or not self._waiting:
            return None
        request = min(self._waiting, key=lambda name: self._waiting[name])
        if not self._may(self._waiting[request]):
            return None
        del self._waiting[request]
        self._begin(request, None)
        return request

    async def next_turn(self) -> str:
        """Wait for `turn`."""
        while (request := self.turn()) is None:
            self._turned = anyio.Event()
            await self._turned.wait()
        return request

    def _may(self, due: float) -> bool:
        now = self._clock()
        if self._settings.policy == "pace" and due > now:
            return False
        if self._fresh or self._wanted_since is None:
            return True
        patient = now - self._wanted_since < self._settings.patience_s
        return self._settings.policy == "deadline" and due <= now and patient

    def _begin(self, request: str, now: float | None) -> None:
        self._moving[request], self._fresh = now, False
        if self._wanted_since is not None:
            self._tell(Ask(0.0))  # a sign of life

    def _settle(self) -> None:
        if self.held:
            if self._waiting and self._may(min(self._waiting.values())):
                self._turned.set()
            elif not self._moving and self._settings.policy == "pace":
                self.rest()
            elif not self._moving:
                super()._settle()
        if not self.held and self._waiting:
            self._ask(min(self._waiting.values()))
