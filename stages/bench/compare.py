"""Runs the sides by turns and sums up. Starts worker processes; uses no MLX itself."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from ...bus.errors import StartError, VivavoceError
from ...configs.models import find, split_name
from . import checkpoint
from .hardware import describe
from .records import MEASURES, About, Name, Pieces, Plan, Ratio, Result, Run, Side, Spread, Waits
from .table import table

T = TypeVar("T")


class Worker:
    """One side in its own process, to be used with `with`. It waits, using no CPU, while the other is measured."""

    def __init__(self, plan: Plan) -> None:
        self.side = plan.side
        self._plan = plan
        self._stack = ExitStack()
        self.runs: list[Run] = []

    def __enter__(self) -> Self:
        """Raises StartError when the side cannot load."""
        self._log = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        # A session of its own: Ctrl-C is ours to handle, and a worker ends when its input does.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker", msgspec.json.encode(self._plan).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(self._end)
        with ExitStack() as stack:
            stack.callback(self._stack.close)
            self.about = self._read(About)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, word: str, kind: type[T]) -> T:
        """Send a command and wait for its answer. Raises StartError with the worker's last words where it died."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the worker died; reading says why
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        return self._read(kind)

    def _read(self, kind: type[T]) -> T:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            words = [line for line in self._log.read().splitlines() if line.strip()]
            raise StartError(
                f"{self.side} could not be measured: {words[-1] if words else 'it died silently'}"
            )
        return msgspec.json.decode(line, type=kind)

    def _end(self) -> None:
        """Politely when it waits for us, by force when it is at work."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[str, str]:
    """`vivavoce bench speech`: (table, JSON). `say` hears what is being done."""
    result = measure(args, say)
    return table(result), msgspec.json.format(msgspec.json.encode(result)).decode()


def measure(args: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """Measure as the command line says. Raises VivavoceError where a side cannot be measured."""
    with ExitStack() as stack:
        folder, model = stack.enter_context(model_folder(args, say))
        voice = args.voice or checkpoint.voice(folder)
        if voice is None:
            raise VivavoceError(f"{model} has no preset voice: measure a custom-voice model")
        sides: list[Name] = ["vivavoce", "mlx-audio"] if args.against else ["vivavoce"]
        workers: list[Worker] = []
        for side in sides:
            say(f"loading {side}")
            plan = Plan(side, str(folder), args.layout, args.text, voice, args.frames)
            workers.append(stack.enter_context(Worker(plan)))
        alternate(workers, args.runs, say)
        summed: list[Side] = []
        for worker in workers:
            say(f"{worker.side}, step by step")
            waits = worker.ask("count", Waits)
            summed.append(sum_up(worker.about, worker.runs, waits, worker.ask("pieces", Pieces)))
    ours, theirs = summed[0], summed[1] if args.against else None
    return Result(
        hardware=describe(workers[0].about),
        model=model,
        text=args.text,
        frames=args.frames,
        runs=args.runs,
        measures=MEASURES,
        vivavoce=ours,
        mlx_audio=theirs,
        ratio=None if theirs is None else compare(ours, theirs),
    )


def alternate(workers: Sequence[Worker], runs: int, say: Callable[[str], None]) -> None:
    """One warm-up each, then `runs` rounds; who goes first changes from round to round."""
    for worker in workers:
        worker.ask("run", Run)
    for number in range(runs):
        for worker in workers if number % 2 == 0 else reversed(workers):
            say(f"run {number + 1} of {runs}: {worker.side}")
            worker.runs.append(worker.ask("run", Run))


def sum_up(about: About, runs: Sequence[Run], waits: Waits, pieces: Pieces) -> Side:
    """Medians and 95th percentiles of one side."""
    named = {name: getattr(pieces, name) for name in ("talker", "code_predictor", "codec_decoder")}
    stages = {name: spread([s * 1000 for s in piece.total]) for name, piece in named.items()}
    if pieces.codec_decoder_8:
        stages["codec_decoder_8"] = spread([s * 1000 for s in pieces.codec_decoder_8])
    return Side(
        version=about.version,
        load_s=about.load_s,
        runs=len(runs),
        frames=[run.frames for run in runs],
        ms_per_frame=spread([run.ms_per_frame for run in runs]),
        ttfa_ms=spread([run.ttfa_s * 1000 for run in runs]),
        rtf=spread([run.rtf for run in runs]),
        cpu_ms_per_frame=spread([run.cpu_s * 1000 / run.frames for run in runs]),
        peak_memory_bytes=max(run.peak_bytes for run in runs),
        stage_ms=stages,
        python_ms_per_frame=sum(statistics.median(piece.build) * 1000 for piece in named.values()),
        host_reads_per_frame=waits.reads,
        barriers_per_frame=waits.barriers,
        retraces=waits.traces,
    )


def compare(ours: Side, theirs: Side) -> Ratio:
    """Theirs ÷ ours, of the medians."""
    return Ratio(
        ms_per_frame=theirs.ms_per_frame.median / ours.ms_per_frame.median,
        ttfa=theirs.ttfa_ms.median / ours.ttfa_ms.median,
        rtf=theirs.rtf.median / ours.rtf.median,
        cpu_ms_per_frame=theirs.cpu_ms_per_frame.median / ours.cpu_ms_per_frame.median,
        peak_memory=theirs.peak_memory_bytes / ours.peak_memory_bytes,
    )


def spread(values: Sequence[float]) -> Spread:
    """Median and 95th percentile (nearest rank) of at least one value."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[max(-(-len(ordered) * 95 // 100) - 1, 0)])


@contextmanager
def model_folder(args: argparse.Namespace, say: Callable[[str], None]) -> Generator[tuple[Path, str]]:
    """(folder that both sides load, what it holds); removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as name:
        folder = Path(name) / "model"
        if args.size:
            say(f"writing random weights, {args.size} {args.dtype}")
            made = subprocess.run(
                [sys.executable, "-P", "-m", f"{__package__}.checkpoint", args.size, args.dtype, str(folder)],
                stderr=subprocess.PIPE,
                text=True,
            )
            if made.returncode:
                raise StartError(
                    f"random weights could not be written: {made.stderr.strip().splitlines()[-1]}"
                )
            yield folder, f"random weights, {args.size} {args.dtype}"
            return
        label, source = split_name(args.model)
        checkpoint.endless(find(source), folder)
        yield folder, label
