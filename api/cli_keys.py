"""`vivavoce keys`: who may connect over the network, to links between machines and to taps."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "keys",
        parents=[common],
        help="make keys for links and taps over the network",
        description=(
            "Make a server's keys, to be named as `keys` in its layout, or with --client those of somebody who "
            "may listen to its taps."
        ),
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="the server's keys; made if they are not there"
    )
    parser.add_argument("--client", metavar="FILE", type=Path, help="make these and let their holder in")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from ..bus import keys
    from ..bus.errors import VivavoceError

    if not args.file.exists():
        _write(args.file, keys.make())
        print(f'{args.file}: made; name it in the layout: keys = "{args.file.resolve()}"')
    elif args.client is None:
        raise VivavoceError(f"{args.file} exists: remove it first, or add somebody to it with --client")
    if args.client is not None:
        server, client = keys.read(args.file), keys.make()
        if server.server is not None:
            raise VivavoceError(f"{args.file} holds a client's keys: give the server's")
        _write(args.client, replace(client, server=server.public))
        keys.rewrite(replace(server, clients=(*server.clients, client.public)), args.file)
        print(f"{args.client}: made; its holder is let in by servers started from now on")
    return 0


def _write(file: Path, made: Any) -> None:
    from ..bus import keys
    from ..bus.errors import VivavoceError

    try:
        keys.write(made, file)
    except FileExistsError:
        raise VivavoceError(f"{file} exists: remove it first, or name another") from None
