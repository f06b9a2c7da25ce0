"""Prompts that are read in passes shorter than a chunk: beside speech no slice may take long."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from vivavoce.bus.messages import Sampling
from vivavoce.stages.chat import prefill
from vivavoce.stages.chat.engine import Engine, EngineOptions

PROMPT = [97 + n * n % 23 for n in range(150)]


def test_no_pass_is_longer_than_a_slice(
    tiny_models: Callable[..., Any], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models()
    passes: list[int] = []
    call = type(model.net).__call__

    def counted(net: Any, tokens: mx.array, **options: Any) -> mx.array:
        passes.append(tokens.shape[1])
        return call(net, tokens, **options)

    monkeypatch.setattr(type(model.net), "__call__", counted)
    ask(Engine(model, EngineOptions(chunk=64, slice_tokens=24)), PROMPT, max_tokens=1)
    # Two chunks of 64 in passes of 24, what is left of the prompt but for its last token, and that one.
    assert passes == [24, 24, 16, 24, 24, 16, 21, 1]


def test_a_warm_answer_is_a_cold_one(tiny_models: Callable[..., Any], ask: Callable[..., Any]) -> None:
    options, greedy = EngineOptions(chunk=64, slice_tokens=24), Sampling(temperature=0)
    cold = ask(Engine(tiny_models(), options), PROMPT, max_tokens=40, logprobs=3, sampling=greedy)
    engine = Engine(tiny_models(), options)
    ask(engine, PROMPT[:100], max_tokens=3, sampling=greedy)
    warm = ask(engine, PROMPT, max_tokens=40, logprobs=3, sampling=greedy)
    assert warm.started.cached_tokens == 64
    assert warm.text == cold.text
    assert warm.logprobs == cold.logprobs


@pytest.mark.parametrize(("most_s", "tokens"), [(1.0, 256), (0.1, 64), (0.064, 64), (0.03, 16), (0.001, 16)])
def test_the_longest_slice_that_is_short_enough(
    most_s: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_ms_a_token(_model: object, tokens: int) -> float:
        return tokens / 1000

    monkeypatch.setattr(prefill, "_pass_s", one_ms_a_token)
    assert prefill.measure_slice(None, 256, most_s) == tokens  # pyright: ignore[reportArgumentType]
