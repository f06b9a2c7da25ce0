"""Stage `code_predictor`: code groups 1–15 of a frame, and the sum that the talker goes on from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import mlx.core as mx

from ...bus.channel import Outbox
from ...bus.messages import Codes, Feedback, Hidden, Hold, Message, Seam, Speak
from ...bus.turns import SpeechParty
from ..actor import Actor
from ..arrays import array
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
    ) -> None:
        super().__init__(progress, party)
        self._models = models

    def open(self, speak: Speak) -> _Request:
        return _Request(self._models[speak.model], request_key(speak.seed))

    async def handle(self, state: _Request, message: Message, outbox: Outbox) -> None:
        if isinstance(message, Hold | Seam):
            await outbox.send(message)
            return
        assert isinstance(message, Hidden)
        model = state.model
        codes, embedding = model.predictor.frame(
            array(message.hidden),
            array(message.code0),
            model.sub_sampling,
            state.key,
            mx.array([message.frame], mx.int32),
        )
        mx.async_eval(codes, embedding)
        # The decoder first: frame 0 is audio before the talker begins frame 1.
        await outbox.send(Codes(request=message.request, frame=message.frame, codes=codes))
        await outbox.send(Feedback(request=message.request, frame=message.frame, embedding=embedding))
