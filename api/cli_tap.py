"""`vivavoce tap`: listen to what flows between the stages of a running server, without its noticing."""

import argparse
import time
import wave
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..bus.listener import AsyncTap, Event

KINDS = ("text", "codes", "pcm", "timing", "ending")
RATE = 24_000
FRAME_BYTES = 1920 * 2


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "tap",
        parents=[common],
        help="listen to what flows between the stages of a running server",
        description="Print what flows between the stages of a running server, or play or save what is spoken.",
    )
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help="default: that of the one server here")
    parser.add_argument("--stage", help="only what this stage sends")
    parser.add_argument("--request", metavar="ID", help="only this request")
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[], help="only this kind; repeatable"
    )
    parser.add_argument("--keys", metavar="FILE", help="a client's keys, for an address of another machine")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object a line")
    how.add_argument("--play", action="store_true", help="play what is spoken (extra `play`)")
    how.add_argument("--wav", metavar="FILE", help="save the next request's speech and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import anyio

    from ..bus.listener import AsyncTap

    stages, kinds = args.stage or (), tuple(args.kind)
    if args.play or args.wav:
        stages, kinds = ("codec_decoder", "api"), ("pcm", "ending")
    tap = AsyncTap(args.address, stage=stages, kind=kinds, request=args.request, keys_file=args.keys)
    if args.wav:
        with _wav(args.wav) as file:
            print(f"{args.wav}: {anyio.run(_save, tap, file)}")
    elif args.play:
        anyio.run(_play, tap)
    else:
        anyio.run(_print, tap, as_json if args.json else as_line)
    return 0


async def _print(tap: "AsyncTap", shown: "Callable[[Event], str]") -> None:
    async with tap:
        async for event in tap:
            print(shown(event), flush=True)


def as_line(event: "Event") -> str:
    """For people: when, where, what, which request, and its content in short."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at)) + f"{event.at % 1:.3f}"[1:]
    lost = f"  ({event.missed} lost before)" if event.missed else ""
    return f"{clock}  {event.stage:14} {event.kind:6}  {event.request}  {_content(event)}{lost}"


def _content(event: "Event") -> str:
    from ..bus import messages, tap

    match event.message:
        case messages.Speak() | messages.Text() | messages.ChatDelta() as said:
            return repr(said.text)
        case messages.Codes() as made:
            return f"frame {made.frame}: {' '.join(str(code) for code in codes(made))}"
        case messages.Seam() as seam:
            return f"a part of the text ends after {seam.frames} frames"
        case messages.Pcm() as sound:
            return f"frame {sound.frame}, {sound.frames} of them, {len(sound.samples) // 2} samples"
        case messages.Ending() as ending:
            why = f": {ending.failure.message}" if ending.failure else ""
            return f"{ending.reason} after {ending.frames} frames{why}"
        case tap.Timing() as sent:
            return sent.sent if sent.frame is None else f"{sent.sent} of frame {sent.frame}"


def as_json(event: "Event") -> str:
    """For programs; bytes are base64, codes a list."""
    import msgspec

    from ..bus import messages

    fields = {"type": type(event.message).__name__, **msgspec.structs.asdict(event.message)}
    if isinstance(event.message, messages.Codes):
        fields["codes"] = codes(event.message)
    return msgspec.json.encode({**msgspec.structs.asdict(event), "message": fields}).decode()


def codes(message: Any) -> list[int]:
    """The 16 codes of a frame."""
    return memoryview(message.codes.data).cast("i").tolist()


async def _play(tap: "AsyncTap") -> None:
    """One request after the other; those that begin meanwhile are not heard."""
    from ..bus.messages import Pcm
    from .cli_sinks import Speakers

    with Speakers(RATE, instead="--wav FILE") as speakers:
        async with tap:
            playing = None
            async for event in tap:
                if _over(event):
                    playing = None if event.request == playing else playing
                elif isinstance(event.message, Pcm) and event.request == (
                    playing := playing or event.request
                ):
                    await speakers.write(event.message.samples)


def _over(event: "Event") -> bool:
    """Whether no more sound will come: the codec decoder says so behind the last of it, if it lives."""
    from ..bus.messages import Ending

    ending = event.message
    return isinstance(ending, Ending) and (event.stage != "api" or ending.reason in ("error", "cancelled"))


@contextmanager
def _wav(path: str) -> "Generator[wave.Wave_write]":
    from ..bus.errors import VivavoceError

    try:
        opened = open(path, "wb")  # noqa: SIM115 (`with` begins below)
    except OSError as error:
        raise VivavoceError(f"{path} cannot be written: {error.strerror}") from None
    with opened, wave.open(opened, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        yield file


async def _save(tap: "AsyncTap", file: wave.Wave_write) -> str:
    """One request, from the first of its sound that is heard to its ending; what was lost is silence."""
    from ..bus.messages import Pcm

    request, frame, lost = None, 0, 0
    async with tap:
        async for event in tap:
            if isinstance(event.message, Pcm) and event.request == (request := request or event.request):
                missing = event.message.frame - frame
                lost, frame = lost + missing, event.message.frame + event.message.frames
                file.writeframes(bytes(missing * FRAME_BYTES) + event.message.samples)
            elif _over(event) and event.request == request:
                break
    return f"{frame * 0.08:.2f} s of {request}" + (f", {lost} frames lost" if lost else "")
