"""Chat beside speech, in one process and in three: both answer at once, with the same bytes as alone."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from vivavoce.bus import layout
from vivavoce.bus.layout import Schedule
from vivavoce.bus.messages import Chat, ChatDelta, ChatDone, Ending, Sampling, Speak
from vivavoce.bus.running import Running

ASK = msgspec.json.encode({"messages": [{"role": "user", "content": "Say hi."}]}).decode()


def chat(name: str, **fields: Any) -> Chat:
    fields = {"sampling": Sampling(temperature=0), "max_tokens": 40, **fields}
    return Chat(request=name, model="tiny", conversation=ASK, **fields)


async def said(running: Running, name: str, **fields: Any) -> tuple[str, Ending | None]:
    async with running.client.chat(chat(name, **fields)) as request:
        text = "".join([part.text async for part in request if isinstance(part, ChatDelta)])
    return text, request.ending


async def spoken(running: Running, name: str) -> bytes:
    speak = Speak(
        request=name, model="embedded", text="Hi.", voice="ryan", seed=1, format="pcm", max_frames=12
    )
    async with running.client.speak(speak) as request:
        return b"".join([part.data async for part in request])


@pytest.mark.parametrize("policy", ["race", "pace", "deadline"])
@pytest.mark.parametrize("name", ["together", "cohost"])
async def test_both_at_once(
    name: str, policy: Any, tiny_folder: Path, chatting: Running, speech: Running
) -> None:
    alone, audio = (await said(chatting, "alone", max_tokens=200))[0], await spoken(speech, "alone")
    loaded = layout.load(name)
    settings = msgspec.structs.replace(
        loaded.chat, models=(f"tiny={tiny_folder}",), chunk=64, slice_tokens=64
    )
    schedule = Schedule(policy=policy, lead_s=0.7)
    both: dict[str, Any] = {}

    async with Running(msgspec.structs.replace(loaded, chat=settings, schedule=schedule)) as running:
        assert {model.family for model in running.models} == {"speech", "chat"}

        async def speak() -> None:
            both["audio"] = await spoken(running, "s")

        async def talk() -> None:
            both["text"], both["ending"] = await said(running, "c", max_tokens=200)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak)
            tasks.start_soon(talk)
    assert both["ending"].reason in ("stop", "length")
    assert both["text"] == alone
    assert both["audio"] == audio


async def test_a_reader_that_stands_still_holds_nobody_up(chatting: Running) -> None:
    slow = chatting.client.chat(chat("slow", lookahead=4, max_tokens=200))
    async with slow:
        text, _ = await said(chatting, "other")
        more, _ = await said(chatting, "another")
        parts = [part async for part in slow]
    assert text == more
    assert sum(part.tokens for part in parts if isinstance(part, ChatDelta)) == 200
    assert isinstance(parts[-1], ChatDone)
    joined = "".join(part.text for part in parts if isinstance(part, ChatDelta))
    assert joined.startswith(text[:10])
    assert chatting.client.active() == 0
