"""The chunk ramp keeps a player fed, and depends on frame numbers alone."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.stages.speech.chunks import ramp, split


@given(rtf=st.floats(0.05, 1.0), largest=st.integers(1, 32))
def test_no_underrun_below_the_stated_rtf(rtf: float, largest: int) -> None:
    """A player that starts when the first chunk arrives never waits, if each frame takes rtf · 80 ms."""
    sizes = list(islice(ramp(rtf, largest), 60))
    assert sizes[0] == 1
    assert all(size <= largest for size in sizes)
    played_out = made = 0.0
    handed_out = 0
    for size in sizes:
        made += size * rtf
        if handed_out:
            assert made <= played_out + 1e-9
        else:
            played_out = made
        played_out += size
        handed_out += size


def test_ramp_grows_as_documented() -> None:
    assert list(islice(ramp(0.5, 8), 5)) == [1, 2, 4, 8, 8]
    assert list(islice(ramp(1.0, 8), 5)) == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("largest", [1, 2, 8])
@given(frames=st.integers(0, 200))
def test_split_adds_up_in_compiled_sizes(frames: int, largest: int) -> None:
    sizes = list(split(frames, largest))
    assert sum(sizes) == frames
    assert all(size in (1, 2, 4, 8) and size <= largest for size in sizes)
    assert sizes == sorted(sizes, reverse=True)
