"""One side of the comparison, in a process of its own: reads a word a line, answers JSON a line.

The end of its standard input means that nobody waits for it: it ends then, also at work.
"""

import os
import queue
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from ...bus.child import PARENT_GONE
from ...bus.errors import VivavoceError, innermost
from .records import About, Pieces, Plan, Run, Waits

Answer = About | Run | Waits | Pieces

LEAVE_S = 3.0
"""How long a worker may take to leave politely; less than the comparison waits for it."""


class Side(Protocol):
    def about(self) -> About: ...

    def run(self) -> Run: ...

    def count(self) -> Waits: ...

    def pieces(self) -> Pieces:
        """The last command: it may stop what the others need."""
        ...


def open_side(plan: Plan) -> AbstractContextManager[Side]:
    if plan.side == "vivavoce":
        from .ours import Ours

        return Ours(plan)
    from .theirs import Theirs

    return Theirs(plan)


def main() -> None:
    # Libraries print what they like; only answers go to the pipe that was our standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    words: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[words], daemon=True).start()

    def answer(given: Answer) -> None:
        answers.write(msgspec.json.encode(given) + b"\n")
        answers.flush()

    try:
        with open_side(plan) as side:
            answer(side.about())
            while (word := words.get()) is not None:
                answer(_do(side, word))
    except Exception as error:  # the process's boundary: its last line is what the comparison reports
        cause = innermost(error)
        if not isinstance(cause, VivavoceError):
            traceback.print_exception(error)
        sys.exit(str(cause))


def _listen(words: queue.SimpleQueue[str | None]) -> None:
    """Hand on the words, None at the end; where that does not end the process soon, end it at work."""
    # Not `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while data := os.read(0, 4096):
        for word in data.decode().split():
            words.put(word)
    words.put(None)
    time.sleep(LEAVE_S)
    os._exit(PARENT_GONE)


def _do(side: Side, word: str) -> Answer:
    match word:
        case "run":
            return side.run()
        case "count":
            return side.count()
        case "pieces":
            return side.pieces()
        case _:
            raise ValueError(f"no command {word!r}")


if __name__ == "__main__":
    main()
