"""`vivavoce quantize`: a smaller copy of a speech checkpoint, and how near it is to the original."""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cli_terminal import Line, columns

QWEN3 = "vivavoce.stages.speech.qwen3"


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "quantize",
        parents=[common],
        help="write a smaller copy of a speech model",
        description=(
            "8bit: talker and predictor in 8 bits. mixed: the talker in 4, the predictor and the heads in 8. "
            "4bit: everything in 4 bits, at the cost of wrong words. Embeddings and codec stay as they are."
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="`embedded`, a folder or a hub id, not quantised yet")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="to be made")
    parser.add_argument("--preset", choices=("8bit", "mixed", "4bit"), default="8bit", help="default: 8bit")
    parser.add_argument(
        "--no-check", action="store_true", help="do not compare it with the original, which takes a while"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..configs.models import find, split_name

    # By name, as the running layout does it: the API's packages do not import stages.
    device = importlib.import_module("vivavoce.stages.device")
    device.setup()
    source, line = find(split_name(args.model)[1]), Line()

    def show(what: str) -> Callable[[float], None]:
        return lambda done: line.show(f"{what} {done:.0%} …")

    if args.preset == "4bit":
        print("4 bits for everything cost wrong words; mixed is nearly as small.", file=sys.stderr)
    try:
        made = importlib.import_module(f"{QWEN3}.quantize")
        made.quantize(source, args.folder, args.preset, show("quantising"))
        print(f"{args.folder}: {args.preset}", flush=True)
        if not args.no_check:
            compared = importlib.import_module(f"{QWEN3}.agreement").agreement(
                source, args.folder, progress=show("comparing")
            )
            line.clear()
            print(_report(compared))
    finally:
        line.clear()
        device.release()
    return 0


def _report(compared: Any) -> str:
    groups = [f"{share:.1%}" for share in compared.groups]
    rows = [
        ("same likeliest code 0", groups[0]),
        ("codes 1 to 15", f"{sum(compared.groups[1:]) / 15:.1%} (each: {', '.join(groups[1:])})"),
        ("duration against the original", f"{compared.duration:.2f}"),
        ("frames compared", str(compared.frames)),
    ]
    return columns(rows)
