"""Who has the device next, where chat and speech share one. Pure logic with an injected clock.

Work is cut into slices: a frame of speech; a token or a part of a prompt of chat. Each family on a device thread
is a party (`turns.py`) and asks an arbiter for the device: speech with the time at which it has to begin, chat for
whenever nobody needs it. The arbiter grants, and recalls when another is to have it; the holder gives it back at
the end of its slice, and keeps it over any number of slices while nobody else asks or its own deadline is near. The
arbiter lives in the device thread where all share one (calls, nothing sent), else in the parent (`lease.py`).

Policies: `race` lets parties of one thread take turns, and those of several run as they like; `pace` makes speech
no faster than it is played, with a lead, and has all take turns; `deadline` gives chat what speech does not need.

Deadlines follow from what a listener has in hand (`Playout`), as its client reports it, or else by the clock. A
chunk of frames has to be there `slack_s` before the audio handed out until then has been played. A share of the
time to spare until then is chat's; the rest is the listener's reserve, for when another begins to be spoken to.
Each change of hands leaves the device idle for a while, so frames are made in bursts of about `burst_s`, and chat's
time is spread evenly before those that are still to come. First audio is due at once.

A process that dies loses the device with it (its supervisor tells); a holder that is wanted and gives no sign for
`timeout_s` loses it too. At rest the device is speech's: a first frame on an idle machine asks nobody.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from .layout import Schedule

FRAME_S = 0.08


def cost_after(before_s: float, took_s: float) -> float:
    """What something is taken to cost, once it took so long: it rises at once and falls slowly."""
    return max(took_s, 0.9 * before_s + 0.1 * took_s)


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A party wants the device. From the holder it is a sign of life: it is at work and goes on."""

    within_s: float | None = None
    """None: whenever nobody needs it."""


class Release(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The grant of this number is given back; number 0 only says that the party is there."""

    number: int


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The device is the party's until it releases it."""

    number: int
    wanted: bool
    """Whether another is waiting already."""


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Another wants the device: give it back at the end of the slice, unless a deadline is near."""


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The party has given no sign for too long, and has the device no more."""


Said = Ask | Release
Told = Grant | Recall | Lost


class _Asking(NamedTuple):
    due: float
    """When it has to have the device; infinite for whenever. For `pace`: not before."""
    since: float


class Arbiter:
    """Grants the device to one party at a time."""

    def __init__(
        self,
        settings: Schedule,
        tell: Callable[[str, Told], None],
        *,
        rest: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param rest: who has the device while nobody asks."""
        self._settings = settings
        self._tell = tell
        self._rest = rest
        self._clock = clock
        self._present: set[str] = set()
        """Parties that have spoken since they came, or since they lost the device."""
        self._asking: dict[str, _Asking] = {}
        self.holder: str | None = None
        self._number = 0
        self._sign: float | None = None
        """Where the holder is wanted: when it was told, or has said that it goes on."""

    def hear(self, name: str, said: Said) -> None:
        """What a party says."""
        self._present.add(name)
        now = self._clock()
        match said:
            case Release(number=number):
                if name == self.holder and number == self._number:
                    self.holder = None
            case Ask() if name == self.holder:
                self._sign = None if self._sign is None else now
            case Ask(within_s=within):
                due = math.inf if within is None else now + within
                before = self._asking.get(name)
                self._asking[name] = _Asking(due, before.since if before else now)
        self.check()

    def leave(self, name: str) -> None:
        """A party is gone, and what it held or asked for."""
        self._forget(name)
        self.check()

    def check(self) -> float | None:
        """Do what is due; returns when to be called again, None while only a word can change anything."""
        now, sign = self._clock(), self._sign
        if self.holder is not None and sign is not None and now >= sign + self._settings.timeout_s:
            lost = self.holder
            self._forget(lost)
            self._tell(lost, Lost())
        if self.holder is None:
            self._grant(now)
        elif self._sign is None and self._wanted(now):
            self._sign = now
            self._tell(self.holder, Recall())
        return self._next(now)

    def _forget(self, name: str) -> None:
        self._present.discard(name)
        self._asking.pop(name, None)
        if self.holder == name:
            self.holder = None

    def _grant(self, now: float) -> None:
        ranks = {name: self._rank(asking, now) for name, asking in self._asking.items()}
        ranked = {name: rank for name, rank in ranks.items() if rank is not None}
        name = min(ranked, key=lambda name: ranked[name], default=self._rest)
        resting = self._settings.policy != "pace" and name in self._present
        if name is None or not (name in ranked or resting):
            return
        self._asking.pop(name, None)
        self.holder = name
        self._number += 1
        wanted = self._wanted(now)
        self._sign = now if wanted else None
        self._tell(name, Grant(self._number, wanted))

    def _rank(self, asking: _Asking, now: float) -> tuple[int, float] | None:
        """The lowest has the device next; None: not yet."""
        whenever = asking.due == math.inf
        if self._settings.policy != "deadline":
            return (0, asking.since) if whenever or asking.due <= now else None
        if whenever:
            return (0 if now - asking.since >= self._settings.patience_s else 2, asking.since)
        return (1 if asking.due <= now else 3, asking.due)

    def _wanted(self, now: float) -> bool:
        return any(asking.due <= now or asking.due == math.inf for asking in self._asking.values())

    def _next(self, now: float) -> float | None:
        times = [asking.due for asking in self._asking.values() if now < asking.due < math.inf]
        if self.holder is not None and self._sign is not None:
            times.append(self._sign + self._settings.timeout_s)
        return min(times, default=None)


class Playout:
    """When the listener of one request needs which frame: an estimate, from what its client has taken and says.

    The player starts with the first audio that the client took, and goes on without a pause. Whenever the client
    says how much it has played, it is taken to go on from there. Frames leave in chunks, each when the frame behind
    it has been made.
    """

    def __init__(self, sizes: Iterator[int], speed: float = 1.0) -> None:
        """
        :param sizes: frames of each chunk. The first is one frame, which leaves at once.
        :param speed: tempo of the audio: more frames are played in the same time.
        """
        self._frame_s = FRAME_S / speed
        self._sizes = sizes
        self._first = next(sizes)
        self._last = self._first + next(sizes) - 1
        """Frames of the chunk that leaves next."""
        self._burst = range(0)
        """Frames that are made in a row."""
        self._start: float | None = None
        """When frame 0 was begun to be played; later by as much as the player has been starved since."""

    @property
    def heard(self) -> bool:
        """Whether the client has taken any audio."""
        return self._start is not None

    def taken(self, now: float, played_s: float | None = None) -> None:
        """The client took audio, or says how much of it it has played."""
        if played_s is not None:
            self._start = now - played_s
        elif self._start is None:
            self._start = now

    def seam(self, frame: int) -> None:
        """All frames before this one leave now, and its chunk begins with it."""
        self._first, self._last = frame, frame + self._last - self._first

    def due(self, frame: int, now: float, cost_s: float, settings: Schedule, *, in_row: bool = True) -> float:
        """When a frame that takes `cost_s` has to be begun (for `pace`: may be begun); before `now` if it is late.

        :param in_row: whether it may be begun at once because it goes on with a burst.
        """
        if self._start is None or settings.policy == "race":
            return now
        self.reach(frame, now)
        if settings.policy == "pace":
            return self._start + frame * self._frame_s - settings.lead_s
        spare = self.spare_s(frame, now, cost_s) - settings.slack_s
        in_row = in_row and frame in self._burst[1:]
        if not in_row:
            self._burst = range(frame, frame + max(round(settings.burst_s / cost_s), 1))
        if spare < 0:
            return now + spare
        if in_row:
            return now
        bursts = math.ceil((self._last + 2 - frame) / len(self._burst))
        return now + spare * (1 - settings.reserve) / bursts

    def reach(self, frame: int, now: float) -> None:
        """This frame is about to be begun: the chunks before its own have left."""
        while self._last + 1 < frame:
            if self._start is not None:
                self._start = max(self._start, now - self._first * self._frame_s)
            self._first = self._last + 1
            self._last += next(self._sizes)

    def spare_s(self, frame: int, now: float, cost_s: float) -> float:
        """For how long the listener plays on with what has left, beyond the time in which the next chunk is made.

        Infinite before it plays; below 0 where that chunk comes too late.

        :param frame: to be made next; each takes `cost_s`.
        """
        if self._start is None:
            return math.inf
        return self._start + self._first * self._frame_s - now - (self._last + 2 - frame) * cost_s
