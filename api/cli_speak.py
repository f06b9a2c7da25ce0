"""`vivavoce speak`: one text through the whole pipeline, in this process, into a file, a pipe or the speakers."""

import argparse
import re
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_terminal import Line, words

if TYPE_CHECKING:
    from ..bus.client import SpeechRequest
    from ..bus.control import ModelInfo
    from ..bus.layout import Layout
    from ..bus.messages import Ending, Speak
    from .cli_sinks import Sink
    from .cloning import Likeness

ENDINGS = {".ogg": "opus", ".raw": "pcm"}
"""Formats of the files whose ending is not the format's own name."""

_FILE = re.compile(r"(?!\w+://)\S*/\S*\.[a-z]\w{0,4}|\S+\.(txt|md)", re.ASCII | re.IGNORECASE)
"""What nobody would have spoken: a path, or the name of a text file."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "speak",
        parents=[common],
        help="speak a text into a file, a pipe or the speakers",
        description="Speak a text. The name of a file stands for what is in it, and - for standard input.",
    )
    parser.add_argument("text", metavar="TEXT|-|FILE")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", metavar="FILE", help="default: speech.wav; - is standard output")
    where.add_argument("--play", action="store_true", help="play it while it is made (extra `play`)")
    parser.add_argument(
        "--model",
        help="`embedded`, `embedded-base` (clones), `embedded-design` (described voices), a folder or a hub id "
        "(default: the layout's first)",
    )
    parser.add_argument(
        "--voice", help="a preset or stored voice (default: the model's first; see `vivavoce voices`)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--instructions", type=words, help="how to speak, for models that take instructions")
    how.add_argument(
        "--describe", type=words, metavar="VOICE", help="the voice in words, for VoiceDesign models"
    )
    parser.add_argument("--ref-audio", metavar="FILE", help="a recording of the voice to imitate")
    parser.add_argument("--ref-text", type=words, metavar="TEXT", help="what is said in it")
    parser.add_argument("--x-vector", action="store_true", help="imitate by the x-vector alone")
    parser.add_argument("--speaker-embedding", metavar="FILE", help="an x-vector to imitate: .npy, or JSON")
    parser.add_argument(
        "--save-voice",
        metavar="NAME",
        help="store the recording's voice, or the one that is heard, by this name",
    )
    parser.add_argument("--language", help="name or code (default: the model finds out)")
    parser.add_argument(
        "--seed", type=seed, help="the same seed gives the same audio (default: a random one)"
    )
    parser.add_argument("--format", type=_format, help="default: what the file's ending says, else wav")
    parser.add_argument("--layout", default="speech", help="a layout's name or file (default: speech)")
    parser.add_argument(
        "--stream", action="store_true", help="write each piece as it is made, to FILE or standard output"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import anyio

    from ..bus.layout import load

    text = read_text(args.text)
    layout = with_models(_alone(load(args.layout)), [args.model] if args.model else [])
    kind = chosen_format(args)
    anyio.run(_speak, args, text, layout, kind)
    return 0


def with_models(layout: "Layout", models: list[str]) -> "Layout":
    """The layout with other speech models, where any are given."""
    import msgspec

    if not models:
        return layout
    require_speech(layout)
    return msgspec.structs.replace(
        layout, speech=msgspec.structs.replace(layout.speech, models=tuple(models))
    )


def require_speech(layout: "Layout") -> None:
    """Raises LayoutError for a layout that does not speak."""
    from ..bus.errors import LayoutError

    if layout.place("talker") is None:
        raise LayoutError(
            f"the layout {layout.name} runs no speech: use --layout speech, split, together or cohost"
        )


def _alone(layout: "Layout") -> "Layout":
    """The layout without chat, which a single text has no use for. Raises LayoutError where nothing is left."""
    from msgspec.structs import replace

    from ..bus.layout import Chat

    require_speech(layout)
    left = [
        replace(process, device=tuple(stage for stage in process.device if stage != "chat"))
        for process in layout.process
    ]
    return replace(
        layout,
        process=tuple(process for process in left if process.loop or process.device),
        link=tuple(link for link in layout.link if "chat" not in (link.source, link.target)),
        chat=Chat(),
    )


def read_text(given: str) -> str:
    from ..bus.errors import VivavoceError

    name = Path(given)
    try:
        if given == "-":
            text = sys.stdin.buffer.read().decode()
        elif len(given) < 256 and "\n" not in given and name.is_file():
            text = name.read_text("utf-8")
        elif _FILE.fullmatch(given):
            raise VivavoceError(f"there is no file {given}")
        else:
            text = given
    except UnicodeDecodeError:
        raise VivavoceError(f"{'standard input' if given == '-' else given} is not UTF-8 text") from None
    if not text.strip():
        raise VivavoceError("there is no text to speak")
    return text


def _format(name: str) -> str:
    from ..bus.formats import FORMATS

    if name not in FORMATS:
        raise argparse.ArgumentTypeError(f"there is no format {name!r}; use {', '.join(FORMATS)}")
    return name


def seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{number} is out of range: use 0 to 2**63 - 1")
    return number


def chosen_format(args: argparse.Namespace, further: str = ", or --format") -> str:
    """:param further: what else than the ending may say it, for the sentence of the VivavoceError."""
    from ..bus.errors import VivavoceError
    from ..bus.formats import FORMATS

    if args.play:
        return "pcm"
    if args.output in (None, "-"):
        return args.format or "wav"
    ending = Path(args.output).suffix.lower()
    name = ENDINGS.get(ending, ending[1:])
    if args.format:
        if name in FORMATS and name != args.format:
            raise VivavoceError(
                f"{args.output}: its ending says {name}, --format says {args.format}: give one of them only"
            )
        return args.format
    if name not in FORMATS:
        raise VivavoceError(f"{args.output}: its ending names no format: use {', '.join(FORMATS)}{further}")
    return name


def _sink(args: argparse.Namespace, target: str) -> "Sink":
    from .cli_sinks import Speakers, Stream, WholeFile

    if args.play:
        return Speakers(24_000, instead="-o FILE")
    return Stream(target) if args.stream or target == "-" else WholeFile(Path(target))


async def _speak(args: argparse.Namespace, text: str, layout: "Layout", kind: str) -> None:
    from ..bus.running import Running
    from . import cli_voice

    target = args.output or ("-" if args.stream else f"speech.{kind}")
    line = Line()
    try:
        # The sink first: a target that cannot be written is known before any weight is read.
        with _sink(args, target) as sink:
            voice = await cli_voice.chosen(args, layout)
            refuse_early(args, layout, cloning=voice is not None)
            heard = bytearray() if args.save_voice else None
            async with Running(layout, line.notice) as running:
                model = _model(running.models, layout, args, cloning=voice is not None)
                speak = _request(args, text, layout, kind, model, voice)
                line.show("speaking …")
                report = await _take(running.client.speak(speak), sink, model.sample_rate, line, heard)
        if heard is not None:
            cli_voice.save(args.save_voice, layout, voice, bytes(heard), kind, text, report.ending.reason)
    finally:
        line.clear()
    shown = "" if args.play or target == "-" else f"{target}: "
    cut = " (cut at the length limit)" if report.ending.reason == "length" else ""
    print(
        f"{shown}{report.audio_s:.2f} s of speech{cut}, first audio after {report.ttfa_s * 1000:.0f} ms, "
        f"RTF {report.rtf:.2f}, seed {speak.seed}",
        file=sys.stderr if target == "-" and not args.play else sys.stdout,
    )


def refuse_early(args: argparse.Namespace, layout: "Layout", *, cloning: bool) -> None:
    """Raises VivavoceError for a voice or language that, by the models' own files, there is not."""
    from ..bus.errors import StartError, VivavoceError
    from ..configs import languages
    from ..configs.models import find, split_name
    from .catalog import Catalog
    from .cli_checkpoint import read_config

    named = [split_name(model) for model in layout.speech.models]
    try:
        models = tuple(
            read_config(find(source, download=False)).described(name, source) for name, source in named
        )
    except StartError:
        return  # not here yet, or none at all: loading says so
    model = _model(models, layout, args, cloning=cloning)
    if not cloning:
        Catalog(lambda: models, layout.api).voice(model, args.voice)
    if args.language is not None and languages.find(args.language, model.languages) is None:
        raise VivavoceError(languages.unknown(args.language, model.languages))


def _model(
    models: "tuple[ModelInfo, ...]", layout: "Layout", args: argparse.Namespace, *, cloning: bool
) -> "ModelInfo":
    """Raises VivavoceError where none of the models can do what is asked."""
    from ..bus.errors import VivavoceError
    from .catalog import Catalog

    described = any(model.kind == "voice_design" for model in models)
    if args.describe and not described:
        names = " and ".join(model.name for model in models)
        raise VivavoceError(
            f"{names} cannot make voices from descriptions: leave --describe out, or use --model embedded-design "
            "or another VoiceDesign model"
        )
    task = "VoiceDesign" if args.describe else None
    return Catalog(lambda: models, layout.api).choose(None, task, cloning=cloning)


def _request(
    args: argparse.Namespace,
    text: str,
    layout: "Layout",
    kind: str,
    model: "ModelInfo",
    voice: "Likeness | None",
) -> "Speak":
    from ..bus.messages import Speak
    from .catalog import Catalog

    return Speak(
        request="speak",
        model=model.name,
        text=text,
        voice=None if voice else Catalog(lambda: [model], layout.api).voice(model, args.voice),
        reference=voice.pcm if voice else None,
        reference_text=voice.text if voice else None,
        x_vector=voice.x_vector if voice else None,
        stored=voice.stored if voice else None,
        language=args.language,
        instructions=args.describe or args.instructions,
        seed=secrets.randbits(32) if args.seed is None else args.seed,
        format=kind,
        container_streamed=bool(args.stream or args.output == "-"),
        lookahead=layout.speech.lookahead_frames,
    )


@dataclass
class Report:
    """What one request took, from the moment it was sent."""

    ending: "Ending"
    ttfa_s: float
    """Until the first audio arrived."""
    audio_s: float
    rtf: float
    """Seconds until the ending, less those in which the pipeline waited for the reader, a second of audio."""


async def _take(
    request: "SpeechRequest", sink: "Sink", rate: int, line: Line, heard: bytearray | None = None
) -> Report:
    """Run one request into the sink, and into `heard`. Raises VivavoceError when it ends with an error."""
    from ..bus.errors import VivavoceError
    from ..bus.messages import why

    samples, frames, first = 0, 0, 0.0
    start = time.perf_counter()
    async with request:
        async for audio in request:
            samples, frames = samples + audio.samples, frames + audio.frames
            first = first or (request.arrived if samples else 0.0)
            line.show(f"speaking: {frames} frames, {samples / rate:.1f} s")
            if audio.data:
                await sink.write(audio.data)
                if heard is not None:
                    heard += audio.data
        ending, worked = request.ending, request.arrived - start - request.parked_s
    if ending is None or ending.reason not in ("stop", "length"):
        raise VivavoceError(why(ending, "the speech was cancelled"))
    seconds = samples / rate
    return Report(ending, first - start, seconds, worked / seconds if seconds else 0.0)
