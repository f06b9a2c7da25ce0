"""`vivavoce bench cohost`: the options."""

import argparse
import importlib
import math
import os
import signal
from pathlib import Path
from typing import Any

from .cli_terminal import Line, interrupted_by, positive

POLICIES = ("race", "pace", "deadline")
DTYPES = ("bf16", "8bit", "4bit")


def add(kinds: Any, common: argparse.ArgumentParser) -> None:
    cohost = kinds.add_parser(
        "cohost",
        parents=[common],
        help="speech beside chat on one device: first audio, underruns, chat's rate under each policy",
        description="Speak six replies, alone and while chat works without a pause, under each policy by turns.",
    )
    speech = cohost.add_mutually_exclusive_group()
    speech.add_argument(
        "--speech-model", default="embedded", help="`embedded`, a folder or a hub id (default: embedded)"
    )
    speech.add_argument(
        "--speech-size", choices=("0.6B", "1.7B"), help="random weights of the released dimensions instead"
    )
    cohost.add_argument("--speech-dtype", choices=DTYPES, default="bf16", help="of the random weights")
    chat = cohost.add_mutually_exclusive_group(required=True)
    chat.add_argument("--chat-model", help="a folder in mlx-lm's form or a hub id")
    chat.add_argument(
        "--chat-layers", type=positive, help="random weights instead, so many layers (32: as Mistral 7B)"
    )
    cohost.add_argument(
        "--chat-hidden", type=_width, default=4096, help="width of the random layers (default: 4096)"
    )
    cohost.add_argument("--chat-dtype", choices=DTYPES, default="bf16", help="of the random weights")
    cohost.add_argument("--layout", default="cohost", help="a layout's name or file (default: cohost)")
    cohost.add_argument(
        "--policy", action="append", choices=POLICIES, help="repeatable (default: each of them)"
    )
    cohost.add_argument("--rounds", type=positive, default=3, help="how often each policy runs (default: 3)")
    cohost.add_argument(
        "--prefill", action="store_true", help="also beside chat that reads prompts without a pause"
    )
    cohost.add_argument(
        "--prompt-tokens", type=positive, default=2000, help="of each of those (default: 2000)"
    )
    cohost.add_argument(
        "--frames", type=positive, help="frames of a reply, 80 ms each (default: by its text, 6 to 8 s)"
    )
    cohost.add_argument(
        "--alone",
        type=_seconds,
        default=6.0,
        metavar="SECONDS",
        help="chat without speech, in all (default: 6)",
    )
    cohost.add_argument(
        "--json", type=_file, metavar="FILE", help="write the result as JSON, with what each figure means"
    )
    cohost.add_argument(
        "--plot", type=_file, metavar="FILE", help="write who used the device when, as an SVG picture"
    )
    cohost.set_defaults(run=run)


def _width(text: str) -> int:
    value = int(text)
    if value < 128 or value % 128:
        raise argparse.ArgumentTypeError("a multiple of 128 is allowed")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:  # nan is none either
        raise argparse.ArgumentTypeError("a number above 0 is allowed")
    return value


def _file(text: str) -> Path:
    """Refused before the run, not behind it."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def run(args: argparse.Namespace) -> int:
    args.policy = tuple(dict.fromkeys(args.policy or POLICIES))
    # By name, as the running layout does it: the API's packages do not import stages.
    cohost = importlib.import_module("vivavoce.stages.bench.cohost")
    line = Line()
    try:
        with interrupted_by(signal.SIGTERM, signal.SIGHUP):  # gigabytes of weights may lie in its folders
            outcome = cohost.bench(args, line.show)
    finally:
        line.clear()
    print(outcome.table)
    if args.json:
        args.json.write_text(outcome.json)
    if args.plot:
        args.plot.write_text(outcome.svg)
    return 0
