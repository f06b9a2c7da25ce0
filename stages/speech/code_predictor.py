"""Stage `code_predictor`: code groups 1–15 of a frame, and the sum that the talker goes on from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import mlx.core as mx

from ...bus.channel import Outbox
from ...bus.messages import Codes, Ending, Feedback, Hidden, Hold, Message, Seam, Speak
from ...bus.turns import SpeechParty
from ..actor import Actor
from ..arrays import array
from .batches import batches
from .qwen3.model import Qwen3TTS
from .qwen3.sampling import request_key


@dataclass
class _Request:
    model: Qwen3TTS
    key: mx.array


class CodePredictorStage(Actor[_Request]):
    name = "code_predictor"

    def __init__(
        self,
        models: Mapping[str, Qwen3TTS],
        progress: AbstractContextManager[None],
        party: SpeechParty | None = None,
        rows: int = 1,
    ) -> None:
        """:param rows: requests computed together, at most."""
        super().__init__(progress, party)
        self._models = models
        self._rows = rows
        self._waiting: list[tuple[_Request, Hidden]] = []

    def open(self, speak: Speak) -> _Request:
        return _Request(self._models[speak.model], request_key(speak.seed))

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        if isinstance(message, Hidden):
            self._waiting.append((state, message))
        else:
            assert isinstance(message, Hold | Seam)
            await self.caught_up(outbox)  # what it stands behind
            await outbox.send(message)

    async def end(self, state: _Request, ending: Ending, outbox: Outbox) -> None:
        await self.caught_up(outbox)

    async def caught_up(self, outbox: Outbox) -> None:
        """The frames that wait, those of one model together; first frames ahead of the others."""
        waiting, self._waiting = self._waiting, []
        for batch in batches(waiting, lambda each: (each[1].frame > 0, id(each[0].model)), self._most):
            async with self._party:
                await self._predict(batch, outbox)

    def _most(self, each: tuple[_Request, Hidden]) -> int:
        return min(self._rows, each[0].model.predictor.widest)

    async def _predict(self, batch: list[tuple[_Request, Hidden]], outbox: Outbox) -> None:
        names = [message.request for _, message in batch]
        made = await self._together(batch, names, _frames, outbox)
        # The decoder first: frame 0 is audio before the talker begins frame 1.
        for (_, message), (codes, _) in made:
            await outbox.send(Codes(request=message.request, frame=message.frame, codes=codes))
        for (_, message), (_, embedding) in made:
            await outbox.send(Feedback(request=message.request, frame=message.frame, embedding=embedding))


def _frames(batch: list[tuple[_Request, Hidden]]) -> list[tuple[mx.array, mx.array]]:
    model = batch[0][0].model
    made = model.predictor.frames(
        [array(message.hidden) for _, message in batch],
        [array(message.code0) for _, message in batch],
        model.sub_sampling,
        [state.key for state, _ in batch],
        [mx.array([message.frame], mx.int32) for _, message in batch],
    )
    mx.async_eval(made)
    return made
