"""Prompts that are read in passes shorter than a chunk: beside speech no slice may take long."""

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from vivavoce.bus.messages import Sampling
from vivavoce.stages.chat import prefill
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.prefill import Reader
from vivavoce.stages.chat.prefix import PrefixCache

PROMPT = [97 + n * n % 23 for n in range(150)]
GREEDY = Sampling(temperature=0)


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
    options = EngineOptions(chunk=64, slice_tokens=24)
    cold = ask(Engine(tiny_models(), options), PROMPT, max_tokens=40, logprobs=3, sampling=GREEDY)
    engine = Engine(tiny_models(), options)
    ask(engine, PROMPT[:100], max_tokens=3, sampling=GREEDY)
    warm = ask(engine, PROMPT, max_tokens=40, logprobs=3, sampling=GREEDY)
    assert warm.started.cached_tokens == 64
    assert warm.text == cold.text
    assert warm.logprobs == cold.logprobs


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with slices, in its order: one is built, queued, and waited for, mostly or to its end."""
    done: list[str] = []

    def noting(owner: Any, name: str, what: str) -> None:
        call = getattr(owner, name)

        def noted(self: Any) -> Any:
            done.append(what)
            return call(self)

        monkeypatch.setattr(owner, name, noted)

    noting(Reader, "_build", "build")
    noting(prefill._Slice, "queue", "queue")  # pyright: ignore[reportPrivateUsage]
    noting(Reader, "wait", "most")
    noting(Reader, "finish", "all")
    return done


def test_a_slice_is_built_while_the_one_before_is_computed(
    work: list[str], tiny_models: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(chunk=64, slice_tokens=64))
    engine.submit(request_of(model, "r", PROMPT, max_tokens=1))
    engine.step()
    assert work == ["build", "queue", "build", "most"]
    engine.step()
    assert work[4:] == ["queue", "build", "most"]
    engine.step()
    assert work[7:] == ["queue", "all"]


def test_the_device_is_given_back_with_no_slice_on_it(
    work: list[str], tiny_models: Callable[..., Any], request_of: Callable[..., Any], run: Callable[..., Any]
) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(chunk=64))
    engine.submit(request_of(model, "r", PROMPT, max_tokens=1))
    engine.step()
    assert engine.wind_up() == []
    assert work == ["build", "queue", "build", "most", "all"]
    engine.step()
    assert work[5:] == ["queue", "build", "most"]
    assert run(engine)["r"].done is not None


@pytest.fixture
def break_next_slice(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Something at its end cannot be computed, which MLX tells whoever waits next for anything, and only once."""
    build = Reader._build  # pyright: ignore[reportPrivateUsage]

    def broken(reader: Reader) -> Any:
        monkeypatch.setattr(Reader, "_build", build)
        one = build(reader)
        one.states[-1] = one.states[-1], mx.linalg.inv(mx.zeros((3, 3)), stream=mx.cpu)
        return one

    return lambda: monkeypatch.setattr(Reader, "_build", broken)


def test_a_slice_that_fails_late_is_no_failure_of_a_prompt_that_begins_alike(
    tiny_models: Callable[..., Any],
    request_of: Callable[..., Any],
    run: Callable[..., Any],
    ask: Callable[..., Any],
    break_next_slice: Callable[[], None],
) -> None:
    model = tiny_models()
    wanted = {"max_tokens": 8, "sampling": GREEDY, "logprobs": 2}
    alone = ask(Engine(model, EngineOptions(chunk=64)), PROMPT, **wanted)
    engine = Engine(model, EngineOptions(chunk=64))
    for name in ("fails", "goes on"):
        engine.submit(request_of(model, name, PROMPT, **wanted))
    break_next_slice()
    outcomes = run(engine)
    assert "LU factorization failed" in outcomes["fails"].failed
    assert outcomes["goes on"].text == alone.text
    assert outcomes["goes on"].logprobs == alone.logprobs
    assert outcomes["goes on"].started.cached_tokens == 0  # not what had failed


@pytest.mark.parametrize("guessed", [False, True])
def test_a_slice_that_fails_late_is_no_failure_of_an_answer(
    guessed: bool,
    tiny_models: Callable[..., Any],
    request_of: Callable[..., Any],
    run: Callable[..., Any],
    break_next_slice: Callable[[], None],
) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(chunk=64), tiny_models(seed=1) if guessed else None)
    engine.submit(request_of(model, "goes on", PROMPT, max_tokens=30, sampling=GREEDY))
    while not engine.rows():
        engine.step()
    engine.submit(request_of(model, "fails", [3, *PROMPT]))
    break_next_slice()
    outcomes = run(engine)
    assert "LU factorization failed" in outcomes["fails"].failed
    assert outcomes["fails"].started is None
    assert outcomes["goes on"].done.completion_tokens == 30


def test_what_a_cancelled_prompt_left_is_found(
    tiny_models: Callable[..., Any], request_of: Callable[..., Any], ask: Callable[..., Any]
) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(chunk=64))
    engine.submit(request_of(model, "gone", PROMPT))
    engine.step()
    assert engine.cancel("gone")
    assert ask(engine, PROMPT, max_tokens=1).started.cached_tokens == 64


def test_the_store_holds_chunks_and_nothing_else(tiny_models: Callable[..., Any]) -> None:
    """Not the caches that they were cut from."""
    store, prompt = PrefixCache(1 << 30), [97 + n * n % 23 for n in range(1001)]
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    reader = Reader(tiny_models(), store, prompt, 50, None)
    while not reader.ready:
        reader.queue()
        reader.wait()
    reader.finish()
    del reader
    gc.collect()
    assert len(store) == 20
    assert mx.get_active_memory() - before < 1.5 * store.nbytes
