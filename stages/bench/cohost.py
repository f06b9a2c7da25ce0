"""`vivavoce bench cohost`: speech beside chat on one device, under each policy.

No MLX in this process, unless the layout runs its device here.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import anyio
import msgspec
import psutil

from ...bus.errors import LayoutError, StartError, VivavoceError
from ...bus.layout import Layout, load
from ...bus.running import Running
from ...configs.models import find, split_name
from .. import device
from . import checkpoint
from .cohost_clients import REPLIES, Clients
from .cohost_records import (
    MEASURES,
    Policy,
    Reply,
    Result,
    Session,
    Span,
    Traces,
    Work,
    beside,
    sum_up,
    table,
)
from .hardware import describe
from .records import About
from .timeline import Picture, draw

SWAPPED_BYTES = 16 << 20
"""Into or out of swap during the run: more than that, and the figures would be swap's."""
PLOTTED_S = 8.0


class Outcome(NamedTuple):
    table: str
    json: str
    svg: str


class _Models(NamedTuple):
    speech: str
    speech_name: str
    chat: str
    chat_name: str


class _Round(NamedTuple):
    """One policy, once."""

    idle: list[Reply]
    beside: dict[Work, Session]
    memory: dict[str, int]
    hardware: str
    traces: Traces


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> Outcome:
    """Raises VivavoceError where the layout lacks chat or speech, a model cannot be had, or the machine swapped."""
    _require_both(load(args.layout))
    with _models(args, say) as models:
        before = swapped()
        rounds: dict[str, list[_Round]] = defaultdict(list)
        for number in range(args.rounds):
            for policy in args.policy if number % 2 == 0 else reversed(args.policy):
                told = partial(_tell, say, f"round {number + 1} of {args.rounds}, {policy}")
                rounds[policy].append(anyio.run(_round, args, models, policy, told))
        refuse_if_swapping(swapped() - before)
    result = Result(
        hardware=rounds[args.policy[0]][0].hardware,
        layout=args.layout,
        speech=models.speech_name,
        chat=models.chat_name,
        rounds=args.rounds,
        measures=MEASURES,
        policies=[_sum_up(policy, rounds) for policy in args.policy],
    )
    svg = draw([picture for policy in args.policy for picture in _pictures(policy, rounds[policy][0])])
    return Outcome(table(result), msgspec.json.format(msgspec.json.encode(result)).decode(), svg)


def _require_both(layout: Layout) -> None:
    """Raises LayoutError, before any model is loaded or written."""
    if layout.place("talker") is None or layout.place("chat") is None:
        raise LayoutError(
            f"the layout {layout.name} does not run both chat and speech: use --layout cohost or together"
        )


def _tell(say: Callable[[str], None], where: str, what: str) -> None:
    say(f"{where}: {what}")


def swapped() -> int:
    """Bytes that went to or from swap since the machine was started."""
    swap = psutil.swap_memory()
    return swap.sin + swap.sout


def refuse_if_swapping(size: int) -> None:
    """Raises VivavoceError."""
    if size > SWAPPED_BYTES:
        raise VivavoceError(
            f"the machine swapped {size / 2**20:.0f} MiB during the run, so nothing is reported: close other "
            "programs or take smaller models (`vivavoce doctor` tells more)"
        )


def _sum_up(policy: str, of_all: dict[str, list[_Round]]) -> Policy:
    rounds = of_all[policy]
    solo = min(median(reply.rtf for one in some for reply in one.idle) for some in of_all.values())
    traces = _joined([one.traces for one in rounds])
    found = {work: beside([one.beside[work] for one in rounds], solo, traces) for work in rounds[0].beside}
    return Policy(
        policy=policy,
        idle=sum_up([reply for one in rounds for reply in one.idle]),
        decoding=found["decoding"],
        prefilling=found.get("prefilling"),
        memory_bytes=rounds[-1].memory,
    )


def _pictures(policy: str, one: _Round) -> list[Picture]:
    pictures: list[Picture] = []
    for work, session in one.beside.items():
        begun = session.both[0].begun
        ended = min(session.both[-1].ended, begun + PLOTTED_S)
        starved = [gap for reply in session.replies for gap in reply.gaps()]
        title = f"{policy}, chat {work}"
        uses = {family: spans.get("use", ()) for family, spans in one.traces.items()}
        pictures.append(Picture(title, begun, ended, {**uses, "nothing to play": starved}))
    return pictures


async def _round(
    args: argparse.Namespace, models: _Models, policy: str, say: Callable[[str], None]
) -> _Round:
    say("loading")
    works: list[Work] = ["decoding", *(["prefilling"] if args.prefill else [])]
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as trace:
        async with Running(_layout(args, models, policy, trace)) as running:
            clients = Clients(running, args)
            say("warming up")
            await clients.warm_up(works)
            say("speech alone")
            idle = await clients.alone()
            sessions: dict[Work, Session] = {}
            for work in works:
                say(f"speech beside chat {work}")
                sessions[work] = await clients.beside(work)
            memory = {process.name: process.rss_bytes for process in running.processes()}
            hardware = describe(About(running.backend, "", device.load_blas(), version("vivavoce"), 0.0))
        return _Round(idle, sessions, memory, hardware, _read(Path(trace)))


def _layout(args: argparse.Namespace, models: _Models, policy: str, trace: str) -> Layout:
    layout = load(args.layout)
    longest = max(len(text) for text in REPLIES)
    speech = msgspec.structs.replace(
        layout.speech,
        models=(models.speech,),
        frames_floor=2 * longest,
        silence_limit_s=3600.0,
        repeat_limit_frames=2 * longest,
    )
    chat = msgspec.structs.replace(layout.chat, models=(models.chat,))
    schedule = msgspec.structs.replace(layout.schedule, policy=policy, trace=trace)
    return msgspec.structs.replace(layout, speech=speech, chat=chat, schedule=schedule)


def _read(folder: Path) -> Traces:
    traces: dict[str, dict[str, list[Span]]] = {"speech": defaultdict(list), "chat": defaultdict(list)}
    for file in folder.glob("*.jsonl"):
        spans = traces[file.stem.rpartition("-")[2]]
        for line in file.read_bytes().splitlines():
            what, begun, ended = msgspec.json.decode(line, type=tuple[str, float, float])
            spans[what].append((begun, ended))
    return traces


def _joined(rounds: Sequence[Traces]) -> Traces:
    """Their times do not overlap."""
    traces: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for one in rounds:
        for family, did in one.items():
            for what, spans in did.items():
                traces[family][what] += spans
    return traces


@contextmanager
def _models(args: argparse.Namespace, say: Callable[[str], None]) -> Generator[_Models]:
    """The models to load; speech never ends by itself."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as name:
        speech, chat = Path(name) / "speech", Path(name) / "chat"
        if args.speech_size:
            speech_name = f"random weights, {args.speech_size} {args.speech_dtype}"
            say(f"writing {speech_name}")
            _write("checkpoint", args.speech_size, args.speech_dtype, str(speech))
        else:
            speech_name, source = split_name(args.speech_model)
            checkpoint.endless(find(source), speech)
        if args.chat_model:
            chat_name, source = split_name(args.chat_model)
            chat = find(source)
        else:
            chat_name = f"random weights, {args.chat_layers} × {args.chat_hidden} {args.chat_dtype}"
            say(f"writing {chat_name}")
            _write("chat_weights", str(chat), str(args.chat_layers), str(args.chat_hidden), args.chat_dtype)
        yield _Models(f"speech={speech}", speech_name, f"chat={chat}", chat_name)


def _write(module: str, *arguments: str) -> None:
    command = [sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments]
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        why = made.stderr.strip().splitlines() or [f"the writer exited with code {made.returncode}"]
        raise StartError(f"random weights could not be written: {why[-1]}")
