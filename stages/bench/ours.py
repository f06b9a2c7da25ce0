"""Our side: whole requests through the actors of a running layout; the compiled steps one by one beside it."""

import gc
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from anyio.from_thread import start_blocking_portal

from ...bus.layout import Layout, load
from ...bus.messages import Speak, why
from ...bus.running import Running
from .. import device
from .records import About, Pieces, Plan, Run, Waits

if TYPE_CHECKING:
    from ..speech.qwen3.model import Qwen3TTS

SEED = 1


class Ours:
    """Loads on entering. Raises StartError without a usable model."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._number = 0

    def __enter__(self) -> Self:
        start = time.perf_counter()
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            running = self._portal.wrap_async_context_manager(Running(_layout(self._plan)))
            self._running = stack.enter_context(running)
            self._stack = stack.pop_all()
        self._load_s = time.perf_counter() - start
        self._traces = device.traces()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def about(self) -> About:
        import mlx.core as mx

        info = mx.device_info()
        name = str(info.get("device_name") or info.get("architecture") or "")
        return About(self._running.backend, name, device.load_blas(), _version("vivavoce"), self._load_s)

    def run(self) -> Run:
        import mlx.core as mx

        mx.reset_peak_memory()
        cpu = time.process_time()
        frames, ttfa, total = self._portal.call(self._speak)
        return Run(frames, ttfa, total, time.process_time() - cpu, mx.get_peak_memory())

    def count(self) -> Waits:
        from .counting import Counting

        with Counting() as counting:
            frames, _, _ = self._portal.call(self._speak)
        traces = None if device.on_cpu() else device.traces() - self._traces
        return Waits(counting.reads / frames, counting.barriers / frames, traces)

    def pieces(self) -> Pieces:
        """Stops the layout: its device thread's model is freed, and one of this thread's own is stepped."""
        self._stack.close()
        gc.collect()
        return step_by_step(self._plan)

    async def _speak(self) -> tuple[int, float, float]:
        plan = self._plan
        self._number += 1
        speak = Speak(
            request=f"bench-{self._number}",
            model=self._running.models[0].name,
            text=plan.text,
            voice=plan.voice,
            seed=SEED,
            max_frames=plan.frames,
            lookahead=plan.frames + 8,
        )
        frames, first = 0, 0.0
        start = time.perf_counter()
        async with self._running.client.speak(speak) as request:
            async for audio in request:
                frames += audio.frames
                first = first or request.arrived
        ending = request.ending
        if ending is None or ending.reason == "error":
            raise RuntimeError(why(ending, "no ending"))
        return frames, first - start, request.arrived - start


def _layout(plan: Plan) -> Layout:
    """The layout to measure with the plan's model, frame budget and no watchdog in the way."""
    layout = load(plan.layout)
    speech = msgspec.structs.replace(
        layout.speech,
        models=(plan.folder,),
        frames_floor=plan.frames,
        silence_limit_s=3600.0,
        repeat_limit_frames=plan.frames + 1,
    )
    return msgspec.structs.replace(layout, speech=speech)


def load_alone(plan: Plan) -> "Qwen3TTS":
    """The plan's model, warm, on the calling thread."""
    device.setup()
    from ..speech.qwen3.checkpoint import load as load_model

    layout = _layout(plan)
    dtype = None if layout.speech.dtype == "auto" else layout.speech.dtype
    model = load_model(Path(plan.folder), dtype=dtype)
    model.warm_up()
    return model


def step_by_step(plan: Plan) -> Pieces:
    """Every step alone, a barrier behind it, on the calling thread."""
    model = load_alone(plan)
    import mlx.core as mx

    from ..speech.qwen3.codec_decoder import to_int16
    from ..speech.qwen3.prompt import build
    from .stopwatch import Stopwatch

    talker, predictor, codec, codec_8 = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch(8)
    prompt = build(model, plan.text, voice=plan.voice, language=None, instructions=None)
    state, code0, hidden = model.talker.start(prompt.prefill, model.sampling, SEED)
    mx.eval(code0, hidden)  # the prompt's own pass is no frame's work
    stream, stream_8, recent = model.codec.start(), model.codec.start(), list[mx.array]()

    def decode(codes: mx.array, past: Any) -> tuple[mx.array, Any]:
        pcm, past = model.codec.step(codes, past)
        return to_int16(pcm), past

    for _ in range(plan.frames):
        codes, embedding = predictor(
            lambda: model.predictor.frame(hidden, code0, model.sub_sampling, state.key, state.frame)  # noqa: B023
        )
        _, stream = codec(lambda: decode(codes[:, None], stream))  # noqa: B023
        recent.append(codes[:, None])
        if len(recent) == 8:
            joined = mx.concatenate(recent, axis=1)
            _, stream_8 = codec_8(lambda: decode(joined, stream_8))  # noqa: B023
            recent = []
        state, code0, hidden = talker(lambda: model.talker.step(state, embedding, prompt.pad))  # noqa: B023
    return Pieces(talker.piece, predictor.piece, codec.piece, codec_8.piece.total or None)


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
