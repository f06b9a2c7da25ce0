"""Stages that do nothing but hold the device, for processes that share one by lease. See `vices`.

A chat request holds it as its prompt says: `briefly`, `forever` (its loop lives), or `wedged` (nothing of it does).
A speech request needs it for its one frame.
"""

import threading
from collections.abc import Callable

import anyio

from vivavoce.bus.channel import Inbox, Outbox, Stage
from vivavoce.bus.control import ModelInfo, Notice, Progress, Ready
from vivavoce.bus.device_thread import Commands
from vivavoce.bus.lease import parties
from vivavoce.bus.loop import Station, Wiring
from vivavoce.bus.messages import Chat, ChatDelta, Close, Ending, Pcm, Speak
from vivavoce.bus.turns import Party
from vivavoce.stages.host import loop_stages

__all__ = ["device_main", "loop_stages"]

WEDGED_S = 1.0


class Holder:
    """A stage that answers a request once it has the device."""

    def __init__(self, name: str, party: Party) -> None:
        self._name = name
        self._party = party

    def open_requests(self) -> tuple[str, ...]:
        return ()

    async def run(self, inbox: Inbox, outbox: Outbox) -> None:
        async for message in inbox:
            match message:
                case Speak():
                    await outbox.send(message)
                    if self._name == "codec_decoder":
                        async with self._party:
                            await outbox.send(
                                Pcm(request=message.request, frame=0, frames=1, samples=bytes(3840))
                            )
                        await outbox.send(Ending(request=message.request, reason="stop", frames=1))
                case Chat():
                    async with self._party:
                        await outbox.send(ChatDelta(request=message.request, choice=0, text="held"))
                        if message.prompt == "forever":
                            await anyio.sleep_forever()
                        elif message.prompt == "wedged":
                            await anyio.sleep(0.05)  # the word is out
                            threading.Event().wait(WEDGED_S)
                    self._party.rest()
                    await outbox.send(Ending(request=message.request, reason="stop"))
                case Close() | Ending() | _:
                    pass


async def device_main(
    station: Station, progress: Progress, notify: Callable[[Notice], None], commands: Commands
) -> None:
    async with parties(station, lambda: None) as shared, Wiring(station) as wiring:
        stages: dict[str, Stage] = {
            name: Holder(name, shared.chat if name == "chat" else shared.speech) for name in station.stages
        }
        progress.waiting_s = lambda: max(party.waiting_s for party in shared)
        wiring.run(stages)
        for party in shared:
            party.join()
        notify(Ready(backend="none", models=(ModelInfo("m", "speech", "custom_voice", "0", "m"),)))
        async for command in commands:
            wiring.relink(command.process, command.epoch, command.failure)
