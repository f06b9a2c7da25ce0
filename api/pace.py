"""How far a voice has come in its text."""

SLOWEST, FASTEST = 5.0, 40.0
WEIGHT = 0.1
"""Of a new observation."""


class Pace:
    """Learned from speech that came to its end, in bytes of UTF-8 for each second of audio.

    In bytes, English and Chinese are spoken about equally fast: 15 is a usual pace of both.
    """

    def __init__(self) -> None:
        self._bytes_per_s = 15.0

    def learn(self, text: str, seconds: float) -> None:
        """A text that was spoken whole, in so many seconds."""
        if seconds > 0:
            seen = min(max(len(text.encode()) / seconds, SLOWEST), FASTEST)
            self._bytes_per_s += WEIGHT * (seen - self._bytes_per_s)

    def covered(self, text: str, seconds: float) -> str:
        """The beginning of `text` that so many seconds of audio say, up to the end of a word.

        An estimate: the talker takes in a token of text with every frame and speaks behind that, and nothing in the
        model tells how far behind. So the usual pace decides, whatever the voice does in between.
        """
        cut = text.encode()[: round(seconds * self._bytes_per_s)].decode(errors="ignore")
        rest = text[len(cut) :]
        if not rest or rest[0].isspace():
            return cut
        # Where words are not parted by spaces, each letter may be the last.
        last = cut.rfind(" ") + 1
        return cut[:last].rstrip() if cut[last:].isascii() else cut
