"""Records the codes of one request, 2.4 kB for a second, and turns them into the same audio later.

python tools/examples/record_codes.py record FILE [ADDRESS]     waits for a request, ends with it
python tools/examples/record_codes.py decode FILE WAV           with the layout's first model
"""

import asyncio
import sys
import wave
from pathlib import Path

import msgspec

from vivavoce.bus.channel import Mailbox, Outbox
from vivavoce.bus.control import Progress
from vivavoce.bus.layout import load
from vivavoce.bus.listener import AsyncTap
from vivavoce.bus.messages import Codes, Ending, Pcm, Seam, Speak, Tensor
from vivavoce.bus.wire import kinds


class Recording(msgspec.Struct):
    codes: list[bytes]
    """Of each frame, 16 codes as little-endian int32."""
    seams: dict[int, float]
    """Frames after which a part of a long text ended, and the seconds of silence wanted there."""
    complete: bool


async def record(address: str | None = None) -> Recording:
    """The next request that begins, to its end."""
    codes: list[bytes] = []
    seams: dict[int, float] = {}
    request = None
    async with AsyncTap(address, stage="code_predictor", kind=("codes", "ending")) as tap:
        async for event in tap:
            message = event.message
            if isinstance(message, Codes) and (
                event.request == request or (request, message.frame) == (None, 0)
            ):
                request = event.request
                if message.frame != len(codes):
                    raise SystemExit(f"frame {len(codes)} was lost: this program was too slow")
                codes.append(message.codes.data)
            elif isinstance(message, Seam) and event.request == request:
                seams[message.frames] = message.pause
            elif isinstance(message, Ending) and event.request == request:
                return Recording(codes, seams, message.reason in ("stop", "length"))
    raise AssertionError


async def decode(recording: Recording) -> bytes:
    """Bare 16-bit samples: those that the server sent, to the last bit, since they are made in the same steps."""
    from vivavoce.stages import device

    device.setup()  # ahead of everything that imports MLX, for the same arithmetic
    from vivavoce.configs.models import find, split_name
    from vivavoce.stages.speech.codec_decoder import CodecDecoderStage
    from vivavoce.stages.speech.qwen3.checkpoint import load as load_model

    settings = load("speech").speech
    models = {"model": load_model(find(split_name(settings.models[0])[1]))}
    stage = CodecDecoderStage(models, settings, Progress())
    parts: list[bytes] = []

    class Collector:
        async def send(self, item: object) -> None:
            if isinstance(item, Pcm):
                parts.append(item.samples)

    mailbox = Mailbox(len(recording.codes) + len(recording.seams) + 2)
    with mailbox.sender() as sender:
        await sender.send(Speak(request="r", model="model", text="", seed=0))
        for frame, codes in enumerate(recording.codes):
            if frame in recording.seams:
                await sender.send(Seam(request="r", frames=frame, pause=recording.seams[frame]))
            await sender.send(Codes(request="r", frame=frame, codes=Tensor("int32", (1, 16), codes)))
        await sender.send(Ending(request="r", reason="stop", frames=len(recording.codes)))
    mailbox.finish()
    await stage.run(mailbox.inbox, Outbox([(Collector(), kinds(Speak | Pcm | Ending))]))
    device.release()
    return b"".join(parts)


def main() -> None:
    match sys.argv[1:]:
        case ["record", file, *address]:
            made = asyncio.run(record(*address))
            Path(file).write_bytes(msgspec.msgpack.encode(made))
            print(f"{file}: {len(made.codes)} frames" + ("" if made.complete else ", broken off"))
        case ["decode", file, target]:
            made = msgspec.msgpack.decode(Path(file).read_bytes(), type=Recording)
            with wave.open(target, "wb") as out:
                out.setparams((1, 2, 24_000, 0, "NONE", ""))
                out.writeframes(asyncio.run(decode(made)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
