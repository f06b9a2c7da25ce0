"""What people see while a command works: a line on stderr that rewrites itself, where stderr is a terminal."""

import argparse
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bus.control import Notice

ERASE = "\r\x1b[K"


@contextmanager
def interrupted_by(*signals: signal.Signals) -> Generator[None]:
    """They end what runs inside as Ctrl-C does, so that nothing is left behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {one: signal.signal(one, interrupt) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class Line:
    """A status line. Silent when stderr is a file or a pipe."""

    def __init__(self) -> None:
        self._shown = False
        self._live = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(ERASE + text[:width], end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)
            self._shown = False

    def notice(self, notice: "Notice") -> None:
        """Show a step of start-up; given to `Running` as its `notify`."""
        from ..bus.control import Loading

        if isinstance(notice, Loading):
            far = f" {notice.done:.0%}" if notice.done else ""
            self.show(f"{notice.what}{far} …")


def size(count: float) -> str:
    """Bytes for people: 512 B, 17.3 MiB, 4.2 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while count >= 1024 and unit < len(units) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {units[unit]}"


def columns(rows: list[tuple[str, ...]], indent: str = "  ") -> str:
    """Rows of cells as aligned text."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


def positive(text: str) -> int:
    """An argument's type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("1 or more is allowed")
    return value


def words(text: str) -> str:
    """An argument's type: as many letters as HTTP takes of what describes a voice."""
    from .schema import LETTERS

    if len(text) > LETTERS:
        raise argparse.ArgumentTypeError(f"{len(text):,} letters are too many: at most {LETTERS:,} are taken")
    return text
