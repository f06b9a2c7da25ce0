"""`vivavoce chat`: talk to a chat model in the terminal; and the settings of chat that `serve` takes as well."""

import argparse
import re
import secrets
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cli_speak
from .cli_terminal import Line

if TYPE_CHECKING:
    from ..bus.client import SpeechRequest
    from ..bus.layout import Layout
    from ..bus.messages import Chat, Speak
    from ..bus.running import Running
    from .cli_sinks import Sink

RATE = 24_000
COMMANDS = "/new begins again, /exit or Ctrl-D leaves"


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options that replace settings in the layout's [chat]."""
    parser.add_argument(
        "--chat-model",
        action="append",
        default=[],
        metavar="MODEL",
        help="a folder in mlx-lm's form or a hub id, or name=source; repeatable",
    )
    parser.add_argument("--draft-model", help="a small model of the same family that guesses ahead")
    parser.add_argument("--num-draft-tokens", type=int, metavar="N", help="guesses at a time (default: 3)")
    parser.add_argument("--kv-bits", type=int, choices=(4, 8), help="keep keys and values quantised")
    parser.add_argument("--kv-group-size", type=int, choices=(32, 64, 128), help="default: 64")
    parser.add_argument("--prompt-cache", metavar="DIR", help="keep the prompt cache here between starts")
    parser.add_argument("--max-kv-size", type=int, metavar="TOKENS", help="keep so many tokens, the newest")


def with_chat(layout: "Layout", args: argparse.Namespace) -> "Layout":
    """The layout with what these options give in its place. Raises LayoutError where it has no chat."""
    import msgspec

    from ..bus.errors import LayoutError

    options = {
        "models": tuple(args.chat_model) or None,
        "draft_model": args.draft_model,
        "draft_tokens": args.num_draft_tokens,
        "kv_bits": args.kv_bits,
        "kv_group_size": args.kv_group_size,
        "max_kv_size": args.max_kv_size,
        "prompt_cache": args.prompt_cache,
    }
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if layout.place("chat") is None:
        if given:
            raise LayoutError(f"the layout {layout.name} runs no chat: use --layout chat, together or cohost")
        return layout
    layout = msgspec.structs.replace(layout, chat=msgspec.structs.replace(layout.chat, **given))
    if not layout.chat.models:
        raise LayoutError(
            f"the layout {layout.name} has no chat model: give --chat-model with a folder or a hub id, "
            "or `models` under [chat] in a layout file"
        )
    return layout


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "chat",
        parents=[common],
        help="talk to a chat model in the terminal",
        description=f"Each line is a turn; the answer streams. {COMMANDS}. Any other line of one word of letters"
        " behind a slash is taken for a mistake; whatever else begins with a slash is said to the model.",
    )
    parser.add_argument(
        "--layout", help="a layout's name or file (default: chat; together where answers are spoken)"
    )
    parser.add_argument(
        "--model", "--chat-model", dest="chat_model", action="append", metavar="MODEL", default=[]
    )
    parser.add_argument("--speak", action="store_true", help="speak each answer while it is written")
    parser.add_argument("--voice", help="speak, with this preset voice (default: the speech model's first)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="speak, into FILE, FILE-2 … instead of the speakers"
    )
    parser.add_argument("--system", help="instructions ahead of the conversation")
    parser.add_argument("--max-tokens", type=int, help="of each answer (default: until the context is full)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=cli_speak.seed, help="the same seed gives the same answers")
    parser.add_argument("--draft-model", help="a small model of the same family that guesses ahead")
    parser.set_defaults(
        run=run,
        num_draft_tokens=None,
        kv_bits=None,
        kv_group_size=None,
        max_kv_size=None,
        prompt_cache=None,
        format=None,
    )


def run(args: argparse.Namespace) -> int:
    import anyio

    from ..bus.errors import VivavoceError
    from ..bus.layout import load

    if args.output == "-":
        raise VivavoceError("-o -: the answers are written to standard output; name a file for the voice")
    args.speak = args.speak or args.voice is not None or args.output is not None
    args.play = args.speak and args.output is None
    name = args.layout or ("together" if args.speak else "chat")
    layout = with_chat(load(name), args)
    if args.speak:
        cli_speak.require_speech(layout)
    anyio.run(_chat, args, layout)
    return 0


async def _chat(args: argparse.Namespace, layout: "Layout") -> None:
    from ..bus.running import Running
    from .cli_sinks import Speakers

    line, kind = Line(), cli_speak.chosen_format(args, further="")
    try:
        # The speakers first: whether there are any is known before any weight is read.
        with Speakers(RATE, instead="-o FILE") if args.play else nullcontext() as speakers:
            async with Running(layout, line.notice) as running:
                line.clear()
                await _converse(args, running, _speech(args, running, kind), speakers)
    finally:
        line.clear()


def _speech(args: argparse.Namespace, running: "Running", kind: str) -> "Speak | None":
    """What the requests for the voice are made of; None where nothing is spoken. Raises VivavoceError."""
    from ..bus.messages import Speak
    from .catalog import Catalog

    if not args.speak:
        return None
    catalog = Catalog(lambda: running.models, running.layout.api)
    model = catalog.choose(None, None, cloning=False)
    return Speak(
        request="",
        model=model.name,
        text="",
        more_text=True,
        voice=catalog.voice(model, args.voice),
        seed=secrets.randbits(32) if args.seed is None else args.seed,
        format=kind,
        container_streamed=args.play,
        lookahead=running.layout.speech.lookahead_frames,
    )


async def _converse(
    args: argparse.Namespace, running: "Running", speech: "Speak | None", speakers: "Sink | None"
) -> None:
    import anyio.to_thread

    from ..bus.errors import RequestError

    model = next(model for model in running.models if model.family == "chat")
    if sys.stdin.isatty():
        print(f"{model.name} ({model.size}). {COMMANDS}.", file=sys.stderr)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    count = 0
    while (text := await anyio.to_thread.run_sync(_ask, abandon_on_cancel=True)) is not None:
        if text == "/new":
            messages = list(opening)
        elif re.fullmatch("/[A-Za-z]+", text):
            print(f"There is no command {text}: {COMMANDS}.", file=sys.stderr)
        elif text:
            count += 1
            messages.append({"role": "user", "content": text})
            chat = _request(args, model.name, messages, f"chat-{count}")
            try:
                if speech is None:
                    answer = await _write(running, chat)
                else:
                    answer = await _speak(args, running, chat, speech, speakers, count)
            except RequestError as error:
                # Such as a context that is full: the conversation stays as it was, and /new is left.
                if error.failure.status >= 500 or not sys.stdin.isatty():
                    raise
                print(error, file=sys.stderr)
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    """The next line; None at the end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return None if not line or line.strip() == "/exit" else line.strip()


def _request(args: argparse.Namespace, model: str, messages: list[dict[str, str]], name: str) -> "Chat":
    from ..bus.messages import Chat, Sampling
    from .chat_schema import conversation

    return Chat(
        request=name,
        model=model,
        conversation=conversation(messages),
        max_tokens=args.max_tokens,
        sampling=Sampling(temperature=args.temperature, seed=args.seed),
    )


async def _write(running: "Running", chat: "Chat", voice: "SpeechRequest | None" = None) -> str:
    """Print an answer as it comes, and have it spoken; reasoning goes to standard error. Raises RequestError."""
    from ..bus.messages import ChatDelta
    from .errors import refusal

    said = ""
    async with running.client.chat(chat) as request:
        async for part in request:
            if isinstance(part, ChatDelta):
                said += part.text
                print(part.reasoning, end="", file=sys.stderr, flush=True)
                print(part.text, end="", flush=True)
                if voice is not None and part.text:
                    await voice.text(part.text)
        print()
        if request.ending is not None and request.ending.failure is not None:
            raise refusal(request.ending.failure)
    return said


async def _speak(
    args: argparse.Namespace,
    running: "Running",
    chat: "Chat",
    speech: "Speak",
    speakers: "Sink | None",
    count: int,
) -> str:
    """Print and speak an answer; it is over when both are. Raises VivavoceError."""
    import anyio
    import msgspec

    from .cli_sinks import WholeFile

    path = Path(args.output or "")
    numbered = path.with_stem(f"{path.stem}-{count}") if count > 1 else path
    speak = msgspec.structs.replace(speech, request=f"speak-{count}")
    answer = ""
    with WholeFile(numbered) if speakers is None else nullcontext(speakers) as sink:
        async with running.client.speak(speak) as voice, anyio.create_task_group() as tasks:
            tasks.start_soon(_play, voice, sink)
            answer = await _write(running, chat, voice)
            if answer.strip():
                await voice.text("", final=True)
            else:
                voice.close()
    return answer


async def _play(voice: "SpeechRequest", sink: "Sink") -> None:
    """Raises RequestError where the voice fails."""
    from .errors import refusal

    async for audio in voice:
        if audio.data:
            await sink.write(audio.data)
    failure = voice.ending.failure if voice.ending else None
    if failure is not None and failure.code != "empty_input":  # nothing but marks that nobody says
        raise refusal(failure)
