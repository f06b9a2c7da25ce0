"""The stage `chat`: what it sends for each request, credits, endings."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from vivavoce.bus.channel import Mailbox, Outbox
from vivavoce.bus.control import Progress
from vivavoce.bus.messages import (
    LINKS,
    Chat,
    ChatAccepted,
    ChatCredit,
    ChatDelta,
    ChatDone,
    ChatFinished,
    ChatStarted,
    Close,
    Ending,
    Message,
    Sampling,
)
from vivavoce.bus.wire import Decoder, encode, kinds
from vivavoce.stages.chat import grammar
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.stage import ChatStage

ASK = msgspec.json.encode({"messages": [{"role": "user", "content": "Say hi."}]}).decode()


class Bench:
    """A running stage and both ends of its channels."""

    def __init__(self, stage: ChatStage) -> None:
        self.stage = stage
        self._in, self._out = Mailbox(64), Mailbox(4096)
        self._decode = Decoder(LINKS["chat", "api"])

    async def run(self) -> None:
        with self._out.sender() as sender:
            await self.stage.run(self._in.inbox, Outbox([(sender, kinds(LINKS["chat", "api"]))]))

    def close(self) -> None:
        self._in.close()
        self._out.close()

    async def send(self, *messages: Message) -> None:
        for message in messages:
            with self._in.sender() as sender:
                await sender.send(message)

    async def next(self) -> Any:
        """The next message, as it comes off a wire."""
        return self._decode(encode(await self._out.inbox.receive()))

    async def all(self, requests: int = 1) -> dict[str, list[Any]]:
        """The messages of each request until so many have ended."""
        told: dict[str, list[Any]] = {}
        while requests:
            message = await self.next()
            told.setdefault(message.request, []).append(message)
            requests -= isinstance(message, Ending)
        return told

    @property
    def waiting(self) -> int:
        return self._out.waiting


@pytest.fixture
def bench(tiny_models: Callable[..., Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(**options: Any) -> AsyncGenerator[Bench]:
        stage = ChatStage({"tiny": Engine(tiny_models(), EngineOptions(**options))}, Progress())
        made = Bench(stage)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(made.run)
                yield made
                tasks.cancel_scope.cancel()
        made.close()

    return start


def chat(request: str = "r", **fields: Any) -> Chat:
    fields = {"conversation": ASK, "max_tokens": 8, "sampling": Sampling(temperature=0), **fields}
    return Chat(request=request, model="tiny", **fields)


def text_of(messages: list[Any]) -> str:
    return "".join(message.text for message in messages if isinstance(message, ChatDelta))


async def test_one_request_from_its_acceptance_to_its_ending(bench: Any) -> None:
    async with bench() as made:
        await made.send(chat(n=2, logprobs=1))
        told = (await made.all())["r"]
    assert [type(message) for message in told[:2]] == [ChatAccepted, ChatStarted]
    assert [type(message) for message in told[-2:]] == [ChatDone, Ending]
    assert {message.choice for message in told if isinstance(message, ChatFinished)} == {0, 1}
    deltas = [message for message in told if isinstance(message, ChatDelta)]
    assert sum(message.tokens for message in deltas) == told[-2].completion_tokens
    assert all(len(drawn.top) == 1 for message in deltas for drawn in message.drawn)
    assert told[-1].reason in ("stop", "length")
    assert made.stage.open_requests() == ()


async def test_a_request_without_credit_is_set_aside_and_goes_on(bench: Any) -> None:
    async with bench() as made:
        await made.send(chat("alone", max_tokens=12))
        wanted = text_of((await made.all())["alone"])
        await made.send(chat("slow", max_tokens=12, lookahead=3), chat("other", max_tokens=12))
        told: dict[str, list[Any]] = {"slow": [], "other": []}
        while not (told["other"] and isinstance(told["other"][-1], Ending)):
            message = await made.next()
            told[message.request].append(message)
        assert sum(isinstance(message, ChatDelta) for message in told["slow"]) == 3
        assert made.waiting == 0
        assert not any(isinstance(message, Ending) for message in told["slow"])
        await made.send(chat("another", max_tokens=12), ChatCredit(request="slow", tokens=50))
        late = await made.all(2)
        assert text_of(told["slow"] + late["slow"]) == wanted == text_of(told["other"])
        assert text_of(late["another"]) == wanted


async def test_a_tokenizer_without_grammars_refuses_what_needs_them(
    bench: Any, tiny_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("not a fast one")

    monkeypatch.setattr(grammar, "from_tokenizer", refuse)
    monkeypatch.setattr(tiny_models(), "_grammars", None)
    held = {"messages": [{"role": "user", "content": "x"}], "schema": {"type": "object"}}
    async with bench() as made:
        await made.send(
            chat("named", logprobs=0), chat("held", conversation=msgspec.json.encode(held).decode()), chat()
        )
        told = await made.all(3)
    for name in ("named", "held"):
        (ending,) = told[name]
        assert ending.failure.status == 400
        assert ending.failure.code == "unsupported_parameter"
    assert told["r"][-1].reason in ("stop", "length")


async def test_close_ends_a_request_wherever_it_is(bench: Any) -> None:
    async with bench() as made:
        await made.send(chat("parked", lookahead=1), chat("running", max_tokens=900), Close(request="none"))
        told: list[Any] = []
        while not any(message.request == "parked" and isinstance(message, ChatDelta) for message in told):
            told.append(await made.next())
        await made.send(Close(request="parked"), Close(request="running"))
        endings = [message[-1] for message in (await made.all(2)).values()]
        assert [ending.reason for ending in endings] == ["cancelled", "cancelled"]
        assert made.stage.open_requests() == ()


async def test_a_length_alone(bench: Any) -> None:
    async with bench() as made:
        await made.send(chat(count_only=True))
        accepted, ending = (await made.all())["r"]
        await made.send(chat())
        assert (await made.all())["r"][0].prompt_tokens == accepted.prompt_tokens
    assert ending.reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": '{"messages": []}'}, "messages"),
        ({"conversation": '{"messages": [{"role": "king"}]}'}, "messages[0].role"),
        (
            {"conversation": '{"messages": [{"role": "assistant", "tool_calls": 5}]}'},
            "messages[0].tool_calls",
        ),
        ({"prompt": ()}, "messages"),
        ({"prompt": "x" * 2000}, "messages"),
        ({"n": 99}, "n"),
    ],
)
async def test_refusals_name_the_field(bench: Any, fields: Any, param: str) -> None:
    async with bench() as made:
        await made.send(chat(**fields))
        (ending,) = (await made.all())["r"]
    assert ending.reason == "error"
    assert ending.failure.status == 400
    assert ending.failure.param == param
