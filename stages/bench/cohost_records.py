"""What `vivavoce bench cohost` measures, and what comes out."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import msgspec

Work = Literal["decoding", "prefilling"]
"""What chat does meanwhile."""
Span = tuple[float, float]
Traces = Mapping[str, Mapping[str, Sequence[Span]]]
"""By family, then by what it did (`bus.turns.Trace`)."""


class Reply(msgspec.Struct, frozen=True):
    """One reply as its client had it; times by `time.monotonic`."""

    asked: float
    arrivals: tuple[tuple[float, float], ...]
    """When each chunk came, and how many seconds of audio it is."""

    @property
    def ttfa_s(self) -> float:
        return self.arrivals[0][0] - self.asked

    @property
    def rtf(self) -> float:
        return (self.arrivals[-1][0] - self.asked) / sum(seconds for _, seconds in self.arrivals)

    @property
    def played(self) -> float:
        """When a player was through that started with the first chunk."""
        waited = sum(ended - begun for begun, ended in self.gaps())
        return self.arrivals[0][0] + waited + sum(seconds for _, seconds in self.arrivals)

    def gaps(self) -> list[tuple[float, float]]:
        """From when until when that player had nothing to play."""
        found: list[tuple[float, float]] = []
        empty = self.arrivals[0][0]
        for came, seconds in self.arrivals:
            if came > empty:
                found.append((empty, came))
            empty = max(empty, came) + seconds
        return found


class Talk(msgspec.Struct, frozen=True):
    """What chat's clients had in a span of time."""

    begun: float
    ended: float
    times: tuple[float, ...]
    """When each token came; for prompts when each was read."""
    tokens: float
    """Made in that time: of a prompt that is being read, its share."""

    @property
    def longest_gap_s(self) -> float:
        return max(later - sooner for sooner, later in pairwise((self.begun, *self.times, self.ended)))


class Session(NamedTuple):
    """Replies while chat is at one work."""

    replies: list[Reply]
    alone: list[Talk]
    """Of chat, before each of them."""
    both: list[Talk]
    """Of chat, while each of them was listened to."""


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    replies: int
    ttfa_ms: list[float]
    """Of each reply, in order, the rounds one behind the other."""
    ttfa_ms_p50: float
    ttfa_ms_p90: float
    rtf: float
    """Median of wall seconds ÷ audio seconds, of whole replies."""
    underruns: int
    underrun_s: float


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """In whose hands the device was."""

    switches_per_s: float
    handover_ms: float | None
    """Mean; None where chat was never asked for the device."""
    speech: float
    chat: float
    unused: float


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Speech and chat at the same time."""

    speech: Speech
    chat_alone: float
    """Tokens a second; tokens of prompts while it is prefilling."""
    longest_gap_alone_ms: float
    chat: float
    longest_gap_ms: float
    hands_alone: Hands
    """While chat was alone."""
    hands: Hands
    sharing_efficiency: float | None
    """None where speech alone needs all of the device."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    idle: Speech
    decoding: Beside
    prefilling: Beside | None
    memory_bytes: dict[str, int]
    """Resident, by process."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    hardware: str
    layout: str
    speech: str
    chat: str
    rounds: int
    measures: dict[str, str]
    policies: list[Policy]


MEASURES = {
    "method": "six replies, each asked for when the one before has been heard, idle and while chat works without a "
    "pause; before each of these chat is alone for a while; policies by turns, each loaded anew, the order "
    "reversed from round to round; in-process clients, no HTTP",
    "ttfa_ms": "request sent to first audio received, reply by reply in the order of the rounds; percentiles over "
    "replies",
    "underruns": "how often, and for how long, a player that starts with the first chunk had nothing to play",
    "chat": "tokens made a second while replies were listened to; chat_alone: between them",
    "longest_gap_ms": "longest time without a token (decoding), or until a whole prompt was read (prefilling)",
    "switches_per_s": "how often the device went from one to the other",
    "handover_ms": "from when chat knew that speech wants the device until it gave it back, on average",
    "speech, chat": "shares of the time that each had the device; with race, that it was at work",
    "unused": "share of the time in which neither had a slice under way",
    "sharing_efficiency": "chat ÷ (chat_alone × (1 − the best rtf of speech on the idle device, of all policies))",
    "memory_bytes": "resident set of each process at the end",
}
"""What each figure means: part of the JSON."""


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank, of at least one value."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * round(share * 100) // 100) - 1, 0)]


def sum_up(replies: Sequence[Reply]) -> Speech:
    gaps = [ended - begun for reply in replies for begun, ended in reply.gaps()]
    ttfa = [reply.ttfa_s * 1000 for reply in replies]
    return Speech(
        replies=len(replies),
        ttfa_ms=ttfa,
        ttfa_ms_p50=percentile(ttfa, 0.5),
        ttfa_ms_p90=percentile(ttfa, 0.9),
        rtf=median(reply.rtf for reply in replies),
        underruns=len(gaps),
        underrun_s=sum(gaps),
    )


def beside(sessions: Sequence[Session], solo_rtf: float, traces: Traces) -> Beside:
    """
    :param solo_rtf: of speech on the idle device, under the policy that hinders it least.
    """
    alone = [talk for session in sessions for talk in session.alone]
    both = [talk for session in sessions for talk in session.both]
    chat_alone, chat = rate(alone), rate(both)
    return Beside(
        speech=sum_up([reply for session in sessions for reply in session.replies]),
        chat_alone=chat_alone,
        longest_gap_alone_ms=max(talk.longest_gap_s for talk in alone) * 1000,
        chat=chat,
        longest_gap_ms=max(talk.longest_gap_s for talk in both) * 1000,
        hands_alone=hands(traces, alone),
        hands=hands(traces, both),
        sharing_efficiency=chat / (chat_alone * (1 - solo_rtf)) if solo_rtf < 1 else None,
    )


def hands(traces: Traces, talks: Sequence[Talk]) -> Hands:
    """In whose hands the device was during the talks."""
    seconds = sum(talk.ended - talk.begun for talk in talks)

    def spans(family: str, what: str) -> list[Span]:
        all_of_it = traces.get(family, {}).get(what, ())
        return [span for talk in talks for span in _within(all_of_it, talk.begun, talk.ended)]

    had = {family: spans(family, "hold") or spans(family, "use") for family in ("speech", "chat")}
    turns = sorted((begun, family) for family, its in had.items() for begun, _ in its)
    handovers = [ended - begun for begun, ended in spans("chat", "handover")]
    return Hands(
        switches_per_s=sum(one != other for (_, one), (_, other) in pairwise(turns)) / seconds,
        handover_ms=sum(handovers) / len(handovers) * 1000 if handovers else None,
        speech=_covered(had["speech"]) / seconds,
        chat=_covered(had["chat"]) / seconds,
        unused=1 - _covered(spans("speech", "use") + spans("chat", "use")) / seconds,
    )


def _within(spans: Sequence[Span], begun: float, ended: float) -> Iterator[Span]:
    for since, until in spans:
        if since < ended and until > begun:
            yield max(since, begun), min(until, ended)


def _covered(spans: Sequence[Span]) -> float:
    """Seconds that lie in one of them at least."""
    seconds, covered = 0.0, -math.inf
    for begun, ended in sorted(spans):
        seconds += max(ended - max(begun, covered), 0.0)
        covered = max(covered, ended)
    return seconds


def rate(talks: Sequence[Talk]) -> float:
    """Tokens a second."""
    return sum(talk.tokens for talk in talks) / sum(talk.ended - talk.begun for talk in talks)


def table(result: Result) -> str:
    """The result for people."""
    head = ["", "policy", "TTFA p50", "p90, ms", "RTF", "underruns", "s", "chat tok/s", "gap, ms"]
    head += ["switches/s", "handover, ms", "speech, %", "chat", "unused", "sharing"]
    rows = [head]
    for policy in result.policies:
        decoding = policy.decoding
        alone = _chat(decoding.chat_alone, decoding.longest_gap_alone_ms, decoding.hands_alone)
        rows.append(["idle", policy.policy, *_speech(policy.idle), *alone, ""])
        for name, both in (("decoding", policy.decoding), ("prefilling", policy.prefilling)):
            if both is not None:
                shared = "-" if both.sharing_efficiency is None else f"{both.sharing_efficiency:.2f}"
                chat = _chat(both.chat, both.longest_gap_ms, both.hands)
                rows.append([name, policy.policy, *_speech(both.speech), *chat, shared])
    rows[1:] = sorted(rows[1:], key=lambda row: ("idle", "decoding", "prefilling").index(row[0]))
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    memory = [
        f"memory, {policy.policy}: "
        + ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in policy.memory_bytes.items())
        for policy in result.policies
    ]
    what = f"layout {result.layout}; speech: {result.speech}; chat: {result.chat}; {result.rounds} rounds"
    return "\n".join([what, result.hardware, "", *lines, "", *memory])


def _speech(speech: Speech) -> list[str]:
    return [
        f"{speech.ttfa_ms_p50:.0f}",
        f"{speech.ttfa_ms_p90:.0f}",
        f"{speech.rtf:.2f}",
        f"{speech.underruns}",
        f"{speech.underrun_s:.2f}",
    ]


def _chat(rate: float, gap_ms: float, hands: Hands) -> list[str]:
    return [
        f"{rate:.1f}",
        f"{gap_ms:.0f}",
        f"{hands.switches_per_s:.1f}",
        "-" if hands.handover_ms is None else f"{hands.handover_ms:.1f}",
        *(f"{share * 100:.0f}" for share in (hands.speech, hands.chat, hands.unused)),
    ]
