"""`vivavoce bench cohost`: speech beside chat on one device, under each policy.

No MLX in this process, unless the layout runs its device here.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import anyio
import msgspec
import psutil

from ...bus.errors import StartError, VivavoceError
from ...bus.layout import Layout, load
from ...bus.messages import Chat, ChatDelta, ChatStarted, Sampling, Speak
from ...bus.running import Running
from ...bus.schedule import FRAME_S
from ...configs.models import find, split_name
from .. import device
from . import checkpoint
from .cohost_records import MEASURES, Policy, Reply, Result, Talk, Work, beside, sum_up, table
from .hardware import describe
from .records import About
from .timeline import Picture, Span, draw

REPLIES = (
    "You have two meetings before lunch, and the one with the printers has moved to half past eleven.",
    "The build is green again. It was the clock on the second machine, which ran nine minutes ahead of the others.",
    "Good news: the parcel is at the corner shop, and they keep it for you until Thursday evening at seven.",
    "I would leave the boiler alone tonight. It holds its pressure, and the man who knows it comes on Monday.",
    "Done. I have set an alarm for six fifteen and moved the walk with Hannah to the afternoon, as it will rain.",
    "That took longer than it should have. Three of the four disks were asleep, so the first search woke them all.",
)
LETTERS_A_SECOND = 15
"""Of speech: how long a reply is that would not end by itself."""
CHAT_TOKENS = 300
"""Of each answer while chat is decoding."""
SWAPPED_BYTES = 16 << 20
"""Into or out of swap during the run: more than that, and the figures would be swap's."""
PLOTTED_S = 8.0


class Outcome(NamedTuple):
    table: str
    json: str
    svg: str


class _Models(NamedTuple):
    speech: str
    speech_name: str
    chat: str
    chat_name: str


class _Round(NamedTuple):
    """One policy, once."""

    idle: list[Reply]
    alone: dict[Work, Talk]
    both: dict[Work, tuple[list[Reply], Talk]]
    memory: dict[str, int]
    hardware: str
    uses: dict[str, list[Span]]
    """Of the device, by family."""


def bench(args: argparse.Namespace, say: Callable[[str], None]) -> Outcome:
    """Raises VivavoceError where a model cannot be had, or where the machine swapped."""
    with _models(args, say) as models:
        before = swapped()
        rounds: dict[str, list[_Round]] = defaultdict(list)
        for number in range(args.rounds):
            for policy in args.policy if number % 2 == 0 else reversed(args.policy):
                told = partial(_tell, say, f"round {number + 1} of {args.rounds}, {policy}")
                rounds[policy].append(anyio.run(_round, args, models, policy, told))
        refuse_if_swapping(swapped() - before)
    result = Result(
        hardware=rounds[args.policy[0]][0].hardware,
        layout=args.layout,
        speech=models.speech_name,
        chat=models.chat_name,
        rounds=args.rounds,
        measures=MEASURES,
        policies=[_sum_up(policy, rounds[policy]) for policy in args.policy],
    )
    svg = draw([picture for policy in args.policy for picture in _pictures(policy, rounds[policy][0])])
    return Outcome(table(result), msgspec.json.format(msgspec.json.encode(result)).decode(), svg)


def _tell(say: Callable[[str], None], where: str, what: str) -> None:
    say(f"{where}: {what}")


def swapped() -> int:
    """Bytes that went to or from swap since the machine was started."""
    swap = psutil.swap_memory()
    return swap.sin + swap.sout


def refuse_if_swapping(size: int) -> None:
    """Raises VivavoceError."""
    if size > SWAPPED_BYTES:
        raise VivavoceError(
            f"the machine swapped {size / 2**20:.0f} MiB during the run, so nothing is reported: close other "
            "programs or take smaller models (`vivavoce doctor` tells more)"
        )


def _sum_up(policy: str, rounds: list[_Round]) -> Policy:
    idle = [reply for one in rounds for reply in one.idle]
    solo = median(reply.rtf for reply in idle)
    found = {
        work: beside(
            [reply for one in rounds for reply in one.both[work][0]],
            [one.alone[work] for one in rounds],
            [one.both[work][1] for one in rounds],
            solo,
        )
        for work in rounds[0].both
    }
    return Policy(
        policy=policy,
        idle=sum_up(idle),
        decoding=found["decoding"],
        prefilling=found.get("prefilling"),
        memory_bytes=rounds[-1].memory,
    )


def _pictures(policy: str, one: _Round) -> list[Picture]:
    pictures: list[Picture] = []
    for work, (replies, talk) in one.both.items():
        ended = min(talk.ended, talk.begun + PLOTTED_S)
        starved = [gap for reply in replies for gap in reply.gaps()]
        title = f"{policy}, chat {work}"
        pictures.append(Picture(title, talk.begun, ended, {**one.uses, "nothing to play": starved}))
    return pictures


async def _round(
    args: argparse.Namespace, models: _Models, policy: str, say: Callable[[str], None]
) -> _Round:
    say("loading")
    works: list[Work] = ["decoding", *(["prefilling"] if args.prefill else [])]
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as trace:
        async with Running(_layout(args, models, policy, trace)) as running:
            clients = _Clients(running, args)
            say("warming up")
            await clients.replies(REPLIES[:1])
            for work in works:
                async with clients.chatting(work):
                    pass
            say("speech alone")
            idle = await clients.replies()
            alone: dict[Work, Talk] = {}
            both: dict[Work, tuple[list[Reply], Talk]] = {}
            for work in works:
                say(f"chat {work}")
                async with clients.chatting(work) as chatter:
                    begun = time.monotonic()
                    await anyio.sleep(args.alone)
                    await chatter.word()
                    alone[work] = chatter.talk(begun)
                say(f"chat {work} beside speech")
                async with clients.chatting(work) as chatter:
                    begun = time.monotonic()
                    replies = await clients.replies()
                    both[work] = replies, chatter.talk(begun)
            memory = {process.name: process.rss_bytes for process in running.processes()}
            hardware = describe(About(running.backend, "", device.load_blas(), version("vivavoce"), 0.0))
        return _Round(idle, alone, both, memory, hardware, _uses(Path(trace)))


class _Chatter:
    """What chat has said since it began."""

    def __init__(self) -> None:
        self._heard = anyio.Event()
        self._tokens: list[tuple[float, int]] = []

    def take(self, tokens: int) -> None:
        self._tokens.append((time.monotonic(), tokens))
        self._heard.set()

    async def word(self) -> None:
        """Until it says something."""
        self._heard = anyio.Event()
        await self._heard.wait()

    def talk(self, begun: float) -> Talk:
        """What was said from then until now."""
        ended = time.monotonic()
        told = [(when, tokens) for when, tokens in self._tokens if begun <= when]
        return Talk(begun, ended, tuple(when for when, _ in told), sum(tokens for _, tokens in told))


class _Clients:
    def __init__(self, running: Running, args: argparse.Namespace) -> None:
        self._client = running.client
        self._speech = next(model for model in running.models if model.family == "speech")
        self._chat = next(model for model in running.models if model.family == "chat")
        if not self._speech.voices:
            raise VivavoceError("the speech model has no preset voice: measure a custom-voice model")
        self._frames: int | None = args.frames
        self._prompt_tokens: int = args.prompt_tokens
        self._numbers = count()

    async def replies(self, texts: tuple[str, ...] = REPLIES) -> list[Reply]:
        """One after the other, each as soon as the one before has been received."""
        return [await self._reply(text) for text in texts]

    async def _reply(self, text: str) -> Reply:
        number = next(self._numbers)
        speak = Speak(
            request=f"reply-{number}",
            model=self._speech.name,
            text=text,
            voice=self._speech.voices[0],
            seed=number,
            max_frames=self._frames or round(len(text) / LETTERS_A_SECOND / FRAME_S),
        )
        asked, arrivals = time.monotonic(), list[tuple[float, float]]()
        async with self._client.speak(speak) as request:
            async for audio in request:
                if audio.samples:
                    arrivals.append((time.monotonic(), audio.samples / self._speech.sample_rate))
        if request.ending is None or request.ending.failure is not None or not arrivals:
            raise VivavoceError(f"speech failed: {request.ending}")
        return Reply(asked, tuple(arrivals))

    @asynccontextmanager
    async def chatting(self, work: Work) -> AsyncGenerator[_Chatter]:
        """Chat works without a pause; entered when it has said its first word."""
        chatter = _Chatter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._chat_on, work, chatter)
            await chatter.word()
            yield chatter
            tasks.cancel_scope.cancel()

    async def _chat_on(self, work: Work, chatter: _Chatter) -> None:
        while True:
            ask = self._ask(16, CHAT_TOKENS) if work == "decoding" else self._ask(self._prompt_tokens, 1)
            async with self._client.chat(ask) as request:
                async for part in request:
                    if isinstance(part, ChatStarted) and work == "prefilling":
                        chatter.take(self._prompt_tokens)
                    elif isinstance(part, ChatDelta) and work == "decoding":
                        chatter.take(part.tokens)
            if request.ending is None or request.ending.failure is not None:
                raise VivavoceError(f"chat failed: {request.ending}")

    def _ask(self, tokens: int, answer: int) -> Chat:
        """Prompts differ from their first token on, so that no cache has any of them; low ids are letters."""
        number = next(self._numbers)
        prompt = tuple(100 + (number + n * (n + number)) % 100 for n in range(tokens))
        return Chat(
            request=f"chat-{number}",
            model=self._chat.name,
            prompt=prompt,
            max_tokens=answer,
            sampling=Sampling(temperature=0.7),
            lookahead=2 * CHAT_TOKENS,
        )


def _layout(args: argparse.Namespace, models: _Models, policy: str, trace: str) -> Layout:
    layout = load(args.layout)
    longest = max(len(text) for text in REPLIES)
    speech = msgspec.structs.replace(
        layout.speech,
        models=(models.speech,),
        frames_floor=2 * longest,
        silence_limit_s=3600.0,
        repeat_limit_frames=2 * longest,
    )
    chat = msgspec.structs.replace(layout.chat, models=(models.chat,))
    schedule = msgspec.structs.replace(layout.schedule, policy=policy, trace=trace)
    return msgspec.structs.replace(layout, speech=speech, chat=chat, schedule=schedule)


def _uses(folder: Path) -> dict[str, list[Span]]:
    uses: dict[str, list[Span]] = {"speech": [], "chat": []}
    for file in folder.glob("*.jsonl"):
        spans = uses[file.stem.rpartition("-")[2]]
        spans += [msgspec.json.decode(line, type=Span) for line in file.read_bytes().splitlines()]
    return uses


@contextmanager
def _models(args: argparse.Namespace, say: Callable[[str], None]) -> Generator[_Models]:
    """The models to load; speech never ends by itself."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as name:
        speech, chat = Path(name) / "speech", Path(name) / "chat"
        if args.speech_size:
            speech_name = f"random weights, {args.speech_size} {args.speech_dtype}"
            say(f"writing {speech_name}")
            _write("checkpoint", args.speech_size, args.speech_dtype, str(speech))
        else:
            speech_name, source = split_name(args.speech_model)
            checkpoint.endless(find(source), speech)
        if args.chat_model:
            chat_name, source = split_name(args.chat_model)
            chat = find(source)
        else:
            chat_name = f"random weights, {args.chat_layers} × {args.chat_hidden} {args.chat_dtype}"
            say(f"writing {chat_name}")
            _write("chat_weights", str(chat), str(args.chat_layers), str(args.chat_hidden), args.chat_dtype)
        yield _Models(f"speech={speech}", speech_name, f"chat={chat}", chat_name)


def _write(module: str, *arguments: str) -> None:
    command = [sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments]
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        raise StartError(f"random weights could not be written: {made.stderr.strip().splitlines()[-1]}")
