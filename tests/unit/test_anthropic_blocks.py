"""Content blocks of a message: whatever comes in whatever order, they are numbered and closed (O25)."""

import json
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.api.messages import Blocks, Event
from vivavoce.bus.messages import Call, ChatDelta

ARGUMENTS = '{"city": "Oslo"}'


def part(kind: str, number: int) -> ChatDelta:
    first, second = (Call(f"call_{number}{letter}", "get_weather", ARGUMENTS) for letter in "ab")
    match kind:
        case "calls":
            return ChatDelta(request="r", choice=0, calls=(first, second))
        case "pieces":
            begin, rest = (Call(first.id, first.name, text) for text in (ARGUMENTS[:5], ARGUMENTS[5:]))
            return ChatDelta(request="r", choice=0, calls=(begin, rest, second))
        case "both":
            return ChatDelta(request="r", choice=0, reasoning="Hm.", text="Yes", calls=(first,))
        case "nothing":
            return ChatDelta(request="r", choice=0)
        case "reasoning":
            return ChatDelta(request="r", choice=0, reasoning="Hm.")
        case _:
            return ChatDelta(request="r", choice=0, text="Yes.")


def in_order(events: list[Event]) -> list[str]:
    """Check the events; the kinds of the blocks."""
    kinds: list[str] = []
    open_, deltas = False, [""]
    for kind, data in events:
        match kind:
            case "content_block_start":
                assert not open_
                assert data["index"] == len(kinds)
                kinds.append(data["content_block"]["type"])
                open_, deltas = True, []
            case "content_block_delta":
                assert open_
                assert data["index"] == len(kinds) - 1
                deltas.append(data["delta"]["type"])
            case _:
                assert kind == "content_block_stop"
                assert open_
                assert data["index"] == len(kinds) - 1
                assert ("signature_delta" in deltas[-1:]) == (kinds[-1] == "thinking")
                open_ = False
    assert not open_
    assert kinds
    return kinds


KINDS = ("text", "reasoning", "calls", "pieces", "both", "nothing")


@settings(deadline=None)
@given(st.lists(st.sampled_from(KINDS), max_size=12), st.sampled_from([None, 1]))
def test_any_order_is_numbered_and_closed(given_kinds: list[str], calls: int | None) -> None:
    blocks = Blocks(calls)
    events = [event for n, kind in enumerate(given_kinds) for event in blocks.take(part(kind, n))]
    kinds = in_order([*events, *blocks.end()])
    if calls is not None:
        assert kinds.count("tool_use") <= calls
    told: dict[int, str] = defaultdict(str)
    for _, data in events:
        told[data["index"]] += data.get("delta", {}).get("partial_json", "")
    assert all(json.loads(text) == {"city": "Oslo"} for text in told.values() if text)
    assert sum(bool(text) for text in told.values()) == kinds.count("tool_use")


def test_the_four_shapes() -> None:
    for given_kinds, wanted in (
        (["text", "text"], ["text"]),
        (["calls"], ["tool_use", "tool_use"]),
        (["pieces"], ["tool_use", "tool_use"]),
        (["reasoning", "calls"], ["thinking", "tool_use", "tool_use"]),
        (["text", "calls"], ["text", "tool_use", "tool_use"]),
        ([], ["text"]),
    ):
        blocks = Blocks(None)
        events = [event for n, kind in enumerate(given_kinds) for event in blocks.take(part(kind, n))]
        assert in_order([*events, *blocks.end()]) == wanted
