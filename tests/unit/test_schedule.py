"""The scheduler by itself: jobs that only move an injected clock, so a second costs nothing, and runs are alike."""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.bus.layout import Schedule
from vivavoce.bus.schedule import FRAME_S, Arbiter, Ask, Grant, Lost, Playout, Recall, Release, Told
from vivavoce.bus.turns import Party, SpeechParty

quick = settings(max_examples=40, deadline=None)
STAGES = ("prompt", "talker", "code_predictor", "codec_decoder")


def sizes() -> Iterator[int]:
    """As `ramp(0.5, 8)` of the speech stages, written down."""
    yield from (1, 2, 4)
    yield from itertools.repeat(8)


@dataclass
class Stream:
    """One speech request, and what its listener had."""

    begin: float
    frames: int
    cost: float
    leave_s: float = math.inf
    """When it is cancelled, after its beginning."""
    heard: float | None = None
    """When its first audio left."""
    late: list[float] = field(default_factory=list[float])
    """Seconds by which each chunk came after the audio before it had been played."""
    made: int = 0
    ahead_s: float = 0.0
    """The most that was made and not yet played."""


class World:
    """A device that does one thing at a time, and is idle for `switch_s` where it goes from hand to hand."""

    def __init__(self, schedule: Schedule, switch_s: float = 0.0) -> None:
        self.now = 0.0
        self.switches = 0
        self._switch_s = switch_s
        self.used: list[tuple[str, float, float]] = []
        self._alarms: list[tuple[float, int, anyio.Event]] = []
        self._number = itertools.count()
        self.parties: dict[str, Party] = {}
        self.arbiter = Arbiter(schedule, self._tell, rest="speech", clock=lambda: self.now)
        self.speech = SpeechParty(
            schedule, lambda said: self.arbiter.hear("speech", said), stages=STAGES, clock=lambda: self.now
        )
        self.chat = Party(schedule, lambda said: self.arbiter.hear("chat", said), clock=lambda: self.now)
        self.parties = {"speech": self.speech, "chat": self.chat}
        for party in self.parties.values():
            party.join()
        self._turns: dict[str, anyio.Event] = {}

    def _tell(self, name: str, told: Told) -> None:
        self.parties[name].take(told)

    def work(self, who: str, seconds: float) -> None:
        if self.used and (who == "chat") != (self.used[-1][0] == "chat"):
            self.switches += 1
            self.pass_until(self.now + self._switch_s)
        self.used.append((who, self.now, self.now + seconds))
        self.pass_until(self.now + seconds)

    def pass_until(self, when: float) -> None:
        self.now = when
        while self._alarms and self._alarms[0][0] <= self.now:
            heapq.heappop(self._alarms)[2].set()
        self.arbiter.check()

    async def until(self, when: float) -> None:
        if when > self.now:
            alarm = anyio.Event()
            heapq.heappush(self._alarms, (when, next(self._number), alarm))
            await alarm.wait()

    async def run(self, streams: list[Stream], slices: list[float]) -> None:
        """Speak the streams while chat works all the time, or never without slices."""
        async with anyio.create_task_group() as everything:
            everything.start_soon(self._pass_idle_time)
            everything.start_soon(self._hand_turns_on)
            if slices:
                everything.start_soon(self._chat, itertools.cycle(slices))
            async with anyio.create_task_group() as speaking:
                for number, stream in enumerate(streams):
                    speaking.start_soon(self._speak, f"{number}", stream)
            everything.cancel_scope.cancel()

    async def _pass_idle_time(self) -> None:
        while True:
            await anyio.wait_all_tasks_blocked()
            times = [
                when for when in (self.arbiter.check(), *(alarm[0] for alarm in self._alarms[:1])) if when
            ]
            if times:
                self.pass_until(max(min(times), self.now))

    async def _hand_turns_on(self) -> None:
        while True:
            self._turns.pop(await self.speech.next_turn()).set()

    async def _chat(self, slices: Iterator[float]) -> None:
        for seconds in slices:
            async with self.chat:
                self.work("chat", seconds)
            for _ in range(3):
                if self.chat.held:
                    await anyio.lowlevel.checkpoint()

    async def _speak(self, name: str, stream: Stream) -> None:
        await self.until(stream.begin)
        playout, chunks = Playout(sizes()), sizes()
        first, last = 0, next(chunks) - 1
        async with self.speech:
            self.work(name, stream.cost)
            self.speech.move(name)
        for frame in range(stream.frames):
            if self.now >= stream.begin + stream.leave_s:
                break
            if frame and not self.speech.ready(name, playout, frame):
                self._turns[name] = anyio.Event()
                await self._turns[name].wait()
            async with self.speech:
                self.work(name, stream.cost)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            stream.made += 1
            stream.ahead_s = max(
                stream.ahead_s, (frame + 1) * FRAME_S - (self.now - (stream.heard or self.now))
            )
            # The first frame leaves at once, a later chunk when the frame behind it has been made.
            if frame == last + (frame > 0) or frame + 1 == stream.frames:
                if stream.heard is None:
                    stream.heard = self.now
                    playout.taken(self.now)
                stream.late.append(self.now - stream.heard - first * FRAME_S)
                first, last = last + 1, last + next(chunks)
        self.speech.still(name)


STREAMS = st.builds(
    Stream,
    begin=st.floats(0, 3),
    frames=st.integers(1, 80),
    cost=st.floats(0.002, 0.07),
)
SLICES = st.lists(st.floats(0.001, 0.03), min_size=1, max_size=6)


async def both(
    schedule: Schedule, streams: list[Stream], slices: list[float], switch_s: float = 0.0
) -> World:
    world = World(schedule, switch_s)
    with anyio.fail_after(20):
        await world.run(streams, slices)
    return world


def chat_s(world: World) -> float:
    return sum(ended - begun for who, begun, ended in world.used if who == "chat")


def chat_gaps(world: World) -> list[float]:
    turns = [(begun, ended) for who, begun, ended in world.used if who == "chat"]
    return [turns[0][0], *(begun - ended for (_, ended), (begun, _) in itertools.pairwise(turns))]


def burst_s(cost: float) -> float:
    """Audio of the frames that are made in a row."""
    return Schedule().burst_s / cost * FRAME_S


@quick
@given(stream=STREAMS, slices=SLICES)
async def test_one_listener_who_could_be_served_never_waits(stream: Stream, slices: list[float]) -> None:
    """Whatever chat does beside it: each chunk is there in time if it was so on an idle device."""
    alone = replace(stream, late=[])
    await both(Schedule(), [alone], [])
    world = await both(Schedule(patience_s=math.inf), [stream], slices)
    assert stream.heard is not None
    assert alone.heard is not None
    assert stream.heard - stream.begin <= alone.heard - alone.begin + max(slices) + 1e-9
    if max(alone.late) <= 0:
        assert max(stream.late) <= 1e-9
    spans = sorted((begun, ended) for _, begun, ended in world.used)
    assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))


@quick
@given(begins=st.lists(st.floats(0, 4), min_size=2, max_size=3), load=st.floats(0.02, 0.4), slices=SLICES)
async def test_several_listeners_never_wait(begins: list[float], load: float, slices: list[float]) -> None:
    """While they need less than half of the device, and none would have to wait without chat."""
    streams = [Stream(begin, 60, load * FRAME_S / len(begins)) for begin in begins]
    alone = [replace(stream, late=[]) for stream in streams]
    await both(Schedule(), alone, [])
    await both(Schedule(), streams, slices)
    if all(max(stream.late) <= 0 for stream in alone):
        assert all(max(stream.late) <= 1e-9 for stream in streams)


@quick
@given(streams=st.lists(STREAMS, min_size=1, max_size=4), slices=SLICES)
async def test_chat_never_starves(streams: list[Stream], slices: list[float]) -> None:
    """Also where speech has more to do than the device can."""
    world = await both(Schedule(patience_s=0.5), streams, slices)
    # A prompt and its first frames are one piece, and each request may be at its own.
    assert max(chat_gaps(world)) <= 0.5 + 3 * sum(stream.cost for stream in streams) + 1e-9
    assert all(stream.made == stream.frames for stream in streams)


@quick
@given(cost=st.floats(0.002, 0.026), slices=SLICES)
async def test_chat_has_what_speech_does_not_need(cost: float, slices: list[float]) -> None:
    stream = Stream(0.0, 100, cost)
    world = await both(Schedule(), [stream], slices)
    assert chat_s(world) >= 0.9 * (1 - cost / FRAME_S) * world.now
    assert stream.ahead_s <= 1.5 + 2 * burst_s(cost)


@quick
@given(cost=st.floats(0.002, 0.016), slices=st.lists(st.floats(0.001, 0.008), min_size=1, max_size=6))
async def test_changes_of_hands_are_few(cost: float, slices: list[float]) -> None:
    """Chat keeps nine tenths of what speech does not need, where each of them costs as much as a frame may."""
    stream = Stream(0.0, 100, cost)
    world = await both(Schedule(), [stream], slices, switch_s=0.004)
    assert chat_s(world) >= 0.9 * (1 - cost / FRAME_S) * world.now
    assert world.switches <= 2 * (stream.frames * cost / 0.06 + 10)  # there and back for each burst
    assert max(stream.late) <= 1e-9
    assert stream.ahead_s <= 1.5 + 2 * burst_s(cost)


@quick
@given(
    streams=st.lists(
        st.builds(Stream, st.floats(0, 2), st.just(99), st.floats(0.002, 0.05), leave_s=st.floats(0, 2)),
        min_size=1,
        max_size=4,
    ),
    slices=SLICES,
    policy=st.sampled_from(["race", "pace", "deadline"]),
)
async def test_whoever_leaves_leaves_nothing_behind(
    streams: list[Stream], slices: list[float], policy: Any
) -> None:
    world = World(Schedule(policy=policy))
    with anyio.fail_after(20):
        await world.run([*streams, Stream(6.0, 1, 0.01)], slices)
    alone = [(begun, ended) for who, begun, ended in world.used if who == "chat" and 4.5 < begun < 6.0 - 0.03]
    assert sum(ended - begun for begun, ended in alone) == pytest.approx(alone[-1][1] - alone[0][0])


@quick
@given(streams=st.lists(STREAMS, min_size=2, max_size=3), slices=SLICES)
async def test_pace_makes_speech_no_faster_than_it_is_played(
    streams: list[Stream], slices: list[float]
) -> None:
    await both(Schedule(policy="pace", lead_s=1.0), streams, slices)
    for stream in streams:
        assert stream.made == stream.frames
        assert stream.ahead_s <= 1.0 + FRAME_S + 1e-9


async def test_race_takes_turns() -> None:
    world = await both(Schedule(policy="race"), [Stream(0.0, 30, 0.02)], [0.01])
    turns = [who for who, _, _ in world.used]
    first = turns.index("chat", turns.index("0"))  # a prompt and its first frame are one piece
    both_at_work = turns[first : -turns[::-1].index("0")]
    assert len(both_at_work) > 50
    assert all(one != other for one, other in itertools.pairwise(both_at_work))


class Ledger:
    """An arbiter of parties `a` and `b`, and what it told them."""

    def __init__(self, schedule: Schedule, rest: str | None = None) -> None:
        self.now = 0.0
        self.told: list[tuple[str, Told]] = []
        self.arbiter = Arbiter(schedule, self._tell, rest=rest, clock=lambda: self.now)

    def _tell(self, name: str, told: Told) -> None:
        self.told.append((name, told))

    def new(self) -> list[tuple[str, Told]]:
        told, self.told = self.told, []
        return told


def test_a_holder_that_gives_no_sign_loses_the_device() -> None:
    ledger = Ledger(Schedule(timeout_s=1.0))
    hear = ledger.arbiter.hear
    hear("a", Ask())
    ledger.now = 50.0  # nobody else wants it: it may take as long as it likes
    assert ledger.arbiter.check() is None
    hear("b", Ask(0.0))
    assert ledger.new() == [("a", Grant(1, False)), ("a", Recall())]
    ledger.now = 50.9
    hear("a", Ask(0.0))
    assert ledger.arbiter.check() == pytest.approx(51.9)
    ledger.now = 51.9
    ledger.arbiter.check()
    assert ledger.new() == [("a", Lost()), ("b", Grant(2, False))]
    hear("a", Release(1))  # it was only slow, and has not heard yet
    hear("a", Ask())
    assert ledger.new() == [("b", Recall())]
    hear("b", Release(2))
    assert ledger.new() == [("a", Grant(3, False))]


def test_what_was_lost_is_not_held_again_by_an_old_release() -> None:
    ledger = Ledger(Schedule(timeout_s=1.0), rest="a")
    hear = ledger.arbiter.hear
    hear("a", Release(0))
    hear("b", Ask())
    ledger.now = 1.0
    ledger.arbiter.check()
    hear("b", Release(2))
    hear("a", Ask(0.0))
    hear("a", Release(1))
    assert ledger.new() == [
        ("a", Grant(1, False)),
        ("a", Recall()),
        ("a", Lost()),
        ("b", Grant(2, False)),
        ("a", Grant(3, False)),  # not at rest after `b`: it had to be heard of first
    ]
    assert ledger.arbiter.holder == "a"


def test_a_party_that_is_gone_holds_nothing_and_asks_for_nothing() -> None:
    ledger = Ledger(Schedule())
    for name in ("a", "b", "c"):
        ledger.arbiter.hear(name, Ask())
    ledger.arbiter.leave("b")
    ledger.arbiter.leave("a")
    assert ledger.new() == [("a", Grant(1, False)), ("a", Recall()), ("c", Grant(2, False))]


def test_the_next_frame_is_due_by_what_the_client_says_it_has_played() -> None:
    def due(said_s: float | None, speed: float = 1.0) -> float:
        """In how long frame 9 has to be begun, 0.2 s after the first audio. Its chunk begins with frame 7."""
        playout = Playout(sizes(), speed)
        playout.taken(10.0)
        for frame, now in ((4, 10.05), (8, 10.2)):
            playout.due(frame, now, brief, plain)
        playout.taken(10.2, said_s)
        return playout.due(9, 10.2, brief, plain) - 10.2

    brief = 1e-9
    plain = Schedule(slack_s=0.0, reserve=0.0, burst_s=brief)  # each frame by itself
    by_the_clock, left = due(None), 14 + 2 - 9
    assert by_the_clock == pytest.approx((7 * FRAME_S - 0.2) / left)
    assert due(0.2) == pytest.approx(by_the_clock)
    assert due(0.0) == pytest.approx(7 * FRAME_S / left)  # it has not begun to play
    assert due(0.5) == pytest.approx((7 * FRAME_S - 0.5) / left)  # it plays faster
    assert due(9.0) == pytest.approx(7 * FRAME_S - 9.0)  # it says that it has run dry
    assert due(0.2, speed=2.0) == pytest.approx((7 * FRAME_S / 2 - 0.2) / left)


def test_frames_are_made_in_bursts_and_the_time_to_spare_lies_before_them() -> None:
    """Of six frames of 10 ms, over the seams of chunks. The chunk that begins with frame 7 is in hand."""
    playout = Playout(sizes())
    playout.taken(0.0)
    settings = Schedule(slack_s=0.1, reserve=0.5, burst_s=0.06)
    spare = 7 * FRAME_S - 0.1 - 8 * 0.01
    assert playout.due(8, 0.0, 0.01, settings) == pytest.approx(spare * 0.5 / 2)
    assert playout.due(8, 0.2, 0.01, settings) == pytest.approx(0.2 + (spare - 0.2) * 0.5 / 2)  # asked again
    assert [playout.due(frame, 0.3, 0.01, settings) for frame in (9, 10, 11, 12, 13)] == [0.3] * 5
    spare = 7 * FRAME_S - 0.1 - 2 * 0.01
    assert playout.due(14, 0.3, 0.01, settings) == pytest.approx(0.3 + (spare - 0.3) * 0.5)
    assert playout.due(15, 0.4, 0.01, settings) == 0.4
    spare = 15 * FRAME_S - 0.1 - 8 * 0.01  # the next chunk is in hand
    assert playout.due(16, 0.4, 0.01, settings) == 0.4
    assert playout.due(16, 0.4, 0.01, settings, in_row=False) == pytest.approx(0.4 + (spare - 0.4) * 0.5 / 2)
    late = playout.due(17, 1.5, 0.01, settings)
    assert late == pytest.approx(15 * FRAME_S - 0.1 - 7 * 0.01)
    assert late < 1.5


def test_the_cost_of_a_frame_is_that_of_frames_in_a_row() -> None:
    """A frame behind a slice of chat waits for nothing: what passes is only the time to queue it."""
    now = [0.0]
    party = SpeechParty(Schedule(), lambda _: None, stages=STAGES, clock=lambda: now[0])
    playout = Playout(itertools.repeat(1))
    playout.taken(0.0)
    party.take(Grant(1, False))
    assert party.ready("r", playout, 1)
    now[0] = 0.06
    assert party.ready("r", playout, 2)
    assert party.cost_s == pytest.approx(0.06)
    party.take(Recall())
    now[0] = 0.12
    assert not party.ready("r", playout, 40)  # made far ahead: chat's turn
    assert not party.held
    party.take(Grant(2, True))
    assert party.turn() == "r"
    now[0] = 0.121
    party.ready("r", playout, 41)
    assert party.cost_s == pytest.approx(0.06)


def test_a_recall_of_what_was_given_back_means_nothing() -> None:
    said: list[object] = []
    party = Party(Schedule(), said.append)
    for told in (Grant(1, False), Recall(), Recall(), Grant(2, False)):
        party.take(told)
    assert said == [Release(1)]
    assert party.held


async def test_a_loss_that_is_told_after_the_slice_ended_is_made_good_by_the_next_grant() -> None:
    """It was under way when the party gave the device back and asked for it again."""
    said: list[object] = []
    party, slices = Party(Schedule(), said.append), 0

    async def use() -> None:
        nonlocal slices
        for _ in range(2):
            async with party:
                slices += 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            party.take(Grant(1, True))
            await anyio.wait_all_tasks_blocked()
            assert said == [Ask(), Release(1), Ask()]
            party.take(Lost())
            party.take(Grant(2, False))
    assert slices == 2


async def test_at_rest_the_device_is_speechs_and_without_others_nothing_is_said() -> None:
    world = World(Schedule())
    said: list[object] = []
    world.arbiter.hear = lambda name, word: said.append((name, word))  # type: ignore[method-assign]
    await world.run([Stream(0.0, 40, 0.02)], [])
    assert said == []
    assert world.speech.held


async def test_a_recall_that_is_found_by_looking_ends_the_possession_behind_the_slice() -> None:
    said: list[object] = []
    traced: list[tuple[str, float, float]] = []
    now, told = [0.0], list[Told]()

    def look() -> None:
        while told:
            party.take(told.pop(0))

    def trace(what: str, begun: float, ended: float) -> None:
        traced.append((what, begun, ended))

    def drain() -> None:
        now[0] += 0.25

    party = Party(Schedule(), said.append, look=look, drain=drain, trace=trace, clock=lambda: now[0])

    async def use() -> None:
        async with party:
            now[0] = 3.0
            assert not party.recalled()
            told.append(Recall())
            now[0] = 4.0
            assert party.recalled()
            assert party.held
            now[0] = 5.0

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            now[0] = 2.0
            party.take(Grant(1, False))
    assert said == [Ask(), Release(1)]
    assert traced == [("wait", 0.0, 2.0), ("use", 2.0, 5.0), ("handover", 4.0, 5.25), ("hold", 2.0, 5.25)]


def test_a_burst_is_cut_short_for_who_has_nothing_in_hand() -> None:
    now = [0.0]
    party = SpeechParty(
        Schedule(slack_s=0.0, burst_s=0.4), lambda _: None, stages=STAGES, clock=lambda: now[0]
    )
    ahead, behind = Playout(itertools.repeat(8)), Playout(itertools.repeat(2))
    ahead.taken(0.0)
    assert not party.ready("ahead", ahead, 9)
    party.take(Grant(1, True))
    assert party.turn() == "ahead"
    assert party.ready("ahead", ahead, 10)
    party.move("behind")
    assert not party.ready("ahead", ahead, 11)
    assert party.held  # for the one that is on its way
    assert party.ready("behind", behind, 1)  # not heard yet: due at once
    behind.taken(0.0)
    now[0] = 0.2
    assert party.ready("behind", behind, 2)  # late
    party.still("behind")
    assert not party.held


def test_what_a_listener_has_to_spare() -> None:
    """Chunks of 1, 2, 4, 8, 8 frames, of which each leaves when the frame behind it has been made."""
    playout = Playout(sizes())
    playout.reach(1, 0.0)
    assert playout.spare_s(1, 0.0, 0.01) == math.inf
    playout.taken(0.0)
    now = 0.0
    for frame in range(1, 25):
        now = frame * 0.01
        playout.reach(frame, now)
    in_hand_s = 23 * FRAME_S - now  # frames 0 to 22 have left
    assert playout.spare_s(25, now, 0.0) == pytest.approx(in_hand_s)
    assert playout.spare_s(25, now, 0.01) == pytest.approx(
        in_hand_s - 7 * 0.01
    )  # frames 25 to 31 are to be made
    for frame in range(25, 33):
        playout.reach(frame, now + 2)  # frame 32 comes too late: the player has waited
    assert playout.spare_s(33, now + 2, 0.0) == pytest.approx(8 * FRAME_S)
