"""The prompt cache never shows: a warm answer equals a cold one bit for bit, whatever was cached before."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.bus.messages import Sampling
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.model import KvOptions
from vivavoce.stages.chat.prefix import PrefixCache, cuts

END = 257
CHUNK = 16
GREEDY = Sampling(temperature=0, seed=0)
MODELS = ["llama", "sliding", "hybrid"]

turns = st.lists(st.integers(0, 255), min_size=1, max_size=30).map(lambda tokens: [*tokens, END])
# One step of a life of the server: which conversation to go on with, how many of its turns to keep, what to
# say next, and after how many slices the client hangs up (0: never).
steps = st.tuples(st.integers(0, 3), st.integers(0, 4), turns, st.sampled_from([0, 0, 0, 1, 2, 5]))


def options(cache_bytes: int) -> EngineOptions:
    return EngineOptions(chunk=CHUNK, rows=4, cache_bytes=cache_bytes)


def told(outcome: Any) -> Any:
    return outcome.text, outcome.reasons, outcome.logprobs


@pytest.fixture(params=MODELS)
def model(request: Any, tiny_models: Any) -> Any:
    return tiny_models(request.param)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(life=st.lists(steps, min_size=1, max_size=8), limit=st.sampled_from([0, 40_000, 10_000_000]))
def test_warm_equals_cold(
    model: Any, ask: Any, run: Any, request_of: Any, life: list[Any], limit: int
) -> None:
    warm, cold = Engine(model, options(limit)), Engine(model, options(0))
    chats: list[list[list[int]]] = [[[1, 2, 3, 4, 5, 6, 7, END]] for _ in range(4)]
    wanted = {"max_tokens": 5, "sampling": GREEDY, "logprobs": 2}
    for which, kept, turn, hang_up in life:
        chats[which] = [*chats[which][: max(1, kept)], turn]
        prompt = [token for said in chats[which] for token in said]
        if hang_up:
            warm.submit(request_of(model, "gone", prompt, **wanted))
            run(warm, hang_up)
            warm.cancel("gone")
            assert not warm.busy
            continue
        outcome = ask(warm, prompt, **wanted)
        assert told(outcome) == told(ask(cold, prompt, **wanted))
        assert outcome.started.cached_tokens < len(prompt)
        assert warm.cache.nbytes <= limit


@pytest.mark.parametrize("options_", [KvOptions(bits=8, group_size=32), KvOptions(max_size=32)])
def test_with_kv_options(tiny_models: Any, ask: Any, options_: KvOptions) -> None:
    model = tiny_models("llama", options_)
    prompt = list(range(100))
    wanted = {"max_tokens": 8, "sampling": GREEDY, "logprobs": 2}
    warm = Engine(model, options(10_000_000))
    ask(warm, prompt[:70], **wanted)
    outcome = ask(warm, prompt, **wanted)
    assert outcome.started.cached_tokens == 64
    assert told(outcome) == told(ask(Engine(model, options(0)), prompt, **wanted))


def test_side_by_side(model: Any, run: Any, ask: Any, request_of: Any) -> None:
    """With a seed, what runs beside a request changes no bit of it."""
    prompts = {f"r{n}": [*range(n, 40 + n), END, *range(5 * n), 7] for n in range(4)}
    wanted = {"max_tokens": 12, "logprobs": 1, "sampling": Sampling(temperature=0.8, seed=9)}
    engine = Engine(model, options(10_000_000))
    for name, prompt in prompts.items():
        engine.submit(request_of(model, name, prompt, **wanted))
    outcomes = run(engine)
    for name, prompt in prompts.items():
        assert told(outcomes[name]) == told(ask(Engine(model, options(0)), prompt, **wanted))


def test_shares_what_is_common(model: Any, ask: Any) -> None:
    engine = Engine(model, options(10_000_000))
    system = [*range(40), END]
    first = [*system, *range(100, 130), END, 3]
    ask(engine, first, max_tokens=2)
    again = ask(engine, [*first[:-1], *range(30), END, 3], max_tokens=2)
    assert again.started.cached_tokens == len(first) - 1
    other = ask(engine, [*system, *range(60, 90), END, 3], max_tokens=2)
    assert other.started.cached_tokens == len(system)
    edited = ask(engine, [*first[:50], 250, *first[51:]], max_tokens=2)
    assert len(system) <= edited.started.cached_tokens <= 50


def test_cuts_depend_on_what_is_before_only() -> None:
    tokens = [*range(10), END, *range(50), END, 1, END, *range(20)]
    whole = cuts(tokens, CHUNK, frozenset({END}))
    for length in range(len(tokens)):
        assert cuts(tokens[:length], CHUNK, frozenset({END})) == [cut for cut in whole if cut <= length]
    assert 11 in whole  # a turn ended
    assert max(b - a for a, b in zip([0, *whole], whole, strict=False)) <= CHUNK


def test_least_recently_used_goes_first() -> None:
    import mlx.core as mx

    part = [mx.zeros((100,), mx.uint8)]
    cache = PrefixCache(300)
    a = cache.add(cache.root, [1], part)
    b = cache.add(a, [2], part)
    c = cache.add(cache.root, [3], part)
    assert (cache.nbytes, len(cache)) == (300, 3)
    cache.find([1, 2], [1, 2])
    cache.add(b, [4], part)
    assert c not in cache.root.children.values()
    assert cache.find([1, 2, 4, 9], [1, 2, 3]).end == 3
    cache.add(cache.root, [5], part)
    assert cache.find([1, 2, 4], [1, 2, 3]).end == 2  # a leaf went, not a chunk that others stand on
