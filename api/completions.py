"""`POST /v1/completions`: a plain prompt, continued as it stands."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import msgspec
from msgspec import Meta
from quart import Blueprint, Response

from ..bus.errors import RequestError
from ..bus.messages import Chat, ChatFinished, Drawn
from . import sse
from .chat import LEAST_LOGPROB, failed, usage
from .chat_job import ChatJob
from .chat_schema import OpenAIBody, refuse, sampled, stops
from .edge import Edge
from .exchange import current
from .operations import INFERENCE, OBJECT, Operation
from .schema import read
from .talk import AT_ONCE_S

MAX_PROMPTS = 32
MAX_TOKENS = 16
"""OpenAI's default."""
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class CompletionBody(OpenAIBody, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str | Token | list[Token]]
    """A text, its tokens, or several of either."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: Any = None
    echo: bool = False
    best_of: int | None = None


OPERATIONS = (
    Operation(
        method="post",
        path="/v1/completions",
        summary="Continue a text: as events, or whole.",
        body=CompletionBody,
        answers={"application/json": OBJECT, "text/event-stream": {"type": "string"}},
        errors=INFERENCE,
    ),
)


def blueprint(edge: Edge) -> Blueprint:
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def completions() -> Response:
        body = await read(CompletionBody)
        run = _Run(edge, body)
        if not body.stream:
            return Response(msgspec.json.encode(await run.whole()), content_type="application/json")
        first = run.job(0)
        with anyio.move_on_after(AT_ONCE_S):
            await first.read()
        return sse.response(run.events(first))

    _ = completions
    return routes


class _Run:
    """The answer to one request: its prompts are continued one after the other."""

    def __init__(self, edge: Edge, body: CompletionBody) -> None:
        """Raises RequestError."""
        refuse(
            {
                "suffix": (body.suffix, "this server continues texts, it does not fill them in"),
                "echo": (body.echo, "put the prompt ahead of the answer in the client"),
                "best_of": (body.best_of is not None and body.best_of != body.n, "use `n`"),
            }
        )
        self._edge = edge
        self._body = body
        self._exchange = current()
        self._prompts = _prompts(body.prompt)
        self._chat = Chat(
            request=self._exchange.id,
            model=edge.catalog.find(body.model, "chat").name,
            max_tokens=body.max_tokens or MAX_TOKENS,
            stop=stops(body.stop),
            n=body.n,
            logprobs=body.logprobs,
            lookahead=edge.layout.chat.lookahead_tokens,
            sampling=sampled(body),
        )
        self._created = int(time.time())
        self._totals: list[dict[str, Any]] = []

    def job(self, index: int) -> ChatJob:
        name = f"{self._exchange.id}-{index}"
        chat = msgspec.structs.replace(self._chat, request=name, prompt=self._prompts[index])
        return ChatJob(self._edge, self._exchange, chat, "completions")

    async def whole(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index in range(len(self._prompts)):
            job = self.job(index)
            await job.start()
            for choice in await job.whole():
                choices.append(self._choice(len(choices), choice.text, choice.drawn, 0, choice.reason))
            self._finish(job)
        return {**self._head(), "choices": choices, "usage": self._usage()}

    async def events(self, first: ChatJob) -> AsyncIterator[bytes]:
        silence_s = self._edge.settings.keep_alive_s
        for index in range(len(self._prompts)):
            job = self.job(index) if index else first
            try:
                async for comment in sse.comments_until(job.start, silence_s):
                    yield comment
            except RequestError as error:
                yield failed(error.failure, job)
                return
            offsets = [0] * self._body.n
            async for part in job.parts(silence_s):
                if part is None:
                    yield sse.COMMENT
                    continue
                place = index * self._body.n + part.choice
                if isinstance(part, ChatFinished):
                    told = self._choice(place, "", [], 0, part.reason)
                elif part.text or part.drawn:
                    told = self._choice(place, part.text, list(part.drawn), offsets[part.choice], None)
                    offsets[part.choice] += sum(len(_text(one)) for one in part.drawn)
                else:
                    continue
                yield sse.data({**self._head(), "choices": [told]})
            if failure := job.failure():
                yield failed(failure, job)
                return
            self._finish(job)
        options = self._body.stream_options
        if options is not None and options.include_usage:
            yield sse.data({**self._head(), "choices": [], "usage": self._usage()})
        yield sse.DONE

    def _finish(self, job: ChatJob) -> None:
        assert job.done is not None
        self._totals.append(usage(job.done))
        job.close()

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._exchange.id.removeprefix('req-')}",
            "object": "text_completion",
            "created": self._created,
            "model": self._body.model or self._chat.model,
        }

    def _choice(
        self, index: int, text: str, drawn: list[Drawn], offset: int, reason: str | None
    ) -> dict[str, Any]:
        told = _logprobs(drawn, offset) if self._body.logprobs is not None and drawn else None
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}

    def _usage(self) -> dict[str, Any]:
        return _sum(self._totals)


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    first = parts[0]
    return {
        key: _sum([part[key] for part in parts])
        if isinstance(value, dict)
        else sum(part[key] for part in parts)
        for key, value in first.items()
    }


def _prompts(given: str | list[Any]) -> list[str | tuple[int, ...]]:
    """Raises RequestError."""
    if isinstance(given, str) or (given and all(isinstance(one, int) for one in given)):
        given = [given]
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise RequestError(f"`prompt` may hold 1 to {MAX_PROMPTS} prompts.", "prompt")
    if any(isinstance(one, int) for one in given):
        raise RequestError("`prompt` mixes tokens with prompts.", "prompt")
    if not all(given):
        raise RequestError("`prompt` must not be empty.", "prompt")
    return [one if isinstance(one, str) else tuple(one) for one in given]


def _text(one: Drawn) -> str:
    return one.token.data.decode(errors="replace")


def _logprobs(drawn: list[Drawn], offset: int) -> dict[str, Any]:
    offsets: list[int] = []
    for one in drawn:
        offsets.append(offset)
        offset += len(_text(one))
    return {
        "tokens": [_text(one) for one in drawn],
        "token_logprobs": [max(one.token.logprob, LEAST_LOGPROB) for one in drawn],
        "top_logprobs": [
            {other.data.decode(errors="replace"): max(other.logprob, LEAST_LOGPROB) for other in one.top}
            for one in drawn
        ],
        "text_offset": offsets,
    }
