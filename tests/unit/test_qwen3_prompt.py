"""Voices, languages, instructions and text that arrives in pieces."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.bus.errors import RequestError
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.config import released
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import TextFeed, build, resolve_language, resolve_voice
from vivavoce.stages.speech.qwen3.tokenizer import BytePairTokenizer, ByteTokenizer, Templates
from vivavoce.stages.speech.text_cleaning import Cleaner, clean

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
PARTS = frozenset({"prompt"})


@pytest.fixture(scope="module")
def model() -> Qwen3TTS:
    """Custom voices, instructions, and speakers with a dialect."""
    return load(CHECKPOINTS / "custom", parts=PARTS)


@pytest.fixture(scope="module")
def tokenizer() -> BytePairTokenizer:
    return BytePairTokenizer(CHECKPOINTS / "custom06")


def test_voices_are_found_whatever_their_case(model: Qwen3TTS) -> None:
    assert resolve_voice(model, " RYAN ") == "ryan"


@pytest.mark.parametrize("voice", ["alloy", None])
def test_an_unknown_or_missing_voice_lists_the_known(model: Qwen3TTS, voice: str | None) -> None:
    with pytest.raises(RequestError, match="ryan, serena") as caught:
        resolve_voice(model, voice)
    assert caught.value.failure.param == "voice"


@pytest.mark.parametrize("language", ["english", "English", "en", "EN", "en-US", "en_GB"])
def test_languages_have_names_and_codes(model: Qwen3TTS, language: str) -> None:
    assert resolve_language(model, language, "ryan") == 2050


@pytest.mark.parametrize("language", [None, "", "auto", "Auto"])
def test_automatic_language(model: Qwen3TTS, language: str | None) -> None:
    assert resolve_language(model, language, "ryan") is None


def test_a_dialect_can_be_named_and_is_kept_only_in_chinese(model: Qwen3TTS) -> None:
    beijing = resolve_language(model, "beijing_dialect", "ryan")
    assert beijing is not None
    assert resolve_language(model, "zh", "dylan") == resolve_language(model, None, "dylan") == beijing
    assert resolve_language(model, "en", "dylan") == 2050


@pytest.mark.parametrize("language", ["klingon", "a", " "])
def test_an_unknown_language_lists_the_known(model: Qwen3TTS, language: str) -> None:
    with pytest.raises(RequestError, match="auto, beijing_dialect") as caught:
        resolve_language(model, language, "ryan")
    assert caught.value.failure.param == "language"


def test_instructions_add_rows_only_where_the_model_knows_them(model: Qwen3TTS) -> None:
    def rows(some: Qwen3TTS, instructions: str | None) -> int:
        return build(some, "Hi", voice="ryan", language="en", instructions=instructions).prefill.shape[1]

    small = load(CHECKPOINTS / "custom06", parts=PARTS)
    assert (model.takes_instructions, small.takes_instructions) == (True, False)
    assert rows(model, "Speak slowly.") > rows(model, None) == rows(model, "")
    assert rows(small, "Speak slowly.") == rows(small, None)


def test_an_empty_text_is_refused(model: Qwen3TTS) -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        build(model, "", voice="ryan", language=None, instructions=None)
    assert caught.value.failure.param == "input"


def test_special_token_names_in_a_text_are_text(tokenizer: BytePairTokenizer) -> None:
    assert len(tokenizer.encode("<|im_end|>")) > 1


def test_a_template_is_split_behind_its_role() -> None:
    config, _ = released("0.6B")
    role, ids = Templates(ByteTokenizer(), config).spoken("Hi")
    assert role == [config.im_start_token_id, *b"assistant\n"]
    assert ids == [*b"Hi"]


PIECES = st.lists(st.text(alphabet=" \n\t.,;'aB3é你¿\u0301\r", max_size=6), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, cleaned=st.booleans())
def test_text_in_pieces_has_the_tokens_of_the_whole(pieces: list[str], cleaned: bool) -> None:
    tokenizer, cleaner = BytePairTokenizer(CHECKPOINTS / "custom06"), Cleaner()
    feed = TextFeed(_Words(tokenizer), mx.zeros((1, 0, 1)), mx.zeros((1, 1, 1)))  # pyright: ignore[reportArgumentType]
    rows: list[float] = []
    for place, piece in enumerate(pieces):
        final = place == len(pieces) - 1
        feed.add(cleaner.feed(piece, final=final) if cleaned else piece, final=final, words=cleaned)
        rows += np.array(feed.rows()[0])[0, :, 0].tolist()
    text = "".join(pieces)
    assert rows == [*tokenizer.encode(clean(text) if cleaned else text), -1]


def test_a_word_that_has_ended_need_not_wait_for_the_next() -> None:
    feed = TextFeed(_Words(ByteTokenizer()), mx.zeros((1, 0, 1)), mx.zeros((1, 1, 1)))  # pyright: ignore[reportArgumentType]
    feed.add("Hi", final=False)
    assert not feed.ready
    feed.add("", final=False, words=True)
    assert feed.ready


class _Words:
    """What a feed asks of a model: each row is its token's id, the end is -1."""

    def __init__(self, tokenizer: BytePairTokenizer) -> None:
        self.tokenizer = tokenizer
        self.rows = self
        self.end = mx.full((1, 1, 1), -1.0)
        self.pad = mx.zeros((1, 1, 1))

    def text(self, ids: mx.array) -> mx.array:
        return ids[..., None].astype(mx.float32)
