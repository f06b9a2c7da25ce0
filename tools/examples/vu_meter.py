"""A level meter of what a running server speaks, one bar a frame (80 ms): what lip-sync needs as well.

python tools/examples/vu_meter.py [ADDRESS]
"""

import asyncio
import sys

import numpy as np

from vivavoce.bus.listener import AsyncTap
from vivavoce.bus.messages import Pcm

SAMPLES = 1920
"""Of one frame."""
FLOOR_DB = -60.0


def levels(samples: bytes) -> list[float]:
    """Loudness of each frame in dB below full scale, at least -60."""
    frames = np.frombuffer(samples, "<i2").astype(np.float64).reshape(-1, SAMPLES) / 32768
    power = np.maximum((frames**2).mean(axis=1), 1e-12)
    return [max(float(level), FLOOR_DB) for level in 10 * np.log10(power)]


async def main() -> None:
    async with AsyncTap(*sys.argv[1:], kind="pcm") as tap:
        async for event in tap:
            if isinstance(event.message, Pcm):
                for number, level in enumerate(levels(event.message.samples), event.message.frame):
                    bar = "█" * round(40 * (1 - level / FLOOR_DB))
                    print(f"{event.request[-8:]} {number:5} {level:6.1f} dB {bar}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
