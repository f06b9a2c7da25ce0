"""The clients of `vivavoce bench cohost`: one who is spoken to, and one who chats without a pause."""

import argparse
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count, pairwise

import anyio

from ...bus.errors import VivavoceError
from ...bus.messages import Chat, ChatDelta, ChatStarted, Sampling, Speak, why
from ...bus.running import Running
from ...bus.schedule import FRAME_S
from .cohost_records import Reply, Session, Talk, Work

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
NO_RESULT = "it ended without a result"


class Chatter:
    """What chat has said since it began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = anyio.Event()
        self._times: list[float] = []
        self._totals: list[int] = []
        """Tokens said until each of those times."""

    def take(self, tokens: int) -> None:
        self._times.append(self._clock())
        self._totals.append(tokens + (self._totals[-1] if self._totals else 0))
        self._heard.set()

    async def word(self) -> None:
        """Until it says something."""
        self._heard = anyio.Event()
        await self._heard.wait()

    def talk(self, begun: float, ended: float) -> Talk:
        """What was said from then until then; it has said something before and since."""
        first, last = bisect_right(self._times, begun), bisect_right(self._times, ended)
        return Talk(begun, ended, tuple(self._times[first:last]), self._by(ended) - self._by(begun))

    def _by(self, when: float) -> float:
        """Tokens made until then, at an even pace since those that were said last."""
        after = bisect_right(self._times, when)
        sooner, later = self._times[after - 1], self._times[after]
        share = (when - sooner) / (later - sooner)
        return self._totals[after - 1] + share * (self._totals[after] - self._totals[after - 1])


class Clients:
    """Those of a running layout with one speech and one chat model."""

    def __init__(self, running: Running, args: argparse.Namespace) -> None:
        """Raises VivavoceError for a speech model without a voice."""
        self._client = running.client
        self._speech = next(model for model in running.models if model.family == "speech")
        self._chat = next(model for model in running.models if model.family == "chat")
        if not self._speech.voices:
            raise VivavoceError("the speech model has no preset voice: measure a custom-voice model")
        self._frames: int | None = args.frames
        self._alone_s: float = args.alone / len(REPLIES)
        self._prompt_tokens: int = args.prompt_tokens
        self._numbers = count()

    async def warm_up(self, works: Sequence[Work]) -> None:
        for work in works:
            async with self._chatting(work):
                pass
        await self._reply(REPLIES[0])  # last: behind what chat compiles when it first runs

    async def alone(self) -> list[Reply]:
        """Replies with no chat beside them."""
        return [await self._listen(text) for text in REPLIES]

    async def beside(self, work: Work) -> Session:
        """Replies while chat works without a pause, for a while alone before each of them."""
        replies: list[Reply] = []
        async with self._chatting(work) as chatter:
            turns = [time.monotonic()]
            for text in REPLIES:
                await anyio.sleep(self._alone_s)
                turns.append(time.monotonic())
                replies.append(await self._listen(text))
                turns.append(time.monotonic())
            await chatter.word()
            talks = [chatter.talk(begun, ended) for begun, ended in pairwise(turns)]
        return Session(replies, talks[::2], talks[1::2])

    async def _listen(self, text: str) -> Reply:
        """Until a player has played the reply."""
        reply = await self._reply(text)
        await anyio.sleep(max(reply.played - time.monotonic(), 0.0))
        return reply

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
            raise VivavoceError(f"speech failed: {why(request.ending, NO_RESULT)}")
        return Reply(asked, tuple(arrivals))

    @asynccontextmanager
    async def _chatting(self, work: Work) -> AsyncGenerator[Chatter]:
        """Chat works without a pause; entered when it has said its first word."""
        chatter = Chatter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._chat_on, work, chatter)
            await chatter.word()
            yield chatter
            tasks.cancel_scope.cancel()

    async def _chat_on(self, work: Work, chatter: Chatter) -> None:
        while True:
            ask = self._ask(16, CHAT_TOKENS) if work == "decoding" else self._ask(self._prompt_tokens, 1)
            async with self._client.chat(ask) as request:
                async for part in request:
                    if isinstance(part, ChatStarted) and work == "prefilling":
                        chatter.take(self._prompt_tokens)
                    elif isinstance(part, ChatDelta) and work == "decoding":
                        chatter.take(part.tokens)
            if request.ending is None or request.ending.failure is not None:
                raise VivavoceError(f"chat failed: {why(request.ending, NO_RESULT)}")

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
