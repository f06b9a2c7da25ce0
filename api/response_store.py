"""Answers of `/v1/responses` that are remembered in memory, the latest, so that a later one can go on from them."""

from collections import OrderedDict

import msgspec

from ..bus.errors import RequestError
from .chat_schema import Json


class Stored(msgspec.Struct, frozen=True):
    response: Json
    items: list[Json]
    """What came in, as it was sent."""
    messages: list[Json]
    """The conversation up to and with the answer, without instructions."""


class ResponseStore:
    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._stored: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, name: str, stored: Stored) -> None:
        """Remember; the least recently used ones make room."""
        size = len(msgspec.json.encode(stored))
        self._stored[name] = stored, size
        self.nbytes += size
        while self._stored and (len(self._stored) > self._most or self.nbytes > self._most_bytes):
            _, (_, size) = self._stored.popitem(last=False)
            self.nbytes -= size

    def get(self, name: str, param: str | None = None) -> Stored:
        """:raises RequestError: 404, it is not remembered."""
        if name not in self._stored:
            raise RequestError(
                f"There is no response {name!r}: it was not stored, or the server has forgotten it.",
                param,
                status=404 if param is None else 400,
                code="response_not_found",
            )
        self._stored.move_to_end(name)
        return self._stored[name][0]

    def delete(self, name: str) -> None:
        """:raises RequestError: 404."""
        self.get(name)
        _, size = self._stored.pop(name)
        self.nbytes -= size
