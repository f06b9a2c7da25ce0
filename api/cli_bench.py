"""`vivavoce bench`: measure this installation, beside mlx-audio where asked."""

import argparse
import importlib
import sys
from typing import Any

from . import cli_bench_cohost
from .cli_terminal import Line, positive

TEXT = (
    "The first frame of this sentence leaves the machine before the second one is begun, and all that "
    "follows is made while you are listening to what came before it."
)


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "bench", parents=[common], help="measure speed, beside mlx-audio where asked"
    )
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    speech = kinds.add_parser(
        "speech",
        parents=[common],
        help="time per frame by stage, first audio, memory",
        description="Measure speech in-process: a fixed number of frames, the end of speech out of reach.",
    )
    model = speech.add_mutually_exclusive_group()
    model.add_argument(
        "--model", default="embedded", help="`embedded`, a folder or a hub id (default: embedded)"
    )
    model.add_argument(
        "--size", choices=("0.6B", "1.7B"), help="random weights of the released dimensions instead"
    )
    speech.add_argument(
        "--dtype",
        choices=("bf16", "8bit", "4bit"),
        default="bf16",
        help="of the random weights (default: bf16)",
    )
    speech.add_argument(
        "--against", choices=("mlx-audio",), help="run its own streaming loop in alternation with ours"
    )
    speech.add_argument("--runs", type=positive, default=5, help="measured runs of each side (default: 5)")
    speech.add_argument(
        "--frames", type=positive, default=64, help="codec frames of a run, 80 ms each (default: 64)"
    )
    speech.add_argument("--text", default=TEXT, help="what is spoken (default: one sentence of 33 words)")
    speech.add_argument("--voice", help="default: the model's first")
    speech.add_argument("--layout", default="speech", help="a layout's name or file, for our settings")
    speech.add_argument(
        "--path",
        choices=("preset", "design", "clone-icl", "clone-xvector"),
        help="measure only first audio: of a voice's first and second request",
    )
    speech.add_argument(
        "--preset-model", help="with --path: a model whose preset voice is measured beside it"
    )
    speech.add_argument(
        "--clone-layout",
        choices=("official", "reference_first"),
        default="official",
        help="with --path clone-icl: the prompt's layout (default: official)",
    )
    speech.add_argument(
        "--json", action="store_true", help="print JSON on standard output, the table on stderr"
    )
    speech.set_defaults(run=run, module="compare")
    _add_chat(kinds, common)
    cli_bench_cohost.add(kinds, common)


def _add_chat(kinds: Any, common: argparse.ArgumentParser) -> None:
    chat = kinds.add_parser(
        "chat",
        parents=[common],
        help="decoding, first token with and without the prompt cache, several clients",
        description="Measure chat, by turns with mlx-lm's own loop or server where asked.",
    )
    chat.add_argument("--model", required=True, help="a folder in mlx-lm's form or a hub id")
    chat.add_argument(
        "--against",
        choices=("mlx-lm", "mlx-lm-server"),
        help="by turns with its own loop, in-process, or with its server, over HTTP",
    )
    chat.add_argument("--runs", type=positive, default=3, help="measured runs of each side (default: 3)")
    chat.add_argument(
        "--tokens",
        type=positive,
        default=64,
        help="decoded in a run, fewer where that takes long (default: 64)",
    )
    chat.add_argument("--prompt-tokens", type=positive, default=2000, help="for first tokens (default: 2000)")
    chat.add_argument(
        "--json", action="store_true", help="print JSON on standard output, the table on stderr"
    )
    chat.set_defaults(run=run, module="chat")


def run(args: argparse.Namespace) -> int:
    # By name, as the running layout does it: the API's packages do not import stages.
    module = "ways" if getattr(args, "path", None) else args.module
    if args.module == "chat" and args.against == "mlx-lm-server":
        module = "chat_http"
    compare = importlib.import_module(f"vivavoce.stages.bench.{module}")
    line = Line()
    try:
        table, result = compare.bench(args, line.show)
    finally:
        line.clear()
    print(table, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(result)
    return 0
