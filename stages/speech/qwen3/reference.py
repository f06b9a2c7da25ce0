"""References as a model hears them: codes and x-vector, computed once for each clip."""

from collections.abc import Generator
from hashlib import blake2b

import mlx.core as mx
import numpy as np

from ....bus.errors import RequestError
from ....bus.messages import Speak
from ..kept import Kept
from .clone import Clone
from .model import Qwen3TTS
from .speaker_encoder import RATE


class Listener:
    """What a base model hears in references. Keys are hashes of the sound, never names."""

    def __init__(self, model: Qwen3TTS, silence_s: float, heard: Kept[Clone]) -> None:
        self._model = model
        self._silence = np.zeros(round(silence_s * RATE), np.float32)
        self._heard = heard

    def key(self, pcm: bytes) -> str:
        made = blake2b(pcm, digest_size=16)
        made.update(f" and {len(self._silence)} samples of silence".encode())
        return made.hexdigest()

    def hear(self, speak: Speak, key: str, text: str | None) -> Generator[None, None, Clone]:
        """The voice in a request's reference, whose `key` this is; with what is said in it also the codes.

        A generator, so that others may compute between its steps of about a second of sound each.
        """
        pcm = speak.reference
        assert pcm is not None
        encoder, speaker = self._model.codec_encoder, self._model.speaker_encoder
        assert speaker is not None
        key += "" if text is None else "-codes"
        found = self._heard.get(speak, self._model, key)
        if found is None:
            samples = np.frombuffer(pcm, "<i2").astype(np.float32) * np.float32(2**-15)
            x_vector, codes = speaker(samples), None
            mx.eval(x_vector)
            yield
            if text is not None:
                if encoder is None:
                    raise RequestError(
                        "This checkpoint has no codec encoder, so it cannot use a transcript: leave out ref_text.",
                        "ref_text",
                    )
                codes = yield from encoder.encode(mx.array(np.concatenate([samples, self._silence])))
            found = Clone(x_vector, codes)
            self._heard.put(speak, self._model, key, found)
        return found._replace(text=text)

    def given(self, embedding: bytes) -> Clone:
        """A voice given as its speaker embedding.

        :raises RequestError: it has another size than this model's.
        """
        values, size = np.frombuffer(embedding, "<f4"), self._model.config.talker_config.hidden_size
        if len(values) != size:
            raise RequestError(
                f"`speaker_embedding` has {len(values)} numbers, but this model's have {size}.",
                "speaker_embedding",
            )
        return Clone(mx.array(values))
