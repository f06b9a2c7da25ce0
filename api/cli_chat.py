"""`vivavoce chat`: talk to a chat model in the terminal; and the settings of chat that `serve` takes as well."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .cli_terminal import Line

if TYPE_CHECKING:
    from ..bus.layout import Layout
    from ..bus.running import Running


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
        description="Each line is a turn; the answer streams. /new begins again, /exit or Ctrl-D leaves.",
    )
    parser.add_argument("--layout", default="chat", help="a layout's name or file (default: chat)")
    parser.add_argument(
        "--model", "--chat-model", dest="chat_model", action="append", metavar="MODEL", default=[]
    )
    parser.add_argument("--system", help="instructions ahead of the conversation")
    parser.add_argument("--max-tokens", type=int, help="of each answer (default: until the context is full)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 always takes the likeliest token")
    parser.add_argument("--seed", type=int, help="the same seed gives the same answers")
    parser.add_argument("--draft-model", help="a small model of the same family that guesses ahead")
    parser.set_defaults(
        run=run, num_draft_tokens=None, kv_bits=None, kv_group_size=None, max_kv_size=None, message=None
    )


def run(args: argparse.Namespace) -> int:
    import anyio

    from ..bus.layout import load

    anyio.run(_chat, args, with_chat(load(args.layout), args))
    return 0


async def _chat(args: argparse.Namespace, layout: "Layout") -> None:
    from ..bus.running import Running

    line = Line()
    try:
        async with Running(layout, line.notice) as running:
            line.clear()
            await _converse(args, running)
    finally:
        line.clear()


async def _converse(args: argparse.Namespace, running: "Running") -> None:
    import anyio.to_thread

    model = next(model for model in running.models if model.family == "chat")
    if sys.stdin.isatty():
        print(f"{model.name} ({model.size}). /new begins again, /exit leaves.", file=sys.stderr)
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    count = 0
    while (text := await anyio.to_thread.run_sync(_ask, abandon_on_cancel=True)) is not None:
        if text == "/new":
            messages = list(opening)
        elif text:
            count += 1
            messages.append({"role": "user", "content": text})
            answer = await _answer(args, running, model.name, messages, f"chat-{count}")
            messages.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    """The next line; None at the end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return None if not line or line.strip() == "/exit" else line.strip()


async def _answer(
    args: argparse.Namespace, running: "Running", model: str, messages: list[dict[str, str]], request: str
) -> str:
    """Print an answer as it comes; reasoning goes to standard error. Raises RequestError."""
    from ..bus.messages import Chat, ChatDelta
    from .chat_schema import conversation
    from .errors import refusal

    chat = Chat(
        request=request,
        model=model,
        conversation=conversation(messages),
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    said = ""
    async with running.client.chat(chat) as open_request:
        async for part in open_request:
            if isinstance(part, ChatDelta):
                said += part.text
                print(part.reasoning, end="", file=sys.stderr, flush=True)
                print(part.text, end="", flush=True)
        print()
        if open_request.ending is not None and open_request.ending.failure is not None:
            raise refusal(open_request.ending.failure)
    return said
