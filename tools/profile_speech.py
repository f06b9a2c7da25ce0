"""Where the time of a frame goes, stage by stage, beside what the machine's memory and smallest operation allow.

    python tools/profile_speech.py                                    the embedded voice
    python tools/profile_speech.py --model FOLDER --rows 4 --json     frames of four requests in one step
    python tools/profile_speech.py --size 0.6B --dtype bf16           random weights of the released dimensions

First whole requests run through the stages, then every step runs alone, with a barrier behind it. The limit of a
step is the time to read the arrays that it reads, at the bandwidth measured here, and the time of its kernels, if
each were the smallest operation that depends on the one before. Kernels and bytes are counted in the step's graph;
activations are not counted. A model that fits into the processor's cache may beat its limit. A kernel of ours is
one and reads each of its inputs once: also the code predictor's weights, though it needs them fifteen times.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from vivavoce.api.cli_terminal import positive
from vivavoce.bus.errors import VivavoceError
from vivavoce.stages.bench import checkpoint
from vivavoce.stages.bench.compare import model_folder, spread
from vivavoce.stages.bench.hardware import describe
from vivavoce.stages.bench.machine import Machine, measure_machine
from vivavoce.stages.bench.ours import SEED, Ours, load_alone
from vivavoce.stages.bench.records import Plan, Spread
from vivavoce.stages.bench.table import aligned

if TYPE_CHECKING:
    from vivavoce.stages.speech.qwen3.model import Qwen3TTS

TEXT = "The first frame of this sentence leaves the machine before the second one is begun."
CHUNKS = (1, 2, 4, 8)
"""Frames in one step of the codec decoder."""
WARM = 3
"""Steps of each kind that are not counted."""


class Step(msgspec.Struct, frozen=True):
    """One call of one stage."""

    name: str
    frames: int
    """Of each request; 0 of the prompt."""
    rows: int
    """Requests in the call."""
    ms: Spread
    python_ms: float
    """Of it, until Python has queued the work."""
    primitives: int
    kernels: int
    """Primitives that are not only views."""
    bytes: int
    """Read of loaded arrays, weights and caches."""
    limit_ms: float


class Pipelined(msgspec.Struct, frozen=True):
    """Whole requests, one after the other."""

    ms_per_frame: float
    first_audio_ms: float
    host_reads_per_frame: float
    barriers_per_frame: float


class Report(msgspec.Struct, frozen=True):
    model: str
    machine: Machine
    pipelined: Pipelined
    steps: list[Step]


class Profile:
    """Steps of one model."""

    def __init__(self, model: "Qwen3TTS", machine: Machine, rows: int) -> None:
        from vivavoce.stages.bench.graph import arrays

        self._model = model
        self.machine = machine
        self._rows = rows
        self.steps: list[Step] = []
        parts = [vars(model)[name] for name in ("rows", "talker", "predictor", "codec")]
        self._given = {f"w{i}": array for i, array in enumerate(arrays(parts))}

    def add(
        self, name: str, frames: int, rows: int, step: Callable[[Any], Any], first: Any, runs: int
    ) -> Any:
        """Run a step of a stage over and over: it takes what it gave the time before. Returns what it gave last."""
        import mlx.core as mx

        from vivavoce.stages.bench.graph import arrays, census, held_back
        from vivavoce.stages.bench.stopwatch import Stopwatch

        watch, last = Stopwatch(), [first]
        # Taken out of the list, so that nobody holds the caches that the step would write in place.
        for _ in range(WARM):
            last.append(step(last.pop()))
            mx.eval(last)
        kept = {f"k{i}": array for i, array in enumerate(arrays(last))}
        with held_back():
            last.append(step(last.pop()))
        counted = census(last, self._given | kept)
        kept.clear()
        mx.eval(last)
        for _ in range(runs):
            last.append(watch(lambda: step(last.pop())))
        limit_s = counted.bytes / self.machine.bytes_per_s + counted.kernels * self.machine.operation_s
        took = spread([seconds * 1e3 for seconds in watch.piece.total])
        queued = statistics.median(watch.piece.build) * 1e3
        self.steps.append(Step(name, frames, rows, took, queued, *counted, limit_s * 1e3))
        return last.pop()

    def run(self, text: str, voice: str | None, frames: int) -> None:
        import mlx.core as mx

        from vivavoce.stages.speech.qwen3.codec_decoder import to_int16
        from vivavoce.stages.speech.qwen3.prompt import build

        model, rows = self._model, self._rows

        def prompted(_: Any) -> Any:
            prompt = build(model, text, voice=voice, language=None, instructions=None)
            return prompt.pad, *model.talker.start(prompt.prefill, model.sampling, SEED)

        pad, state, code0, hidden = self.add("prompt", 0, 1, prompted, None, 5)
        key, index = state.key, state.frame

        def predicted(_: Any) -> Any:
            given = [hidden] * rows, [code0] * rows, model.sub_sampling, [key] * rows, [index] * rows
            return model.predictor.frames(*given)

        codes, embedding = self.add("code predictor", 1, rows, predicted, None, frames)[0]

        def stepped(before: Any) -> Any:
            return model.talker.steps([one[0] for one in before], [embedding] * rows, [pad] * rows)

        self.add("talker", 1, rows, stepped, [(state, code0, hidden)] * rows, frames)
        for count in CHUNKS:
            chunk = mx.tile(codes[:, None], (1, count, 1))

            def decoded(before: Any, chunk: mx.array = chunk) -> Any:
                pcm, after = model.codec.step(chunk, before[1])
                return to_int16(pcm), after

            runs = max(frames // count, 8)
            self.add("codec decoder", count, 1, decoded, (None, model.codec.start()), runs)


def measure(args: argparse.Namespace, say: Callable[[str], None]) -> Report:
    """Raises VivavoceError where the model cannot be had or has no preset voice."""
    with model_folder(args, say) as (folder, name):
        voice = checkpoint.voice(folder)
        if voice is None:
            raise VivavoceError(f"{name} has no preset voice: measure a custom-voice model")
        plan = Plan("vivavoce", str(folder), "speech", args.text, voice, args.frames)
        say("whole requests")
        with Ours(plan) as ours:
            about = ours.about()
            ours.run()
            runs = [ours.run() for _ in range(3)]
            waits = ours.count()
        say("step by step")
        model = load_alone(plan)
        profile = Profile(model, measure_machine(describe(about)), args.rows)
        profile.run(args.text, voice, args.frames)
        pipelined = Pipelined(
            statistics.median(run.ms_per_frame for run in runs),
            statistics.median(run.ttfa_s for run in runs) * 1e3,
            waits.reads,
            waits.barriers,
        )
        return Report(name, profile.machine, pipelined, profile.steps)


def table(report: Report) -> str:
    machine, whole = report.machine, report.pipelined
    ms, kernels, read, limit_ms = _frame(report.steps)
    rows = [
        ["one call", "ms", "(p95)", "Python ms", "primitives", "kernels", "MB read", "limit ms", "ms ÷ limit"]
    ]
    for step in report.steps:
        what = f", {step.frames} frame{'s' * (step.frames > 1)}" if step.frames else ""
        what += f", {step.rows} requests" if step.rows > 1 else ""
        times = step.ms.median, step.ms.p95, step.python_ms
        counts = step.primitives, step.kernels, f"{step.bytes / 1e6:.1f}"
        limits = step.limit_ms, step.ms.median / step.limit_ms
        rows.append([step.name + what, *(f"{value:.2f}" for value in times), *map(str, counts)])
        rows[-1] += [f"{value:.2f}" for value in limits]
    lines = [
        report.model,
        machine.description,
        f"memory {machine.bytes_per_s / 1e9:.0f} GB/s, smallest operation {machine.operation_s * 1e6:.2f} µs",
        "",
        *aligned(rows),
        "",
        f"a frame of one request, steps alone: {ms:.2f} ms, {kernels:.0f} kernels, {read / 1e6:.1f} MB, "
        f"limit {limit_ms:.2f} ms",
        f"in whole requests: {whole.ms_per_frame:.2f} ms a frame, first audio after {whole.first_audio_ms:.1f} ms, "
        f"{whole.host_reads_per_frame:.2f} host reads and {whole.barriers_per_frame:.2f} barriers a frame",
    ]
    return "\n".join(lines)


def _frame(steps: list[Step]) -> list[float]:
    """ms, kernels, bytes and limit of one frame of one request, with the codec decoder's longest chunk."""
    last = {step.name: step for step in steps if step.frames}.values()
    shares = [
        [
            value / (step.frames * step.rows)
            for value in (step.ms.median, step.kernels, step.bytes, step.limit_ms)
        ]
        for step in last
    ]
    return [sum(column) for column in zip(*shares, strict=True)]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time, kernels and bytes of every stage of speech.")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", default="embedded", help="`embedded`, a folder or a hub id")
    model.add_argument("--size", choices=("0.6B", "1.7B"), help="random weights of the released dimensions")
    parser.add_argument("--dtype", choices=("bf16", "8bit", "4bit"), default="bf16", help="of random weights")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--frames", type=positive, default=48, help="steps of a stage that are timed")
    parser.add_argument("--rows", type=positive, default=1, help="requests in a step of talker and predictor")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, the table on stderr")
    args = parser.parse_args(words)
    report = measure(args, lambda what: print(what, file=sys.stderr))
    print(table(report), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
