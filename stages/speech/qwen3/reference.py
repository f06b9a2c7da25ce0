"""References as a model hears them: codes and x-vector, computed once for each clip."""

from collections.abc import Generator
from hashlib import blake2b

import mlx.core as mx
import numpy as np

from ....bus.errors import RequestError
from ...cache import ByteCache
from .clone import Clone
from .model import Qwen3TTS
from .speaker_encoder import RATE

KEPT_BYTES = 64 * 1024 * 1024


class Listener:
    """What a base model has heard of the references so far. Keys are hashes of the sound, never names."""

    def __init__(self, model: Qwen3TTS, silence_s: float) -> None:
        self._model = model
        self._silence = np.zeros(round(silence_s * RATE), np.float32)
        self._heard: ByteCache[Clone] = ByteCache(KEPT_BYTES)

    def key(self, pcm: bytes) -> str:
        return blake2b(pcm, digest_size=16).hexdigest()

    def hear(self, pcm: bytes, text: str | None) -> Generator[None, None, Clone]:
        """The voice in 16-bit PCM at 24 kHz; with what is said in it also the codes.

        A generator, so that others may compute between its steps of about a second of sound each.
        """
        encoder, speaker = self._model.codec_encoder, self._model.speaker_encoder
        assert speaker is not None
        key = f"{self.key(pcm)}{'' if text is None else ' with codes'}"
        found = self._heard.get(key)
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
            self._heard.put(key, found, x_vector.nbytes + (codes.nbytes if codes is not None else 0))
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
