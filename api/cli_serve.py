"""`vivavoce serve`: the HTTP server, with settings of the layout replaced by those of the command line."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from . import cli_chat, cli_voice
from .cli_terminal import Line, columns, size

if TYPE_CHECKING:
    from ..bus.layout import Layout
    from ..bus.running import Running

KEY = "VIVAVOCE_API_KEY"


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("serve", parents=[common], help="serve speech and chat over HTTP")
    parser.add_argument(
        "--layout", help="a layout's name or file (default: speech; together where a chat model is given)"
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """What the command line may set in the place of the layout; for `configured`."""
    parser.add_argument(
        "--model",
        "--speech-model",
        action="append",
        default=[],
        help="`embedded`, a folder or a hub id, or name=source; repeatable (default: the layout's)",
    )
    cli_chat.add_settings(parser)
    parser.add_argument("--host", help="address to listen on (default: the layout's)")
    parser.add_argument("--port", type=int, help="0 takes a free one (default: the layout's)")
    parser.add_argument("--api-key", metavar="KEY", help=f"asked of every client (default: ${KEY}, if set)")


def run(args: argparse.Namespace) -> int:
    import anyio

    from ..bus import logs
    from .cli_plan import refuse_if_too_large
    from .exchange import request_name
    from .serve import serve

    layout = configured(args)
    refuse_if_too_large(layout)
    logs.setup(lambda: {"request_id": name} if (name := request_name.get()) else {})
    line = Line()

    def listening(url: str, running: "Running") -> None:
        line.clear()
        names = ", ".join(model.name for model in running.models)
        print(f"vivavoce serves {names} on {url} ({running.backend})", flush=True)
        rows = [
            (f"process {status.name}", f"pid {status.pid}", size(status.rss_bytes), ", ".join(status.stages))
            for status in running.processes()
        ]
        print(columns(rows), flush=True)
        for told in (
            *cli_voice.summary(layout, running.models),
            *([f"tap {running.tap}"] if running.tap else []),
        ):
            print(f"  {told}", flush=True)
        for hint in running.hints:
            print(f"Faster: {hint}", file=sys.stderr)

    async def main() -> int:
        return await serve(layout, notify=line.notice, listening=listening)

    try:
        return anyio.run(main)
    finally:
        line.clear()


def configured(args: argparse.Namespace) -> "Layout":
    """The layout with what the command line gives in its place. Raises LayoutError for a wrong one."""
    import msgspec

    from ..bus.errors import LayoutError
    from ..bus.layout import load
    from ..bus.layout_check import find_problem
    from .cli_speak import with_models

    name = args.layout or ("together" if args.chat_model else "speech")
    layout = cli_chat.with_chat(with_models(load(name), args.model), args)
    given = {
        "host": args.host,
        "port": args.port,
        "api_key": os.environ.get(KEY) if args.api_key is None else args.api_key,
    }
    api = msgspec.structs.replace(
        layout.api, **{key: value for key, value in given.items() if value is not None}
    )
    layout = msgspec.structs.replace(layout, api=api)
    if problem := find_problem(layout):
        raise LayoutError(f"command line: {problem}")
    return layout
