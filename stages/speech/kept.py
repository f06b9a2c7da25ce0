"""What has been computed of voices: kept in memory, and of stored voices also on disk, for the next start."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import mlx.core as mx
import msgspec

from ...bus.messages import Array, Speak
from ...bus.wire import encode
from ...configs.voice_files import VoiceFiles
from ..arrays import array
from ..cache import ByteCache
from .qwen3.model import Qwen3TTS

V = TypeVar("V")

Groups = list[list[mx.array]]


class _File(msgspec.Struct):
    groups: list[list[Array]]


_decoder = msgspec.msgpack.Decoder(_File)


class Kept(Generic[V]):
    """Values by model, voice and whatever else they depend on. With a bound of 0 nothing is kept."""

    def __init__(
        self,
        kind: str,
        bound: int,
        files: VoiceFiles | None,
        *,
        parts: Callable[[V], Groups],
        whole: Callable[[Groups], V],
    ) -> None:
        """
        :param kind: of what is kept, in the names of files.
        :param bound: bytes in memory.
        :param parts: the arrays of a value, from which `whole` makes it again.
        """
        self._kind = kind
        self._memory: ByteCache[V] = ByteCache(bound)
        self._bound = bound
        self._files = files if bound else None
        self._parts, self._whole = parts, whole

    def load(self, models: Mapping[str, Qwen3TTS]) -> None:
        """Take from disk what was kept for these models, as far as memory goes."""
        if self._files is None:
            return
        left = self._bound
        for fingerprint in {model.fingerprint for model in models.values()} - {""}:
            for name, data in self._files.all(f"{self._kind}-{fingerprint}-"):
                left -= len(data)
                if left < 0:
                    return
                self._take(name, data)

    def get(self, speak: Speak, model: Qwen3TTS, key: str) -> V | None:
        name = self._name(speak, model, key)
        found = self._memory.get(name)
        if found is not None:
            self._write(speak, model, name, found)  # it may have been computed before the voice was stored
        elif self._files is not None and speak.stored and model.fingerprint:
            data = self._files.find(speak.stored, name)
            found = None if data is None else self._take(name, data)
        return found

    def put(self, speak: Speak, model: Qwen3TTS, key: str, value: V) -> None:
        name = self._name(speak, model, key)
        self._memory.put(name, value, sum(part.nbytes for group in self._parts(value) for part in group))
        self._write(speak, model, name, value)

    def _write(self, speak: Speak, model: Qwen3TTS, name: str, value: V) -> None:
        files = self._files
        if files is not None and speak.stored and model.fingerprint and not files.has(speak.stored, name):
            files.keep(speak.stored, name, encode(_File(self._parts(value))))

    def _name(self, speak: Speak, model: Qwen3TTS, key: str) -> str:
        return f"{self._kind}-{model.fingerprint or speak.model}-{key}"

    def _take(self, name: str, data: bytes) -> V:
        groups = [[array(part) for part in group] for group in _decoder.decode(data).groups]
        value = self._whole(groups)
        self._memory.put(name, value, len(data))
        return value
