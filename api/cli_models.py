"""`vivavoce voices` and `vivavoce download`: what models offer and where they are, without loading one."""

import argparse
from typing import Any

from . import cli_voice


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    voices = commands.add_parser(
        "voices", parents=[common], help="list a model's voices and languages; store and remove voices"
    )
    of_model = "`embedded`, `embedded-base`, `embedded-design`, a folder or a hub id on this machine"
    voices.add_argument("--model", default="embedded", help=of_model)
    voices.set_defaults(run=run_voices)
    actions = voices.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="list voices and languages")
    listing.add_argument("--model", default=argparse.SUPPRESS, help=of_model)
    cli_voice.add(actions)
    download = commands.add_parser("download", parents=[common], help="fetch a model from the hub")
    download.add_argument("model", metavar="MODEL", help="a hub id, owner/name")
    download.set_defaults(run=run_download)


def run_voices(args: argparse.Namespace) -> int:
    from ..configs.models import SHIPPED, find, split_name
    from .cli_checkpoint import read_config

    name, source = split_name(args.model)
    config = read_config(find(source, download=False))
    talker = config.talker_config
    print(f"{name}: {config.tts_model_type}, {config.size}")
    for voice in sorted(talker.spk_id):
        dialect = talker.spk_is_dialect.get(voice)
        print(f"  {voice}{f' ({dialect})' if isinstance(dialect, str) else ''}")
    if not talker.spk_id:
        print("  no preset voices")
    print(f"languages: {', '.join(['auto', *sorted(talker.codec_language_id)])}")
    if source in SHIPPED:
        print(f"also embedded: {', '.join(sorted(SHIPPED.keys() - {source}))}")
    cli_voice.show(config.tts_model_type)
    return 0


def run_download(args: argparse.Namespace) -> int:
    from ..configs.models import find

    print(find(args.model))
    return 0
