"""What text so many seconds of speech cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.api.pace import Pace

TEXT = "The fox, who was tired, slept in the sun."


@pytest.mark.parametrize(
    ("seconds", "covered"),
    [(0, ""), (0.25, "The"), (0.3, "The"), (0.6, "The fox,"), (1, "The fox, who"), (3, TEXT), (99, TEXT)],
)
def test_words_that_have_been_said(seconds: float, covered: str) -> None:
    assert Pace().covered(TEXT, seconds) == covered


def test_scripts_without_spaces_are_cut_at_letters() -> None:
    assert Pace().covered("\u4eca\u5929\u5929\u6c14\u5f88\u597d", 0.6) == "\u4eca\u5929\u5929"


def test_the_pace_is_learned() -> None:
    pace = Pace()
    for _ in range(100):
        pace.learn("x" * 30, 1.0)
    assert len(pace.covered("word " * 20, 1.0)) == 29
    for _ in range(100):
        pace.learn("x", 1000.0)  # a voice that says nothing teaches little
    assert pace.covered("word " * 20, 1.0) == "word"


@given(st.text(), st.floats(0, 1e4))
def test_it_is_a_beginning_of_the_text(text: str, seconds: float) -> None:
    covered = Pace().covered(text, seconds)
    assert text.startswith(covered)
