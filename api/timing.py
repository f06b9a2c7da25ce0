"""What a speech request's clock says. Work is timed where audio arrives, so a client that stalls is not in it."""

import time

import msgspec

from ..bus.messages import Audio, Ending


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """As told to clients, in headers and in the last event. Seconds from the arrival of the request."""

    queue_s: float
    """Wait for a place."""
    ttfa_s: float | None
    """First audio ready to be written."""
    ttfa_audible_s: float | None
    """When a player that starts with the first byte plays the first sample that is not silence."""
    audio_s: float
    frames: int
    rtf: float | None
    """Seconds of work for each second of audio; waiting for a client that does not read is no work."""
    underrun_s: float
    """How long a player that starts with the first byte would have had nothing to play."""


def stage_seconds(ending: Ending) -> dict[str, float]:
    """What each stage's turns took for the request; nothing yet while it goes on."""
    return {name: round(time.busy_s, 4) for name, time in ending.stages.items()}


class Timing:
    def __init__(self, received: float, rate: int) -> None:
        self._received = received
        self._rate = rate
        self._admitted: float | None = None
        self._first: float | None = None
        self._last = 0.0
        self._audible: float | None = None
        self.samples = 0
        self._frames = 0
        self._underrun = 0.0

    def admitted(self) -> None:
        self._admitted = time.perf_counter()

    def note(self, arrived: float, audio: Audio) -> None:
        """One message of audio, and when it arrived."""
        self._frames += audio.frames
        if audio.samples == 0:
            return
        if self._first is None:
            self._first = arrived
        # A player has used up what came before, and has waited for the rest.
        self._underrun += max(0.0, arrived - self._playing_at(self.samples))
        if self._audible is None and audio.quiet < audio.samples:
            self._audible = self._playing_at(self.samples + audio.quiet)
        self.samples += audio.samples
        self._last = arrived

    def _playing_at(self, sample: int) -> float:
        assert self._first is not None
        return self._first + self._underrun + sample / self._rate

    def figures(self, parked_s: float) -> Figures:
        """:param parked_s: how long the pipeline stood still because the client took nothing."""
        received, admitted = self._received, self._admitted
        audio_s = self.samples / self._rate
        work_s = self._last - admitted - parked_s if admitted is not None and self.samples else None
        return Figures(
            queue_s=round((admitted if admitted is not None else time.perf_counter()) - received, 4),
            ttfa_s=None if self._first is None else round(self._first - received, 4),
            ttfa_audible_s=None if self._audible is None else round(self._audible - received, 4),
            audio_s=round(audio_s, 4),
            frames=self._frames,
            rtf=None if work_s is None else round(work_s / audio_s, 4),
            underrun_s=round(self._underrun, 4),
        )
