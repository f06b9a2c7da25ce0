"""How many frames the codec decodes together: a function of frame numbers alone, never of the clock."""

from collections.abc import Iterator

from ...bus.layout import Speech
from ...bus.messages import Speak


def sizes(settings: Speech, speak: Speak) -> Iterator[int]:
    """Sizes of a request's successive chunks."""
    # While text is still arriving the talker may pause at any frame: none is kept back then.
    return ramp(settings.chunk_rtf, 1 if speak.more_text else settings.max_chunk_frames)


def ramp(rtf: float, largest: int) -> Iterator[int]:
    """Sizes of successive chunks: one frame, then powers of two that grow as far as a player stays fed.

    With `done` frames handed out at real-time factor `rtf`, the next chunk of c frames is there in time when
    rtf · (done + c − 1) ≤ done, counting from the first chunk's arrival.
    """
    done = 0
    while True:
        size = 1
        while size * 2 <= largest and rtf * (done + size * 2 - 1) <= done:
            size *= 2
        yield size
        done += size


def split(frames: int, largest: int) -> Iterator[int]:
    """Powers of two, largest first, that add up to `frames`."""
    while frames:
        size = min(largest, 1 << (frames.bit_length() - 1))
        size = 1 << (size.bit_length() - 1)
        yield size
        frames -= size
