"""The engine: joining and leaving, limits, seeds, drafts, grammars, options."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from vivavoce.bus.errors import RequestError, StartError
from vivavoce.bus.messages import Sampling
from vivavoce.stages.chat.conversation import Conversation, compose, plain
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.events import Delta, Request
from vivavoce.stages.chat.model import KvOptions, check_draft
from vivavoce.stages.chat.sampling import Sampler

GREEDY = Sampling(temperature=0)
PROMPT = [*b"once upon a time"]


def tokens_of(outcome: Any) -> list[int]:
    return [one.token for one in outcome.logprobs]


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid"])
def test_equals_mlx_lm(tiny_models: Any, ask: Any, kind: str) -> None:
    """A short prompt is one chunk for both, so the greedy tokens are the same."""
    model = tiny_models(kind)
    prompt = [*range(60)]
    theirs = [token for token, _ in generate_step(mx.array(prompt), model.net, max_tokens=40)]
    outcome = ask(Engine(model), prompt, max_tokens=40, sampling=GREEDY, logprobs=0)
    ours = tokens_of(outcome)
    assert ours == theirs[: len(ours)]
    assert len(ours) == 40 or ours[-1] in model.turn_ends


@pytest.mark.parametrize("kind", ["llama", "sliding", "hybrid"])
def test_rows_join_and_leave(tiny_models: Any, run: Any, ask: Any, request_of: Any, kind: str) -> None:
    """Unseeded greedy requests share a batch; each says what it says alone."""
    model = tiny_models(kind)
    engine = Engine(model, EngineOptions(chunk=32, rows=4))
    prompts = {f"r{n}": [*range(n, 7 * n + 20)] for n in range(6)}
    for n, (name, prompt) in enumerate(prompts.items()):
        engine.submit(request_of(model, name, prompt, max_tokens=5 + 6 * n, sampling=GREEDY, logprobs=0))
    outcomes = run(engine)
    for n, (name, prompt) in enumerate(prompts.items()):
        alone = ask(
            Engine(model, EngineOptions(chunk=32)), prompt, max_tokens=5 + 6 * n, sampling=GREEDY, logprobs=0
        )
        assert tokens_of(outcomes[name]) == tokens_of(alone)
        assert outcomes[name].reasons == alone.reasons


def test_no_more_rows_than_allowed(tiny_models: Any, run: Any, request_of: Any) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(rows=2))
    for n in range(5):
        engine.submit(request_of(model, f"r{n}", [n, n], max_tokens=4))
    engine.step()
    assert (engine.running, engine.waiting) == (2, 3)
    assert len(run(engine)) == 5
    assert (engine.running, engine.waiting, engine.busy) == (0, 0, False)


@pytest.mark.parametrize("slices", range(8))
def test_cancel_anywhere(tiny_models: Any, run: Any, request_of: Any, slices: int) -> None:
    model = tiny_models()
    engine = Engine(model, EngineOptions(chunk=16))
    engine.submit(request_of(model, "stays", [1, 2, 3], max_tokens=9, sampling=GREEDY, logprobs=0))
    engine.submit(request_of(model, "goes", [*range(40)], max_tokens=50, n=2))
    early = run(engine, slices)
    assert engine.cancel("goes")
    assert not engine.cancel("goes")
    late = run(engine)
    assert "goes" not in late
    alone = Engine(model)
    alone.submit(request_of(model, "stays", [1, 2, 3], max_tokens=9, sampling=GREEDY, logprobs=0))
    said = tokens_of(early["stays"]) + tokens_of(late["stays"])
    assert said == tokens_of(run(alone)["stays"])


def test_seed_and_choices(tiny_models: Any, ask: Any) -> None:
    model = tiny_models()
    wanted = {"n": 3, "max_tokens": 20, "sampling": Sampling(seed=4)}
    first, again = ask(Engine(model), PROMPT, **wanted), ask(Engine(model), PROMPT, **wanted)
    assert first.text == again.text
    assert len(set(first.text.values())) == 3
    assert ask(Engine(model), PROMPT, max_tokens=20).text != ask(Engine(model), PROMPT, max_tokens=20).text


def test_context_is_a_limit(tiny_models: Any, ask: Any) -> None:
    model = tiny_models()
    with pytest.raises(RequestError, match="1024") as caught:
        ask(Engine(model), [1] * 1024)
    assert caught.value.failure.code == "context_length_exceeded"
    outcome = ask(Engine(model), [1] * 1021, max_tokens=100, sampling=Sampling(logit_bias={257: -100}))
    assert outcome.reasons == {0: "length"}
    assert outcome.done.completion_tokens == 3


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"n": 99}, {"max_tokens": 0}, {"logprobs": 21}, {"sampling": Sampling(logit_bias={9999: 1})}],
)
def test_what_cannot_be_served_is_refused(tiny_models: Any, ask: Any, wrong: Any) -> None:
    with pytest.raises(RequestError):
        ask(Engine(tiny_models()), PROMPT, **wrong)
    for prompt in ([], [9999], [-1]):
        with pytest.raises(RequestError):
            ask(Engine(tiny_models()), prompt)


def test_a_failing_slice_ends_its_requests_alone(
    tiny_models: Any, run: Any, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models()
    engine = Engine(model)
    engine.submit(request_of(model, "bad", PROMPT, max_tokens=5, sampling=Sampling(seed=1)))
    engine.submit(request_of(model, "good", PROMPT, max_tokens=5))

    def broken(token: int, likelihood: Any) -> Any:
        raise RuntimeError("no more memory")

    run(engine, 3)
    monkeypatch.setattr(next(row for row in engine.rows() if row.request.id == "bad"), "take", broken)
    outcomes = run(engine)
    assert "no more memory" in outcomes["bad"].failed
    assert outcomes["good"].done is not None
    assert not engine.busy


def test_penalties_and_bias(tiny_models: Any, ask: Any) -> None:
    model = tiny_models()
    plain = tokens_of(ask(Engine(model), PROMPT, max_tokens=30, sampling=GREEDY, logprobs=0))
    assert max(Counter(plain).values()) > 1
    barred = Sampling(temperature=0, logit_bias={plain[0]: -100.0})
    assert plain[0] not in tokens_of(ask(Engine(model), PROMPT, max_tokens=30, sampling=barred, logprobs=0))
    for fresh in (
        Sampling(temperature=0, frequency_penalty=2000),
        Sampling(temperature=0, presence_penalty=2000),
    ):
        said = tokens_of(ask(Engine(model), PROMPT, max_tokens=30, sampling=fresh, logprobs=0))
        assert max(Counter(said).values()) == 1
    shy = Sampling(temperature=0, repetition_penalty=1e6)
    said = tokens_of(ask(Engine(model), PROMPT, max_tokens=10, sampling=shy, logprobs=0))
    assert not set(said) & set(PROMPT)


def test_filters_keep_the_likeliest() -> None:
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))

    def seen(**settings: Any) -> set[int]:
        rows = 300
        sampler = Sampler([(Sampling(**settings), n) for n in range(rows)])
        tokens: Any = sampler(mx.repeat(logits, rows, axis=0), [0] * rows).tolist()
        return set(tokens)

    assert seen() == {0, 1, 2, 3}
    assert seen(top_k=2) == {0, 1}
    assert seen(top_p=0.6) == {0, 1}
    assert seen(top_p=0.01) == {0}
    assert seen(min_p=0.2) == {0, 1, 2}
    assert seen(temperature=0, top_k=3) == {0}
    assert seen(temperature=1e-300) == seen(temperature=1e-5) == {0}


def test_sampling_follows_the_distribution() -> None:
    wanted = [0.5, 0.3, 0.15, 0.05]
    rows = 20_000
    sampler = Sampler([(Sampling(), n) for n in range(rows)])
    tokens: Any = sampler(mx.repeat(mx.log(mx.array([wanted])), rows, axis=0), [3] * rows).tolist()
    drawn: Counter[int] = Counter(tokens)
    for token, share in enumerate(wanted):
        assert drawn[token] / rows == pytest.approx(share, abs=0.02)


def test_logprobs(tiny_models: Any, ask: Any) -> None:
    outcome = ask(Engine(tiny_models()), PROMPT, max_tokens=5, sampling=GREEDY, logprobs=3)
    for one in outcome.logprobs:
        assert [one.token, one.logprob] == list(one.top[0])
        assert one.top == sorted(one.top, key=lambda pair: -pair[1])
        assert len(one.top) == 3


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.7, seed=3, frequency_penalty=0.5)])
def test_draft_changes_nothing(tiny_models: Any, ask: Any, same: bool, sampling: Sampling) -> None:
    model, draft = tiny_models(), tiny_models(seed=0 if same else 5)
    for length in (3, 40):
        prompt = [*range(length)]
        wanted = {"max_tokens": 50, "sampling": sampling, "logprobs": 0}
        engine = Engine(model, EngineOptions(chunk=16), draft)
        outcome = ask(engine, prompt, **wanted)
        alone = ask(Engine(model, EngineOptions(chunk=16)), prompt, **wanted)
        assert tokens_of(outcome) == tokens_of(alone)
        assert (outcome.text, outcome.reasons) == (alone.text, alone.reasons)
        assert outcome.done.accepted_tokens > 0 or not same
        assert not same or outcome.done.rejected_tokens == 0
        assert tokens_of(ask(engine, prompt, **wanted)) == tokens_of(alone)  # now from the prompt cache


def test_draft_is_checked_at_the_start(tiny_models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match="RotatingKVCache"):
        check_draft(tiny_models(), tiny_models("sliding"))
    other = tiny_models(seed=5)
    monkeypatch.setattr(other.tokenizer._tokenizer, "get_vocab", lambda: {"a": 1})
    with pytest.raises(StartError, match="vocabulary"):
        Engine(tiny_models(), draft=other)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("sliding", KvOptions(bits=8), "--kv-bits.*RotatingKVCache"),
        ("sliding", KvOptions(max_size=64), "--max-kv-size.*RotatingKVCache"),
        ("hybrid", KvOptions(max_size=64), "--max-kv-size.*ArraysCache"),
        ("llama", KvOptions(bits=3), "4 or 8"),
        ("llama", KvOptions(bits=4, group_size=48), "--kv-group-size"),
        ("llama", KvOptions(bits=4, group_size=64), "--kv-bits 4"),
        ("llama", KvOptions(bits=4, max_size=64), "together"),
        ("llama", KvOptions(max_size=3), "at least"),
    ],
)
def test_kv_options_are_checked_at_the_start(
    tiny_models: Any, kind: str, options: KvOptions, named: str
) -> None:
    with pytest.raises(StartError, match=named):
        tiny_models(kind, options)


def test_kv_bits_are_close(tiny_models: Any, ask: Any) -> None:
    wanted = {"max_tokens": 4, "sampling": GREEDY, "logprobs": 0}
    plain = ask(Engine(tiny_models()), PROMPT, **wanted)
    eight = ask(Engine(tiny_models("llama", KvOptions(bits=8, group_size=32))), PROMPT, **wanted)
    assert eight.logprobs[0].token == plain.logprobs[0].token


def test_a_bounded_cache_goes_on(tiny_models: Any, ask: Any) -> None:
    model = tiny_models("llama", KvOptions(max_size=32))
    assert not model.batchable
    outcome = ask(Engine(model), [*range(100)], max_tokens=60, sampling=Sampling(logit_bias={257: -100}))
    assert outcome.done.completion_tokens == 60


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(10))
def test_an_answer_fits_its_schema(tiny_models: Any, run: Any, seed: int) -> None:
    """A random model, so nothing but the grammar makes it fit."""
    model = tiny_models()
    composed = compose(model, Conversation(messages=[{"role": "user", "content": "x"}], schema=SCHEMA))
    engine = Engine(model)
    for n, limit in enumerate((200, 7)):
        sampling = Sampling(seed=seed)
        engine.submit(request(composed, f"r{n}", max_tokens=limit, sampling=sampling, stop=()))
    outcomes = run(engine)
    assert outcomes["r0"].reasons == {0: "stop"}
    assert set(json.loads(outcomes["r0"].text[0])) == {"name", "age"}
    assert outcomes["r1"].reasons == {0: "length"}
    assert outcomes["r0"].text[0].startswith(outcomes["r1"].text[0].rstrip("\ufffd"))


def request(composed: Any, name: str, **fields: Any) -> Request:
    return Request(id=name, prompt=composed.prompt, style=composed.style, grammar=composed.grammar, **fields)


@pytest.mark.parametrize("most", [1, 7, 30])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_reasoning_ends_within_its_bound(tiny_models: Any, run: Any, most: int, schema: Any) -> None:
    """Not a token more, also under a grammar; a bound that is not met changes nothing."""
    model = tiny_models()
    assert model.think_end is not None
    chat = Conversation(messages=[{"role": "user", "content": "x"}], schema=schema)
    composed = compose(model, chat)
    style = replace(composed.style, think=model.think, thinking=True)
    barred = Sampling(seed=4, logit_bias={model.think_end: -100.0, 257: -100.0})
    engine = Engine(model)
    for name, bound in (("bounded", most), ("free", None), ("roomy", 1000)):
        engine.submit(
            Request(
                id=name,
                prompt=composed.prompt,
                style=style,
                grammar=composed.grammar,
                max_tokens=60,
                thinking_tokens=bound,
                sampling=barred,
            )
        )
    outcomes = run(engine)
    bounded, free = outcomes["bounded"], outcomes["free"]
    assert bounded.done.reasoning_tokens == most + 1  # with the token that ends it
    assert free.done.reasoning_tokens == 60
    assert bounded.text[0]
    assert not free.text[0]
    assert free.reasoning.startswith(bounded.reasoning.rstrip("\ufffd"))
    assert outcomes["roomy"].reasoning == free.reasoning


TOOLS = [
    {"type": "function", "function": {"name": "age", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.mark.parametrize("forced", [{"tool_choice": "required"}, {"tool_name": "age"}])
def test_a_forced_call_is_valid(tiny_models: Any, run: Any, forced: Any) -> None:
    model = tiny_models()
    chat = Conversation(messages=[{"role": "user", "content": "x"}], tools=TOOLS, **forced)
    composed = compose(model, chat)
    engine = Engine(model)
    for seed in range(6):
        engine.submit(request(composed, f"r{seed}", max_tokens=300, sampling=Sampling(seed=seed)))
        engine.submit(request(composed, f"s{seed}", max_tokens=9, sampling=Sampling(seed=seed)))
    outcomes = run(engine)
    for seed in range(6):
        whole, cut = outcomes[f"r{seed}"], outcomes[f"s{seed}"]
        if whole.reasons == {0: "tool_calls"}:
            (call,) = whole.calls.values()
            assert isinstance(json.loads(call.arguments), dict)
        else:  # `now` takes any object, which a random model may never close
            assert whole.reasons == {0: "length"}
        assert (cut.reasons, cut.calls) == ({0: "length"}, {})
    assert any(outcome.reasons == {0: "tool_calls"} for outcome in outcomes.values())


def test_a_text_that_no_context_holds_is_not_even_tokenised(
    tiny_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models()

    def encode(*_: Any, **__: Any) -> list[int]:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(model.tokenizer._tokenizer, "encode", encode)
        text = "x" * 100_000
        with pytest.raises(RequestError, match="100000 letters"):
            plain(model, text)
        with pytest.raises(RequestError) as caught:
            compose(model, Conversation(messages=[{"role": "user", "content": text}]))
        assert caught.value.failure.code == "context_length_exceeded"


def test_a_wrong_schema_is_refused(tiny_models: Any) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}, {"$ref": "#"}):
        with pytest.raises(RequestError) as caught:
            compose(tiny_models(), Conversation(messages=[{"role": "user", "content": "x"}], schema=schema))
        assert caught.value.failure.param == "response_format"
    with pytest.raises(RequestError, match="not in tools"):
        compose(
            tiny_models(),
            Conversation(messages=[{"role": "user", "content": "x"}], tools=TOOLS, tool_name="y"),
        )


@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_a_token_that_is_held_back_is_the_next_steps(
    tiny_models: Any, ask: Any, request_of: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A recalled device is given nothing more to do, and what was queued is read; what is said stays the same."""
    model = tiny_models(kind)
    fields: dict[str, Any] = {"max_tokens": 12, "sampling": Sampling(temperature=0.8, seed=3), "n": 2}
    alone = ask(Engine(model), [*range(20)], **fields).text
    queued, queue = [0], mx.async_eval

    def count(*arrays: mx.array) -> None:
        queued[0] += 1
        queue(*arrays)

    monkeypatch.setattr(mx, "async_eval", count)
    engine, text, held, counted = Engine(model), {0: "", 1: ""}, False, 0
    engine.submit(request_of(model, "r", [*range(20)], **fields))
    while engine.busy:
        recalled = counted % 7 in (1, 2, 4)
        decodes = any(not row.last for row in engine.rows())
        queued[0] = 0
        events = engine.step(lambda recalled=recalled: recalled)
        if decodes:
            assert queued[0] == held + (not recalled)
            held, counted = recalled, counted + 1
        if counted % 5 == 4:
            queued[0], read = 0, sum(row.taken for row in engine.rows())
            events += engine.wind_up()
            assert queued[0] == 0
            assert sum(row.taken for row in engine.rows()) == read + 2 * (not held)
            counted, held = counted + (not held), True
        for event in events:
            if isinstance(event, Delta):
                text[event.choice] += event.text
    assert counted >= 12
    assert text == alone
