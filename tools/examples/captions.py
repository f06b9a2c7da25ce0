"""Captions of whatever a running server says: one line a request, as its text comes in.

python tools/examples/captions.py [ADDRESS]
"""

import sys

from vivavoce.bus.listener import Tap
from vivavoce.bus.messages import ChatDelta, Speak, Text


def main() -> None:
    speaker = None
    with Tap(*sys.argv[1:], kind="text") as tap:
        for event in tap:
            if event.request != speaker:
                print(f"\n{event.request}: ", end="")
                speaker = event.request
            if isinstance(event.message, Speak | Text | ChatDelta):
                print(event.message.text, end="", flush=True)


if __name__ == "__main__":
    main()
