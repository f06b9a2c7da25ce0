"""`vivavoce voices` and `vivavoce download`: what models offer and where they are, without loading one."""

import argparse
from typing import Any


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    voices = commands.add_parser("voices", parents=[common], help="list the voices and languages of a model")
    voices.add_argument(
        "--model", default="embedded", help="`embedded`, a folder or a hub id on this machine"
    )
    voices.set_defaults(run=run_voices)
    download = commands.add_parser("download", parents=[common], help="fetch a model from the hub")
    download.add_argument("model", metavar="MODEL", help="a hub id, owner/name")
    download.set_defaults(run=run_download)


def run_voices(args: argparse.Namespace) -> int:
    from ..configs.models import find, split_name
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
    return 0


def run_download(args: argparse.Namespace) -> int:
    from ..configs.models import find

    print(find(args.model))
    return 0
