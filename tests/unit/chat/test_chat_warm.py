"""What is computed before anybody asks."""

from collections.abc import Callable
from typing import Any

import pytest

from vivavoce.bus.messages import ChatDone
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.events import Event, Failed
from vivavoce.stages.chat.warm import ANSWER, LENGTHS, warm_up


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """By any engine."""
    events: list[Event] = []
    step = Engine.step

    def noted(engine: Engine, *given: Any) -> list[Event]:
        made = step(engine, *given)
        events.extend(made)
        return made

    monkeypatch.setattr(Engine, "step", noted)
    return events


def _answers(told: list[Event]) -> list[ChatDone]:
    assert not [one for one in told if isinstance(one, Failed)]
    return [one for one in told if isinstance(one, ChatDone)]


def test_prompts_of_all_lengths_are_answered_in_both_ways(
    told: list[Event], tiny_models: Callable[..., Any]
) -> None:
    warm_up(tiny_models(), EngineOptions(slice_tokens=64))
    answers = _answers(told)
    assert sorted(one.prompt_tokens for one in answers) == sorted(2 * LENGTHS)
    assert all(one.completion_tokens and not one.cached_tokens for one in answers)


def test_a_short_context_is_enough(
    told: list[Event], tiny_models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models()
    monkeypatch.setattr(model, "context", 32)
    warm_up(model, EngineOptions())
    assert {one.prompt_tokens for one in _answers(told)} == {LENGTHS[0], 32 - ANSWER}
