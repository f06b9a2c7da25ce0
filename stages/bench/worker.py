"""One side of the comparison, in a process of its own: reads a word a line, answers JSON a line."""

import os
import sys
import traceback
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from ...bus.errors import VivavoceError, innermost
from .records import About, Pieces, Plan, Run, Waits

Answer = About | Run | Waits | Pieces


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

    def answer(given: Answer) -> None:
        answers.write(msgspec.json.encode(given) + b"\n")
        answers.flush()

    try:
        with open_side(plan) as side:
            answer(side.about())
            for line in sys.stdin:
                answer(_do(side, line.strip()))
    except Exception as error:  # the process's boundary: its last line is what the comparison reports
        cause = innermost(error)
        if not isinstance(cause, VivavoceError):
            traceback.print_exception(error)
        sys.exit(str(cause))


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
