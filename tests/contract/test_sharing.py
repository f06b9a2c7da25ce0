"""Chat and speech on one device: whoever leaves, and whoever is refused, gives the device back."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import zmq

from vivavoce.bus import layout
from vivavoce.bus.layout import Schedule
from vivavoce.bus.lease import parties
from vivavoce.bus.loop import Station
from vivavoce.bus.messages import Chat, ChatDelta, Speak
from vivavoce.bus.running import Running
from vivavoce.stages.chat import engine, slices


@pytest.fixture
async def together(tiny_folder: Path) -> AsyncGenerator[Running]:
    """What was not given back would be lost after a minute, not after the test's time."""
    loaded = layout.load("together")
    chat = msgspec.structs.replace(loaded.chat, models=(f"tiny={tiny_folder}",), slice_tokens=64)
    schedule = Schedule(timeout_s=60)
    async with Running(msgspec.structs.replace(loaded, chat=chat, schedule=schedule)) as running:
        yield running


def speak(name: str, **fields: object) -> Speak:
    plain = Speak(
        request=name, model="embedded", text="One, two, three, four.", voice="ryan", seed=1, max_frames=16
    )
    return msgspec.structs.replace(plain, **fields)


async def test_the_device_comes_back(together: Running) -> None:
    async def chat(name: str) -> int:
        asked = Chat(request=name, model="tiny", prompt=tuple(range(100, 130)), max_tokens=8)
        async with together.client.chat(asked) as request:
            return sum([part.tokens async for part in request if isinstance(part, ChatDelta)])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat, "beside")
            for leave in range(4):
                async with together.client.speak(speak(f"leaves-{leave}")) as request:
                    for _ in range(leave):
                        await anext(request, None)
            async with together.client.speak(speak("refused", voice="nobody")) as request:
                assert [audio async for audio in request] == []
                assert request.ending is not None
                assert request.ending.reason == "error"
            text = speak("waits for text", text="", more_text=True)
            async with together.client.speak(text) as request:
                assert await chat("before the text") > 0
                await request.text("One, two.")
                await anext(request)
                assert await chat("amid the text") > 0
                await request.text("", final=True)
                assert len([audio async for audio in request]) > 3
        assert await chat("after") > 0


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [("together", {}, [32, 32]), ("together", {"slice_tokens": 64}, [64, 64]), ("chat", {}, [None, None])],
)
async def test_slices_are_of_one_size_from_start_to_start(
    name: str,
    given: dict[str, Any],
    read: list[int | None],
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the machine is doing when a model is loaded: another size would round otherwise."""
    sizes: list[int | None] = []

    class Noting(engine.Engine):
        def __init__(self, model: Any, options: engine.EngineOptions, *rest: Any) -> None:
            super().__init__(model, options, *rest)
            sizes.append(options.slice_tokens)

    def measured(_models: object, _chunk: int, _most_s: float) -> int:
        return 32 + len(sizes)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine, "Engine", Noting)
    monkeypatch.setattr(slices, "measure", measured)
    loaded = layout.load(name)
    chat = msgspec.structs.replace(loaded.chat, models=(f"tiny={tiny_folder}",), **given)
    for _ in range(2):
        async with Running(msgspec.structs.replace(loaded, chat=chat)):
            pass
    assert sizes == read


@pytest.mark.parametrize("name", ["speech", "chat", "split"])
async def test_who_shares_with_nobody_asks_nobody(name: str, tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    station = Station(layout.load(name), "main", "device", context, tmp_path)
    async with parties(station, lambda: None) as shared:
        assert shared.speech.alone
        assert shared.chat.alone
        async with shared.speech, shared.chat:
            pass
    context.term()
