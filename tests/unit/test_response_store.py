"""What `/v1/responses` remembers is bounded by count and by bytes."""

import pytest

from vivavoce.api.response_store import ResponseStore, Stored
from vivavoce.bus.errors import RequestError


def test_the_least_recently_used_make_room() -> None:
    store = ResponseStore(2, 10_000)
    for name in "ab":
        store.add(name, Stored({"id": name}, [], []))
    store.get("a")
    store.add("c", Stored({"id": "c"}, [], []))
    assert store.get("a").response == {"id": "a"}
    with pytest.raises(RequestError):
        store.get("b")
    store.delete("a")
    store.delete("c")
    assert (len(store), store.nbytes) == (0, 0)


def test_bytes_are_bounded() -> None:
    store = ResponseStore(100, 1000)
    for n in range(50):
        store.add(str(n), Stored({"text": "x" * 100}, [], []))
        assert store.nbytes <= 1000
    assert 1 <= len(store) < 10
    store.add("large", Stored({"text": "x" * 2000}, [], []))
    assert (len(store), store.nbytes) == (0, 0)
