"""Messages of every shape reach the prompt (case O23)."""

import json
from typing import Any

import pytest

from vivavoce.bus.errors import RequestError
from vivavoce.stages.chat.template import SEAM, Template

NATIVE = (
    "{% for t in tools or [] %}T:{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}\n{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }}\n{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLED = [
    {"role": "user", "content": "Rain in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "wet"},
]


@pytest.fixture
def template(tiny_models: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    tokenizer = tiny_models().tokenizer

    def make(source: str | None = None) -> Template:
        if source is not None:
            monkeypatch.setattr(tokenizer._tokenizer, "chat_template", source)
        return Template(tokenizer)

    return make


def test_calls_with_null_content(template: Any) -> None:
    assert template(NATIVE).render(CALLED, [TOOL]) == (
        "T:weather\nuser:Rain in Oslo?\nassistant:[weather Oslo]\ntool:wet\nassistant:"
    )


@pytest.mark.parametrize("content", [None, "", []])
def test_calls_for_a_template_that_knows_none(template: Any, content: Any) -> None:
    messages = [CALLED[0], {**CALLED[1], "content": content}, CALLED[2]]
    text = template().render(messages, [TOOL])
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert "<tool_response>\nwet\n</tool_response>" in text
    assert "weather" in text.split("Rain")[0]


@pytest.mark.parametrize(
    "arguments", ['{"city": "Os', '{"city": "\\ud800"}', '{"city": ' + "[" * 9999 + "]" * 9999 + "}"]
)
def test_arguments_that_are_no_json_stay_text(template: Any, arguments: str) -> None:
    """Those of a call that was cut, which a client has kept."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    text = template().render([CALLED[0], {"role": "assistant", "tool_calls": [call]}, CALLED[2]])
    assert json.dumps(arguments, ensure_ascii=False) in text


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "tools", "add_generation_prompt"])
def test_what_is_no_variable_of_the_template_is_refused(template: Any, name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        template().render(CALLED, options={name: "x"})
    assert caught.value.failure.param == "chat_template_kwargs"
    assert template("{{ mood }}").render(CALLED, options={"mood": "glad"}) == "glad"


def test_developer_is_system(template: Any) -> None:
    both = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
    text = template(NATIVE).render([*both, CALLED[0]])
    assert text == "system:Be brief.\n\nBe kind.\nuser:Rain in Oslo?\nassistant:"
    assert "system:Be kind." in template(NATIVE).render([both[1], CALLED[0]])


@pytest.mark.parametrize("source", [NO_SYSTEM, DROPS_SYSTEM])
def test_instructions_without_a_place_go_to_the_user(template: Any, source: str) -> None:
    messages = [{"role": "developer", "content": "Be kind."}, CALLED[0]]
    assert template(source).render(messages) == "user:Be kind.\n\nRain in Oslo?\n"


def test_parts_in_order(template: Any) -> None:
    parts = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]
    assert "user:first\nsecond\n" in template(NATIVE).render([{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "image_url"),
        ({"role": "user", "content": [{}]}, "messages[0].content[0]"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ("x", "messages[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0]"),
    ],
)
def test_what_cannot_be_read_is_named(template: Any, message: Any, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        template().render([message])
    assert named in str(caught.value)
    assert caught.value.failure.status == 400


def test_a_last_message_of_the_assistant_is_continued(template: Any) -> None:
    text = template().render([CALLED[0], {"role": "assistant", "content": "It is"}])
    assert text.endswith("assistant\nIt is")


def test_special_tokens_in_messages_are_text(template: Any, tiny_models: Any) -> None:
    one = template()
    text = one.render([{"role": "user", "content": "a<|im_end|>b"}])
    tokens = one.encode(text)
    assert tokens.count(257) == 1
    assert "a<|im_end|>b" in tiny_models().decode(tokens)
    assert SEAM not in tiny_models().decode(tokens)


def test_no_template_is_told(template: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = template()
    monkeypatch.setattr(one, "known", False)
    with pytest.raises(RequestError, match="no chat template"):
        one.render(CALLED)
