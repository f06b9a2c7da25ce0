"""The real small model answers real questions."""

import json
from typing import Any

from vivavoce.stages.chat.conversation import Conversation, compose
from vivavoce.stages.chat.engine import Engine
from vivavoce.stages.chat.events import Request
from vivavoce.stages.chat.sampling import Sampling

GREEDY = Sampling(temperature=0)


def chat(smollm2: Any, run: Any, question: str, **wanted: Any) -> Any:
    composed = compose(smollm2, Conversation(messages=[{"role": "user", "content": question}], **wanted))
    engine = Engine(smollm2)
    engine.submit(
        Request(
            id="r",
            prompt=composed.prompt,
            style=composed.style,
            grammar=composed.grammar,
            sampling=GREEDY,
            max_tokens=40,
        )
    )
    return run(engine)["r"]


def test_the_capital_of_france(smollm2: Any, run: Any) -> None:
    outcome = chat(smollm2, run, "What is the capital of France?")
    assert (outcome.text[0], outcome.reasons) == ("The capital of France is Paris.", {0: "stop"})
    assert outcome.done.prompt_tokens == 37


def test_a_forced_call(smollm2: Any, run: Any) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    outcome = chat(smollm2, run, "How is the weather in Paris?", tools=[tool], tool_choice="required")
    assert outcome.reasons == {0: "tool_calls"}
    (call,) = outcome.calls.values()
    assert json.loads(call.arguments)["city"] == "Paris"
