"""A recogniser that counts misheard words."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from .spoken import word_errors, words

Sound = NDArray[np.float32]


class Listener:
    """faster-whisper, greedy."""

    def __init__(self, model: str) -> None:
        from faster_whisper import WhisperModel

        self.model: Any = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)

    def hear(self, samples: Sound) -> str:
        """What is said in 24 kHz samples."""
        low = resample_poly(samples, 2, 3).astype(np.float32)
        segments, _ = self.model.transcribe(
            low,
            language="en",
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
            max_new_tokens=100,
        )
        return " ".join(segment.text.strip() for segment in segments)

    def rate(self, sounds: Iterable[tuple[str, Sound]], show: bool) -> tuple[int, int]:
        """Errors and words over (text, sound) pairs."""
        errors = total = 0
        for text, samples in sounds:
            heard = self.hear(samples)
            # A recogniser may write 3:30 as 330 or 3.30.
            for time_of_day in re.findall(r"\d+:\d\d", text):
                for form in (time_of_day.replace(":", ""), time_of_day.replace(":", ".")):
                    heard = heard.replace(form, time_of_day)
            wanted = words(text)
            wrong = min(word_errors(wanted, words(heard)), len(wanted))
            errors, total = errors + wrong, total + len(wanted)
            if show and wrong:
                print(f"    {wrong}/{len(wanted)} {text} | {heard}", flush=True)
        return errors, total


def percent(counts: tuple[int, int]) -> str:
    return f"{100 * counts[0] / max(1, counts[1]):.1f} %"
