"""`vivavoce bench speech --path …`: first audio of a voice's first and second request, beside a preset's."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec
import numpy as np

from ...bus.errors import StartError, VivavoceError
from ...bus.layout import load
from ...bus.messages import Speak, why
from ...bus.running import Running
from ...configs.models import find, split_name
from . import checkpoint

KINDS = {"preset": "custom_voice", "design": "voice_design", "clone-icl": "base", "clone-xvector": "base"}
DESCRIPTION = (
    "A calm old man with a rough, low voice who takes his time between the words and smiles a little."
)
REFERENCE_TEXT = "This is what is said in the recording that the voice is taken from, word for word."


class Report(msgspec.Struct):
    """Milliseconds from the request to its first audio, medians."""

    path: str
    model: str
    backend: str
    runs: int
    first_ms: float
    """A voice that has not been heard before."""
    second_ms: float
    """The same voice, another text."""
    preset_ms: float | None
    second_to_preset: float | None


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[str, str]:
    """(table, JSON). `say` hears what is being done."""
    report = measure(args, say)
    rows = [("first audio of a new voice", report.first_ms), ("of its second request", report.second_ms)]
    if report.preset_ms is not None:
        rows.append(("of a preset voice", report.preset_ms))
    lines = [f"{report.path}, {report.model}, {report.backend}, median of {report.runs}"]
    lines += [f"  {label:<28}{value:9.1f} ms" for label, value in rows]
    if report.second_to_preset is not None:
        lines.append(f"  {'second ÷ preset':<28}{report.second_to_preset:9.2f}")
    return "\n".join(lines), msgspec.json.format(msgspec.json.encode(report)).decode()


def measure(args: argparse.Namespace, say: Callable[[str], None]) -> Report:
    with _folders(args, say) as models:
        return anyio.run(_measure, args, models, say)


async def _measure(args: argparse.Namespace, models: dict[str, Path], say: Callable[[str], None]) -> Report:
    layout = load(args.layout)
    named = tuple(f"{name}={folder}" for name, folder in models.items())
    speech = msgspec.structs.replace(
        layout.speech, models=named, frames_floor=args.frames, clone_layout=args.clone_layout
    )
    first, second, preset = list[float](), list[float](), list[float]()
    async with Running(msgspec.structs.replace(layout, speech=speech), lambda _: None) as running:
        kinds = {model.name: model.kind for model in running.models}
        if kinds["measured"] != KINDS[args.path]:
            raise VivavoceError(
                f"--path {args.path} needs a {KINDS[args.path]} model, not {kinds['measured']}"
            )
        voices = {model.name: model.voices for model in running.models}

        async def ttfa(model: str, text: str, **fields: Any) -> float:
            speak = Speak(request=f"{next(numbers)}", model=model, text=text, seed=1, max_frames=args.frames)
            start = anyio.current_time()
            async with running.client.speak(msgspec.structs.replace(speak, **fields)) as request:
                async for _ in request:
                    first_ms = (anyio.current_time() - start) * 1e3
                    break
                else:
                    raise VivavoceError(why(request.ending, "there was no audio"))
                async for _ in request:  # to the end: the next request finds the device idle
                    pass
            return first_ms

        for run in range(-1, args.runs):  # the first one warms up
            say(f"run {max(run + 1, 0)} of {args.runs}")
            fields = _voice(args.path, run, voices["measured"])
            times = (
                await ttfa("measured", args.text, **fields),
                await ttfa("measured", f"And {args.text}", **fields),
            )
            beside = None
            if "preset" in models:
                beside = await ttfa("preset", f"And {args.text}", voice=voices["preset"][0])
            if run >= 0:
                first.append(times[0])
                second.append(times[1])
                preset += [] if beside is None else [beside]
        backend = running.backend
    beside = median(preset) if preset else None
    ratio = None if beside is None else median(second) / beside
    what = args.size and f"random weights, {args.size} {args.dtype}"
    return Report(
        args.path, what or args.model, backend, args.runs, median(first), median(second), beside, ratio
    )


def _voice(path: str, run: int, presets: tuple[str, ...]) -> dict[str, Any]:
    """A voice that no run before has had."""
    match path:
        case "preset":
            return {"voice": presets[run % len(presets)]}
        case "design":
            return {"instructions": f"{DESCRIPTION} He is {60 + run} years old."}
        case _:
            return {
                "reference": _tone(100 + 7 * run),
                "reference_text": REFERENCE_TEXT if path == "clone-icl" else None,
            }


def _tone(pitch: float, seconds: float = 6.0) -> bytes:
    """A steady vowel-like sound, 16-bit PCM at 24 kHz."""
    time = np.arange(round(seconds * 24000)) / 24000
    tone = np.sum([np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 20)], axis=0)
    return np.round(5000 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))).astype("<i2").tobytes()


@contextmanager
def _folders(args: argparse.Namespace, say: Callable[[str], None]) -> Generator[dict[str, Path]]:
    """The model to measure, and one with presets beside it where there is one. They never end by themselves."""
    kind = KINDS[args.path]
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as name:
        made = {"measured": Path(name) / "measured"}
        if args.size:
            wanted = {"measured": kind} | ({} if args.path == "preset" else {"preset": "custom_voice"})
            for label, one in wanted.items():
                say(f"writing random weights, {one} {args.size} {args.dtype}")
                made[label] = Path(name) / label
                _random(args.size, args.dtype, made[label], one)
        else:
            checkpoint.endless(find(split_name(args.model)[1]), made["measured"])
            if args.preset_model:
                made["preset"] = Path(name) / "preset"
                checkpoint.endless(find(split_name(args.preset_model)[1]), made["preset"])
        yield made


def _random(size: str, dtype: str, folder: Path, kind: str) -> None:
    command = [sys.executable, "-P", "-m", f"{__package__}.checkpoint", size, dtype, str(folder), kind]
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        raise StartError(f"random weights could not be written: {made.stderr.strip().splitlines()[-1]}")


numbers = count()
