"""The command `vivavoce`. Each group of commands is one module; nothing heavy is imported before a command runs.

The modules are imported within `main`, where Ctrl-C is no traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell reports it: 128 + SIGINT."""


def parser() -> argparse.ArgumentParser:
    """Everything the command line accepts."""
    from . import (
        cli_bench,
        cli_chat,
        cli_doctor,
        cli_keys,
        cli_layout,
        cli_models,
        cli_quantize,
        cli_serve,
        cli_speak,
        cli_tap,
    )

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of a failure"
    )
    top = _Parser(prog="vivavoce", description="A local speech-and-chat server on MLX.", parents=[common])
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for group in (
        cli_speak,
        cli_chat,
        cli_serve,
        cli_models,
        cli_quantize,
        cli_layout,
        cli_tap,
        cli_keys,
        cli_bench,
        cli_doctor,
    ):
        group.add(commands, common)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0 done, 1 failed (one sentence on stderr), 2 wrong usage, 130 interrupted."""
    args = argparse.Namespace()
    try:
        args = parser().parse_args(arguments)
        return args.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the command's boundary: a person gets one sentence
        if getattr(args, "debug", False):
            raise
        from ..bus.errors import innermost

        return _failed(innermost(error))


def _failed(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has left, and knows. The interpreter would complain once more at its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        print(f"vivavoce: {_sentence(error)}", file=sys.stderr)
    return 1


def _sentence(error: BaseException) -> str:
    from ..bus.errors import VivavoceError

    text = " ".join(str(error).split())
    if isinstance(error, VivavoceError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text} (--debug shows where)"


class _Parser(argparse.ArgumentParser):
    """Tells of arguments that a command does not know with that command's usage, not the usage of `vivavoce`."""

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        known, unknown = super().parse_known_args(*given, **named)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"vivavoce {version('vivavoce')}")
        parser.exit()
