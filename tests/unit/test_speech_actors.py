"""The actors by themselves, over a model whose answers are scripted: order, endings, credit, cancelling."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import anyio
import mlx.core as mx
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from vivavoce.bus.channel import Inbox, Outbox, Stage
from vivavoce.bus.layout import Speech
from vivavoce.bus.messages import (
    LINKS,
    Close,
    Codes,
    Credit,
    Ending,
    Feedback,
    Hidden,
    Hold,
    Message,
    Pcm,
    Prompt,
    Rows,
    Seam,
    Speak,
    StageTime,
)
from vivavoce.bus.wire import kinds
from vivavoce.stages.speech.codec_decoder import CodecDecoderStage
from vivavoce.stages.speech.prompt import PromptStage
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.talker import TalkerStage
from vivavoce.stages.speech.utterance import SLACK_S, Costs

SPEAK = Speak(request="r", model="m", text="hello", seed=1)
EOS = 2150
ROW = mx.zeros((1, 1, 4))
PROMPT = Prompt(request="r", prefill=ROW, trailing=mx.zeros((1, 0, 4)), pad=ROW, text_tokens=100)


class _Talker:
    """Yields scripted group-0 codes; the state is the number of frames begun."""

    widest = 8

    def nucleus(self, sampling: Sampling) -> bool:
        return sampling.nucleus

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.begun = 0
        self.together: list[int] = []
        """Requests of each step."""

    def start(self, prompt: Any, sampling: Sampling, seed: int) -> tuple[int, mx.array, mx.array]:
        self.begun = 1
        return 1, mx.array([[self.codes[0]]]), ROW

    def steps(
        self, states: list[int], embeddings: list[mx.array], texts: list[mx.array]
    ) -> list[tuple[int, mx.array, mx.array]]:
        self.begun += len(states)
        self.together.append(len(states))
        return [(state + 1, mx.array([[self.codes[state]]]), ROW) for state in states]


class _Codec:
    """PCM of a frame is its first code, held for 1,920 samples."""

    def start(self) -> int:
        return 0

    def step(self, codes: mx.array, state: int) -> tuple[mx.array, int]:
        frames = codes.shape[1]
        level = codes[0, :, 0].astype(mx.float32)[:, None] / 32767
        return mx.broadcast_to(level, (frames, 1920)).reshape(1, -1), state + frames


def _model(codes: list[int], max_frames: int = 1000) -> Any:
    return SimpleNamespace(
        kind="custom_voice",
        takes_instructions=True,
        talker=_Talker(codes),
        codec=_Codec(),
        sampling=Sampling(),
        max_frames=max_frames,
        config=SimpleNamespace(talker_config=SimpleNamespace(codec_eos_token_id=EOS)),
    )


class _Bench:
    def __init__(
        self, inbox: MemoryObjectSendStream[Message], out: MemoryObjectReceiveStream[Message]
    ) -> None:
        self._inbox = inbox
        self._out = out
        self.times: dict[str, StageTime] = {}
        """What the last ending told of the stages."""

    async def give(self, *messages: Message) -> None:
        for message in messages:
            self._inbox.send_nowait(message)
        await anyio.wait_all_tasks_blocked()

    def got(self) -> list[Message]:
        """What the stage has sent since the last look, endings without their times."""
        found: list[Message] = []
        while self._out.statistics().current_buffer_used:
            message = self._out.receive_nowait()
            if isinstance(message, Ending):
                self.times = message.stages
                message = replace(message, stages={})
            found.append(message)
        return found


@asynccontextmanager
async def _running(stage: Stage, name: str) -> AsyncGenerator[_Bench]:
    give, inbox = anyio.create_memory_object_stream[Message](100)
    out, got = anyio.create_memory_object_stream[Message](1000)
    carried = frozenset[type[Message]]().union(*(kinds(LINKS[edge]) for edge in LINKS if edge[0] == name))
    with anyio.fail_after(15), give, got, out:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_close_after, stage, inbox, Outbox([(out, carried)]))
            yield _Bench(give, got)
            tasks.cancel_scope.cancel()


async def _close_after(stage: Stage, inbox: Inbox, outbox: Outbox) -> None:
    with inbox:
        await stage.run(inbox, outbox)


def _talker(model: Any, **settings: Any) -> TalkerStage:
    return TalkerStage({"m": model}, Speech(**settings), nullcontext())


def _feedback(frame: int) -> Feedback:
    return Feedback(request="r", frame=frame, embedding=ROW)


async def test_frame_n_plus_1_is_queued_before_code_n_is_known_and_dropped_at_the_end() -> None:
    model = _model([7, 8, EOS, 9])
    async with _running(_talker(model), "talker") as bench:
        await bench.give(SPEAK, PROMPT)
        assert [type(m) for m in bench.got()] == [Speak, Hidden]
        await bench.give(_feedback(0))
        await bench.give(_feedback(1))
        assert [m.frame for m in bench.got() if isinstance(m, Hidden)] == [1, 2]
        await bench.give(_feedback(2))
        assert model.talker.begun == 4  # frame 3 was begun before code 0 of frame 2 was read as the end
        assert bench.got() == [Ending(request="r", reason="stop", frames=2, text_tokens=100)]


@pytest.mark.parametrize(
    ("settings", "speak", "frames"),
    [
        ({"frames_floor": 2, "frames_per_token": 0.02}, SPEAK, 4),
        ({}, replace(SPEAK, max_frames=3), 3),
        ({"repeat_limit_frames": 5}, SPEAK, 5),
    ],
    ids=["text budget", "asked for", "one code for ever"],
)
async def test_a_request_that_does_not_end_by_itself_says_length(
    settings: dict[str, Any], speak: Speak, frames: int
) -> None:
    model = _model([5] * 100)
    async with _running(_talker(model, **settings), "talker") as bench:
        await bench.give(speak, PROMPT)
        for frame in range(20):
            await bench.give(_feedback(frame))
        ending = bench.got()[-1]
        assert ending == Ending(request="r", reason="length", frames=frames, text_tokens=100)


async def test_without_credit_a_request_is_parked_and_goes_on_with_it() -> None:
    model = _model(list(range(100)))
    async with _running(_talker(model), "talker") as bench:
        await bench.give(replace(SPEAK, lookahead=2), PROMPT, _feedback(0))
        assert len([m for m in bench.got() if isinstance(m, Hidden)]) == 2
        await bench.give(_feedback(1))
        assert bench.got() == []
        assert model.talker.begun == 2
        await bench.give(Credit(request="r", frames=1))
        assert [m.frame for m in bench.got() if isinstance(m, Hidden)] == [2]


async def test_an_ending_from_elsewhere_frees_the_request_and_is_passed_on_once() -> None:
    stage = _talker(_model([5] * 10))
    cancelled = Ending(request="r", reason="cancelled")
    async with _running(stage, "talker") as bench:
        await bench.give(SPEAK, PROMPT, cancelled, cancelled, _feedback(0))
        assert bench.got()[2:] == [cancelled]
        assert stage.open_requests() == ()


async def test_an_ending_gathers_the_times_of_the_stages_that_it_passes() -> None:
    before, prompt = time.time(), StageTime(1.0, 2.0, 0.5)
    async with _running(_talker(_model([5] * 10)), "talker") as bench:
        await bench.give(SPEAK, PROMPT, Ending(request="r", reason="stop", stages={"prompt": prompt}))
        bench.got()
        talker = bench.times["talker"]
        assert bench.times == {"prompt": prompt, "talker": talker}
        assert before <= talker.begun <= talker.ended <= time.time()
        assert 0 < talker.busy_s <= talker.ended - talker.begun + 0.01


async def test_one_request_fails_alone() -> None:
    class Broken(_Talker):
        def start(self, prompt: Any, sampling: Sampling, seed: int) -> tuple[int, mx.array, mx.array]:
            if seed == 13:
                raise RuntimeError("no luck")
            return super().start(prompt, sampling, seed)

    model = _model([5] * 10)
    model.talker = Broken([5] * 10)
    async with _running(_talker(model), "talker") as bench:
        await bench.give(replace(SPEAK, seed=13), PROMPT)
        ending = bench.got()[-1]
        assert isinstance(ending, Ending)
        assert ending.reason == "error"
        assert ending.failure is not None
        assert (ending.failure.status, "no luck" in ending.failure.message) == (500, True)
        await bench.give(SPEAK, PROMPT)
        assert isinstance(bench.got()[-1], Hidden)


def _hidden(bench: _Bench) -> list[tuple[str, int]]:
    """The frames begun since the last look."""
    return [(message.request, message.frame) for message in bench.got() if isinstance(message, Hidden)]


async def _heard(bench: _Bench, played_s: float) -> None:
    """The first frame of request `a`, of which so much has been played; and a second one to speak to, `b`."""
    a, b = (replace(SPEAK, request=name, lookahead=1) for name in "ab")
    await bench.give(a, replace(PROMPT, request="a"), replace(_feedback(0), request="a"))
    assert _hidden(bench) == [("a", 0)]
    await bench.give(Credit(request="a", frames=9, played_s=played_s), b, replace(PROMPT, request="b"))


async def test_whoever_is_running_dry_goes_ahead_of_a_prompt() -> None:
    """Until the next audio has left, which is two frames and leaves behind a third. A frame lasts 80 ms."""
    stage = TalkerStage({"m": _model([5] * 10)}, Speech(), nullcontext(), clock=lambda: 10.0)
    async with _running(stage, "talker") as bench:
        await _heard(bench, played_s=0.04)
        for frame in (1, 2, 3):
            assert _hidden(bench) == [("a", frame)]
            await bench.give(replace(_feedback(frame), request="a"))
        assert _hidden(bench) == [("b", 0)]


async def test_a_listener_with_enough_in_hand_waits_until_a_prompt_is_through() -> None:
    stage = TalkerStage({"m": _model([5] * 10)}, Speech(), nullcontext(), clock=lambda: 10.0)
    async with _running(stage, "talker") as bench:
        await _heard(bench, played_s=0.0)
        assert _hidden(bench) == [("b", 0)]
        await bench.give(replace(_feedback(0), request="b"))
        assert _hidden(bench) == [("a", 1)]


async def test_a_prompt_waits_for_a_listener_no_longer_than_it_may() -> None:
    now = 10.0
    stage = TalkerStage({"m": _model([5] * 10)}, Speech(), nullcontext(), clock=lambda: now)
    async with _running(stage, "talker") as bench:
        await _heard(bench, played_s=0.04)
        now += 2 * Costs().prompt_s
        await bench.give(replace(_feedback(1), request="a"))
        assert _hidden(bench) == [("a", 1), ("a", 2), ("b", 0)]


async def test_beside_a_prompt_only_the_most_urgent_are_stepped_and_the_others_come_back() -> None:
    """`b` has played the most of its audio, `a` nothing."""
    model = _model([5] * 10)
    stage = TalkerStage({"m": model}, Speech(), nullcontext(), rows=2, clock=lambda: 10.0)
    async with _running(stage, "talker") as bench:
        for name in "abc":
            await bench.give(replace(SPEAK, request=name, lookahead=1), replace(PROMPT, request=name))
            await bench.give(replace(_feedback(0), request=name))
        _hidden(bench)
        played = {"a": 0.0, "b": 0.05, "c": 0.04}
        credits = [Credit(request=name, frames=9, played_s=played_s) for name, played_s in played.items()]
        await bench.give(*credits, replace(SPEAK, request="d"), replace(PROMPT, request="d"))
        for frame in (1, 2, 3):
            assert _hidden(bench) == [("b", frame), ("c", frame)]
            await bench.give(*(replace(_feedback(frame), request=name) for name in "bc"))
        assert _hidden(bench) == [("d", 0)]
        await bench.give(replace(_feedback(0), request="d"))
        assert sorted(_hidden(bench)) == [("a", 1), ("b", 4), ("c", 4), ("d", 1)]


async def test_those_who_wait_for_a_prompt_that_fails_go_on() -> None:
    async with _running(_talker(_model([5] * 10)), "talker") as bench:
        await bench.give(replace(SPEAK, lookahead=1), PROMPT, _feedback(0))
        broken = replace(PROMPT, request="b", prefill=None, static=1000)
        await bench.give(Credit(request="r", frames=9), replace(SPEAK, request="b"), broken)
        got = bench.got()
        assert [m.reason for m in got if isinstance(m, Ending)] == ["error"]
        assert [(m.request, m.frame) for m in got if isinstance(m, Hidden)] == [("r", 0), ("r", 1)]


def test_what_is_measured_decides_who_keeps_a_prompt_waiting() -> None:
    costs = Costs(step_s=0.01, prompt_s=0.02)
    costs.prompted(0.1)
    costs.stepped(0.05)
    assert (costs.prompt_s, costs.step_s) == (0.1, 0.05)
    costs.prompted(0.0)
    costs.stepped(0.0)
    assert (costs.prompt_s, costs.step_s) == pytest.approx((0.09, 0.045))
    enough = costs.prompt_s + SLACK_S
    assert not costs.holds(enough, 0.0)
    assert [costs.holds(0.99 * enough, waited_s) for waited_s in (0.17, 0.19)] == [True, False]
    assert [costs.holds(-0.01, waited_s) for waited_s in (0.04, 0.05)] == [True, False]


async def test_no_prompt_waits_for_a_listener_whose_client_takes_nothing() -> None:
    stage = TalkerStage({"m": _model([5] * 10)}, Speech(), nullcontext(), clock=lambda: 10.0)
    async with _running(stage, "talker") as bench:
        await bench.give(replace(SPEAK, lookahead=1), PROMPT, _feedback(0))
        await bench.give(Credit(request="r", frames=0, played_s=0.07))
        await bench.give(replace(SPEAK, request="b"), replace(PROMPT, request="b"))
        assert _hidden(bench) == [("r", 0), ("b", 0)]


async def test_first_frames_go_straight_through_one_prompt_behind_the_other() -> None:
    """What is said of a prompt that waits reaches it: more of its text, and that its request is over."""
    stage = _talker(_model([5] * 10))
    rows = Rows(request="b", rows=mx.ones((1, 2, 4)), text_tokens=2, final=True)
    async with _running(stage, "talker") as bench:
        for name in "abcd":
            await bench.give(replace(SPEAK, request=name), replace(PROMPT, request=name, final=name != "b"))
        await bench.give(rows, Ending(request="c", reason="cancelled"))
        assert _hidden(bench) == [("a", 0)]
        await bench.give(replace(_feedback(0), request="a"))
        assert _hidden(bench) == [("b", 0)]
        run = stage.requests["b"].running
        assert (run.final, run.trailing.shape[1]) == (True, 2)
        await bench.give(replace(_feedback(0), request="b"))
        assert _hidden(bench) == [("d", 0)]
        await bench.give(replace(_feedback(0), request="d"))
        assert sorted(_hidden(bench)) == [("a", 1), ("b", 1), ("d", 1)]


async def test_a_prompt_waits_for_no_first_frame_of_who_is_gone() -> None:
    async with _running(_talker(_model([5] * 10)), "talker") as bench:
        for name in "ab":
            await bench.give(replace(SPEAK, request=name), replace(PROMPT, request=name))
        assert _hidden(bench) == [("a", 0)]
        await bench.give(Ending(request="a", reason="cancelled"))
        assert _hidden(bench) == [("b", 0)]


async def test_those_who_wait_for_a_first_frame_go_on_when_its_request_is_gone() -> None:
    stage = TalkerStage({"m": _model([5] * 10)}, Speech(), nullcontext(), clock=lambda: 10.0)
    async with _running(stage, "talker") as bench:
        await _heard(bench, played_s=0.0)
        assert _hidden(bench) == [("b", 0)]
        await bench.give(Ending(request="b", reason="cancelled"))
        assert _hidden(bench) == [("a", 1)]


async def _three(bench: _Bench, pad: mx.array = ROW) -> None:
    """Three requests up to their second frame, `b` with another padding row."""
    pads = {"a": ROW, "b": pad, "c": ROW}
    for n, p in pads.items():
        await bench.give(replace(SPEAK, request=n, lookahead=1), replace(PROMPT, request=n, pad=p))
        await bench.give(replace(_feedback(0), request=n))
    await bench.give(*(Credit(request=n, frames=9) for n in pads))


@pytest.mark.parametrize(
    ("rows", "widest", "together"), [(8, 8, [3]), (2, 8, [2, 1]), (8, 2, [2, 1]), (1, 8, [1, 1, 1])]
)
async def test_requests_that_are_ready_are_stepped_together(
    rows: int, widest: int, together: list[int]
) -> None:
    model = _model([5] * 10)
    model.talker.widest = widest
    stage = TalkerStage({"m": model}, Speech(), nullcontext(), rows=rows)
    async with _running(stage, "talker") as bench:
        await _three(bench)
        assert model.talker.together == together
        assert [m.request for m in bench.got() if isinstance(m, Hidden) and m.frame == 1] == [*"abc"]


async def test_of_requests_stepped_together_one_fails_alone() -> None:
    class Full(_Talker):
        def steps(
            self, states: list[int], embeddings: list[mx.array], texts: list[mx.array]
        ) -> list[tuple[int, mx.array, mx.array]]:
            if any(text.shape[0] > 1 for text in texts):
                raise ValueError("no room")
            return super().steps(states, embeddings, texts)

    model = _model([5] * 10)
    model.talker = Full([5] * 10)
    stage = TalkerStage({"m": model}, Speech(), nullcontext(), rows=8)
    async with _running(stage, "talker") as bench:
        await _three(bench, pad=mx.zeros((2, 1, 4)))
        got = bench.got()
        assert [m.request for m in got if isinstance(m, Hidden) and m.frame == 1] == ["a", "c"]
        assert [(m.request, m.reason) for m in got if isinstance(m, Ending)] == [("b", "error")]
        assert set(stage.open_requests()) == {"a", "c"}


def _codes(frame: int) -> Codes:
    return Codes(request="r", frame=frame, codes=mx.full((1, 16), 1000 + frame))


def _levels(messages: list[Message]) -> list[int]:
    """The frames of the PCM, by the code each was made of."""
    levels: list[int] = []
    for message in messages:
        if isinstance(message, Pcm):
            samples = memoryview(message.samples).cast("h")
            assert len(samples) == message.frames * 1920
            levels += [samples[n * 1920] - 1000 for n in range(message.frames)]
    return levels


def _codec(**settings: Any) -> CodecDecoderStage:
    return CodecDecoderStage({"m": _model([])}, Speech(**settings), nullcontext())


async def test_frame_0_leaves_at_once_and_later_ones_when_the_next_is_queued() -> None:
    async with _running(_codec(max_chunk_frames=1), "codec_decoder") as bench:
        await bench.give(SPEAK, _codes(0))
        assert _levels(bench.got()) == [0]
        await bench.give(_codes(1))
        assert _levels(bench.got()) == []
        await bench.give(_codes(2))
        assert _levels(bench.got()) == [1]


@pytest.mark.parametrize("largest", [1, 2, 8])
@pytest.mark.parametrize("frames", range(1, 20))
async def test_every_valid_frame_once_and_none_after_the_end(frames: int, largest: int) -> None:
    """The frame queued behind the end (number `frames`) may or may not reach the decoder: it is never heard."""
    for extra in (0, 1):
        async with _running(_codec(max_chunk_frames=largest), "codec_decoder") as bench:
            await bench.give(SPEAK, *(_codes(n) for n in range(frames + extra)))
            await bench.give(Ending(request="r", reason="stop", frames=frames))
            got = bench.got()
            assert _levels(got) == list(range(frames))
            assert got[-1] == Ending(request="r", reason="stop", frames=frames)


@pytest.mark.parametrize(("quiet", "added"), [(0, 16800), (3, 16800 - 3 * 1920), (9, 0)])
async def test_a_seam_has_the_pause_that_the_text_asks_for(quiet: int, added: int) -> None:
    """Counted with the silence that is there already; it takes no credit, since it is no frame."""
    silent = [Codes(request="r", frame=2 + n, codes=mx.zeros((1, 16), mx.int32)) for n in range(quiet)]
    async with _running(_codec(silence_limit_s=5.0), "codec_decoder") as bench:
        await bench.give(SPEAK, _codes(0), _codes(1), *silent, _codes(2 + quiet))
        await bench.give(Seam(request="r", frames=2 + quiet, pause=0.7), _codes(2 + quiet))
        await bench.give(Ending(request="r", reason="stop", frames=3 + quiet))
        sent = [message for message in bench.got() if isinstance(message, Pcm)]
    assert sum(pcm.frames for pcm in sent) == 3 + quiet
    pauses = [pcm for pcm in sent if pcm.frames == 0]
    assert [len(pcm.samples) // 2 for pcm in pauses] == ([added] if added else [])
    assert all(pcm.frame == 2 + quiet for pcm in pauses)
    assert b"".join(pcm.samples for pcm in sent)[-2:] != b"\0\0"


async def test_a_cancelled_request_hands_out_nothing_more() -> None:
    stage = _codec()
    async with _running(stage, "codec_decoder") as bench:
        await bench.give(SPEAK, *(_codes(n) for n in range(3)))
        bench.got()
        await bench.give(Ending(request="r", reason="cancelled"), _codes(3))
        assert bench.got() == [Ending(request="r", reason="cancelled")]
        assert stage.open_requests() == ()


async def test_silence_beyond_the_limit_ends_with_length() -> None:
    async with _running(_codec(silence_limit_s=0.4, max_chunk_frames=1), "codec_decoder") as bench:
        silent = [Codes(request="r", frame=n, codes=mx.zeros((1, 16), mx.int32)) for n in range(9)]
        await bench.give(SPEAK, *silent)
        ending = bench.got()[-1]
        assert ending == Ending(request="r", reason="length", frames=5)


async def test_close_becomes_the_ending_that_frees_the_stages_behind() -> None:
    class Waiting(PromptStage):
        async def opened(self, state: Any, outbox: Outbox) -> None:
            """No prompt: only the life cycle is looked at."""

    stage = Waiting({"m": _model([])}, nullcontext())
    async with _running(stage, "prompt") as bench:
        await bench.give(SPEAK)
        await bench.give(Close(request="r"), Close(request="r"))
        assert bench.got() == [SPEAK, Ending(request="r", reason="cancelled")]
        assert stage.open_requests() == ()


async def test_nothing_is_computed_for_who_has_left_already() -> None:
    """Sixty long texts, given up before the first was begun, once took as long as if they had been wanted."""
    entered: list[str] = []

    class Counting(PromptStage):
        async def enter(self, speak: Speak) -> Any:
            entered.append(speak.request)
            return await super().enter(speak)

        async def opened(self, state: Any, outbox: Outbox) -> None:
            """No prompt."""

    give, inbox = anyio.create_memory_object_stream[Message](200)
    out, got = anyio.create_memory_object_stream[Message](200)
    speaks = [replace(SPEAK, request=f"r{n}") for n in range(60)]
    for message in [*speaks, *(Close(request=f"r{n}") for n in range(60) if n != 30)]:
        give.send_nowait(message)
    give.close()
    stage = Counting({"m": _model([])}, nullcontext())
    with anyio.fail_after(15), inbox, out, got:
        await stage.run(inbox, Outbox([(out, kinds(LINKS["prompt", "talker"]))]))
        assert entered == ["r30"]
        assert got.receive_nowait() == speaks[30]
        assert stage.open_requests() == ("r30",)


async def test_unknown_model_is_the_callers_mistake() -> None:
    async with _running(PromptStage({}, nullcontext()), "prompt") as bench:
        await bench.give(SPEAK)
        (ending,) = bench.got()
        assert isinstance(ending, Ending)
        assert ending.failure is not None
        assert (ending.failure.status, ending.failure.code) == (404, "model_not_found")


async def test_the_talker_waits_for_text_and_goes_on_with_it() -> None:
    model = _model([7, 8, 9, 10, EOS, 11])
    open_prompt = replace(PROMPT, trailing=mx.zeros((1, 1, 4)), final=False)
    async with _running(_talker(model), "talker") as bench:
        await bench.give(replace(SPEAK, more_text=True), open_prompt, _feedback(0))
        bench.got()
        await bench.give(_feedback(1), Credit(request="r", frames=1))
        # Two frames are made of the text known so far; the decoder is told to hand both out.
        assert bench.got() == [Hold(request="r", frames=2)]
        await bench.give(Rows(request="r", rows=mx.zeros((1, 2, 4)), text_tokens=2, final=True))
        assert [m.frame for m in bench.got() if isinstance(m, Hidden)] == [2]
        for frame in (2, 3, 4):
            await bench.give(_feedback(frame))
        assert bench.got()[-1] == Ending(request="r", reason="stop", frames=4, text_tokens=102)


async def test_hold_hands_out_the_queued_frame() -> None:
    async with _running(_codec(), "codec_decoder") as bench:
        await bench.give(replace(SPEAK, more_text=True), _codes(0), _codes(1))
        assert _levels(bench.got()) == [0]
        await bench.give(Hold(request="r", frames=2))
        assert _levels(bench.got()) == [1]
        await bench.give(_codes(2), Ending(request="r", reason="stop", frames=3))
        assert _levels(bench.got()) == [2]
