"""The chat options of the command line, and what is wrong with them in one sentence."""

import argparse
from typing import Any

import anyio.to_thread
import pytest

from vivavoce.api.cli import main, parser
from vivavoce.api.cli_chat import with_chat
from vivavoce.api.cli_serve import configured
from vivavoce.bus import layout
from vivavoce.bus.errors import LayoutError


def given(*words: str) -> argparse.Namespace:
    return parser().parse_args(["serve", *words])


def test_a_chat_model_brings_the_layout_that_runs_both() -> None:
    made = configured(given("--chat-model", "a/b", "--chat-model", "name=c/d"))
    assert made.name == "together"
    assert made.chat.models == ("a/b", "name=c/d")
    assert configured(given()).name == "speech"


def test_options_replace_settings() -> None:
    words = ("--layout", "chat", "--chat-model", "m", "--draft-model", "d", "--num-draft-tokens", "5")
    made = configured(given(*words, "--kv-bits", "8", "--kv-group-size", "32", "--prompt-cache", "p")).chat
    assert made.prompt_cache == "p"
    assert (made.draft_model, made.draft_tokens, made.kv_bits, made.kv_group_size) == ("d", 5, 8, 32)
    assert configured(given("--layout", "chat", "--chat-model", "m")).chat.kv_bits is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--layout", "speech", "--chat-model", "m"), "runs no chat"),
        (("--layout", "speech", "--kv-bits", "4"), "runs no chat"),
        (("--layout", "chat"), "--chat-model"),
    ],
)
def test_what_cannot_be_is_told(words: Any, told: str) -> None:
    args = given(*words)
    with pytest.raises(LayoutError, match=told):
        with_chat(layout.load(args.layout), args)


def test_the_voice_is_not_written_among_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--chat-model", "m", "-o", "-"]) == 1
    assert "name a file for the voice" in capsys.readouterr().err


async def test_a_missing_model_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    # On a thread of its own, since the command runs an event loop.
    assert await anyio.to_thread.run_sync(main, ["chat", "--model", "./no-such-folder"]) == 1
    assert "no model folder './no-such-folder'" in capsys.readouterr().err
