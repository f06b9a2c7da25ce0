"""How far a training is: its time, and all that it needs to go on where it stopped."""

import time
from pathlib import Path
from typing import Any

import torch


class Progress:
    """Goes on from `saved` if that exists.

    :param parts: modules and optimizers by the names that their states have in the file.
    :param minutes: after which the training is over, those of earlier calls included.
    """

    def __init__(
        self, saved: Path, parts: dict[str, Any], device: str | torch.device, minutes: float
    ) -> None:
        self._saved, self._parts, self._minutes = saved, parts, minutes
        self.step, self._before = 0, 0.0
        if saved.exists():
            state = torch.load(saved, map_location=device)
            for name, part in parts.items():
                part.load_state_dict(state[name])
            self.step, self._before = state["step"], state["seconds"]
        self._began = time.monotonic()
        self._next_look = 60.0

    @property
    def seconds(self) -> float:
        """Since this call began."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """Of the time."""
        return (self._before + self.seconds) / (60 * self._minutes)

    def look(self) -> bool:
        """True once a minute."""
        due = self.seconds > self._next_look
        self._next_look += 60 * due
        return due

    def save(self, **about: Any) -> None:
        """:param about: what else the file is to tell."""
        state = {name: part.state_dict() for name, part in self._parts.items()} | about
        state |= {"step": self.step, "seconds": self._before + self.seconds}
        self._saved.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, self._saved.with_suffix(".tmp"))
        self._saved.with_suffix(".tmp").rename(self._saved)
