"""Links between loops: what is sent arrives as it was, in order, once."""

from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import zmq

from vivavoce.bus.channel import Mailbox, Outbox
from vivavoce.bus.messages import (
    LINKS,
    Close,
    Codes,
    Credit,
    Ending,
    Failure,
    Message,
    Prompt,
    Speak,
    Tensor,
    Text,
)
from vivavoce.bus.wire import Decoder, Incoming, Outgoing, encode, kinds


def test_round_trip_of_every_plain_message() -> None:
    decode = Decoder(LINKS["api", "prompt"])
    for message in (
        Speak(request="a", model="m", text="Grüße 👋", seed=2**63 - 1),
        Text(request="a", text="", final=True),
        Credit(request="a", frames=3),
        Close(request="a"),
    ):
        assert decode(encode(message)) == message
    ending = Ending(request="a", reason="error", failure=Failure(status=400, code="c", message="m"))
    assert Decoder(LINKS["talker", "code_predictor"])(encode(ending)) == ending


def test_arrays_travel_as_raw_bytes_with_dtype_and_shape() -> None:
    codes = np.arange(16, dtype=np.int32).reshape(1, 16)
    message = Decoder(LINKS["code_predictor", "codec_decoder"])(
        encode(Codes(request="a", frame=7, codes=codes))
    )
    assert isinstance(message, Codes)
    assert message.codes == Tensor("int32", (1, 16), codes.tobytes())


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"not msgpack at all", msgspec.msgpack.encode(["Nonsense", "a"])]
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(LINKS["api", "prompt"])(data)


def test_a_message_of_another_link_is_refused() -> None:
    prompt = Prompt(request="a", prefill=np.zeros(1), trailing=np.zeros(1), pad=np.zeros(1), text_tokens=1)
    with pytest.raises(msgspec.ValidationError):
        Decoder(LINKS["api", "prompt"])(encode(prompt))


async def test_link_keeps_order_and_queues_before_the_consumer_is_there() -> None:
    context: zmq.Context[Any] = zmq.Context()
    mailbox = Mailbox(4)
    sender = Outgoing(context, "inproc://test-order")
    for number in range(100):
        await sender.send(Credit(request="a", frames=number))
    receiver = Incoming(context, "inproc://test-order", LINKS["api", "prompt"])
    got: list[int] = []
    with anyio.fail_after(10), mailbox.sender() as into:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.pump, into)
            for number in range(100, 200):
                await sender.send(Credit(request="a", frames=number))
            while len(got) < 200:
                message = await mailbox.inbox.receive()
                assert isinstance(message, Credit)
                got.append(message.frames)
            tasks.cancel_scope.cancel()
    assert got == list(range(200))
    sender.close()
    mailbox.close()
    context.term()


async def test_a_reopened_link_goes_on_elsewhere() -> None:
    context: zmq.Context[Any] = zmq.Context()
    mailbox = Mailbox(4)
    sender = Outgoing(context, "inproc://test-old")
    await sender.send(Credit(request="lost", frames=1))
    sender.reopen("inproc://test-new")
    receiver = Incoming(context, "inproc://test-new", LINKS["api", "prompt"])
    await sender.send(Credit(request="kept", frames=2))
    with anyio.fail_after(10), mailbox.sender() as into:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.pump, into)
            assert (await mailbox.inbox.receive()).request == "kept"
            tasks.cancel_scope.cancel()
    sender.close()
    mailbox.close()
    context.term()


class _Recorder:
    def __init__(self) -> None:
        self.got: list[Message] = []

    async def send(self, item: Message) -> None:
        self.got.append(item)


async def test_outbox_routes_by_type_and_refuses_what_no_link_carries() -> None:
    credits_only, everything = _Recorder(), _Recorder()
    seen: list[Message] = []
    outbox = Outbox(
        [(credits_only, kinds(Credit)), (everything, kinds(LINKS["api", "prompt"]))], watch=seen.append
    )
    credit, close = Credit(request="a", frames=1), Close(request="a")
    await outbox.send(credit)
    await outbox.send(close)
    assert credits_only.got == [credit]
    assert everything.got == [credit, close] == seen
    with pytest.raises(KeyError):
        await outbox.send(Ending(request="a", reason="stop"))
