"""Links over TCP: the same audio as over Unix sockets, and nothing for who has not the keys."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
import zmq
from msgspec.structs import replace

from vivavoce.bus import keys
from vivavoce.bus.channel import Mailbox
from vivavoce.bus.errors import LayoutError, StartError
from vivavoce.bus.layout import parse
from vivavoce.bus.listener import AsyncTap
from vivavoce.bus.messages import LINKS, Credit, Pcm, Speak
from vivavoce.bus.running import Running
from vivavoce.bus.wire import Incoming, Outgoing, tag

Start = Callable[..., Any]

_ids = count()

NETWORK = """
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor"]
[[process]]
name = "codec"
device = ["codec_decoder"]
{process}
[[link]]
from = "code_predictor"
to = "codec_decoder"
address = "tcp://{there}:{ports[0]}"
[[link]]
from = "codec_decoder"
to = "encoder"
address = "tcp://{here}:{ports[1]}"
"""


def free_ports(number: int) -> list[int]:
    with_port = [socket.socket() for _ in range(number)]
    try:
        for one in with_port:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in with_port]
    finally:
        for one in with_port:
            one.close()


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    keys.write(keys.make(), file)
    return file


async def _speak(running: Running, text: str = "hello") -> bytes:
    speak = Speak(request=f"net-{next(_ids)}", model="m", text=text, seed=0)
    async with running.client.speak(speak) as request:
        return b"".join([audio.data async for audio in request])


async def _keep_speaking(running: Running) -> None:
    while True:
        await _speak(running)


async def test_same_audio_over_tcp_and_after_a_restart(start: Start, keys_file: Path) -> None:
    text = NETWORK.format(here="127.0.0.1", there="127.0.0.1", ports=free_ports(2), process="")
    async with start("one") as plain:
        expected = await _speak(plain)
    async with start(f'name = "net"\nkeys = "{keys_file}"\n{text}') as running:
        assert await _speak(running) == expected
        assert len(await _speak(running, "crash_mid_stream@4")) <= 4 * 128
        await running.wait_served()
        assert await _speak(running) == expected


async def test_an_address_that_is_taken_is_said(start: Start, keys_file: Path) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    ports = [taken.getsockname()[1], *free_ports(2)]
    text = NETWORK.format(here="127.0.0.1", there="127.0.0.1", ports=ports, process="")
    with (
        taken,
        pytest.raises(StartError, match=f"codec could not start: .*{ports[0]} cannot be had: Address"),
    ):
        async with start(f'name = "net"\nkeys = "{keys_file}"\n{text}'):
            pass


async def test_a_process_of_another_machine(start: Start, keys_file: Path) -> None:
    """Here a command that runs Python stands for `ssh`: it gets no folder of this machine, only addresses."""
    *ports, control, collect = free_ports(4)
    process = f'python = ["env", "{sys.executable}"]\ncontrol = "tcp://127.0.0.1:{control}"'
    text = NETWORK.format(here="127.0.0.1", there="127.0.0.1", ports=ports, process=process)
    taps = f'[taps]\ncollect = "tcp://127.0.0.1:{collect}"'
    async with start(f'name = "net"\nkeys = "{keys_file}"\n{text}\n{taps}') as running:
        assert len(await _speak(running)) == 40 * 128
        with anyio.fail_after(20):
            async with AsyncTap(running.tap, kind="pcm") as tap, anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_speaking, running)
                event = await anext(tap)
                assert (event.stage, type(event.message)) == ("codec_decoder", Pcm)
                tasks.cancel_scope.cancel()


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs network namespaces")
async def test_two_network_namespaces(start: Start, keys_file: Path) -> None:
    name = f"vv{next(_ids)}{keys_file.parent.name[-4:]}"[:10]
    commands = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add 10.213.7.1/24 dev {name}a",
        f"ip link set {name}a up",
        f"ip netns exec {name} ip addr add 10.213.7.2/24 dev {name}b",
        f"ip netns exec {name} ip link set {name}b up",
    ]
    try:
        for command in commands:
            done = await anyio.run_process(command.split(), check=False)
            if done.returncode:
                pytest.skip(f"{command}: {done.stderr.decode().strip()}")
        process = f'python = ["ip", "netns", "exec", "{name}", "{sys.executable}"]\ncontrol = "tcp://10.213.7.1:5703"'
        text = NETWORK.format(here="10.213.7.1", there="10.213.7.2", ports=[5701, 5702], process=process)
        async with start(f'name = "net"\nkeys = "{keys_file}"\n{text}') as running:
            assert len(await _speak(running)) == 40 * 128
            assert len(await _speak(running, "crash_mid_stream@4")) <= 4 * 128
            await running.wait_served()
            assert len(await _speak(running)) == 40 * 128
    finally:
        await anyio.run_process(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


async def test_a_tap_over_tcp(start: Start, tmp_path: Path) -> None:
    server, client, stranger = keys.make(), keys.make(), keys.make()
    ours, theirs, strangers = (tmp_path / f"{name}.toml" for name in ("server", "client", "stranger"))
    keys.write(replace(server, clients=(client.public,)), ours)
    keys.write(replace(client, server=server.public), theirs)
    keys.write(replace(stranger, server=server.public), strangers)
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    extra = f'[taps]\naddress = "{address}"'
    async with (
        start("one", head=f'keys = "{ours}"\n', extra=extra) as running,
        AsyncTap(address, kind="ending", keys_file=theirs) as known,
        AsyncTap(address, kind="ending", keys_file=strangers) as unknown,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_keep_speaking, running)
        for _ in range(20):
            assert (await anext(known)).kind == "ending"
        with anyio.move_on_after(0.05) as nothing:
            await anext(unknown)
        assert nothing.cancelled_caught
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("right", [True, False])
async def test_a_link_takes_only_who_has_the_servers_keys(right: bool) -> None:
    """A client's keys are for taps."""
    context: zmq.Context[Any] = zmq.Context()
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    others = keys.make()
    ours = replace(keys.make(), clients=(others.public,))
    wrong = keys.Keys(public=others.public, secret=others.secret, server=ours.public)
    mailbox = Mailbox(4)
    async with keys.gate(context, ours):
        receiver = Incoming(context, address, LINKS["api", "prompt"], ours, tag(0, 0))
        sender = Outgoing(context, address, ours if right else wrong, tag(0, 0))
        with mailbox.sender() as into:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receiver.pump, into)
                await sender.send(Credit(request="a", frames=1))
                with anyio.move_on_after(5 if right else 0.5) as waiting:
                    assert await mailbox.inbox.receive() == Credit(request="a", frames=1)
                assert waiting.cancelled_caught is not right
                tasks.cancel_scope.cancel()
        sender.close()
    mailbox.close()
    context.term()


async def test_messages_for_another_incarnation_or_schema_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    mailbox = Mailbox(4)
    receiver = Incoming(context, address, LINKS["api", "prompt"], None, tag(0, 1))
    senders = [Outgoing(context, address, None, mark) for mark in (tag(0, 0), b"\xff\xff\0\0\0\1", tag(0, 1))]
    with anyio.fail_after(5), mailbox.sender() as into:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.pump, into)
            await senders[0].send(Credit(request="stale", frames=1))
            await senders[1].send(Credit(request="foreign", frames=1))
            while "another version" not in caplog.text:
                await anyio.lowlevel.checkpoint()
            await senders[2].send(Credit(request="right", frames=1))
            assert (await mailbox.inbox.receive()).request == "right"
            tasks.cancel_scope.cancel()
    for sender in senders:
        sender.close()
    mailbox.close()
    context.term()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["code_predictor→codec_decoder.address", "would be open to all", "vivavoce keys"]),
        ('keys = "none"', ["one end is on another machine", "codec_decoder→encoder", "tcp://HOST:PORT"]),
    ],
)
def test_layouts_without_keys_or_with_a_gap_are_refused(text: str, words: list[str]) -> None:
    network = NETWORK.format(here="h", there="t", ports=[1, 2], process='control = "tcp://h:3"')
    if text:
        network = network[: network.rindex("[[link]]")]
    with pytest.raises(LayoutError) as error:
        parse(f'name = "net"\n{text}\n{network}', "net.toml")
    for word in words:
        assert word in str(error.value)


def test_files_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    made = keys.make()
    with pytest.raises(LayoutError, match="make some with `vivavoce keys`"):
        keys.read(file)
    keys.write(made, file)
    assert keys.read(file) == made
    with pytest.raises(FileExistsError):
        keys.write(made, file)
    file.chmod(0o644)
    with pytest.raises(LayoutError, match="can be read by others"):
        keys.read(file)
    file.write_text("public = 3")
    file.chmod(0o600)
    with pytest.raises(LayoutError, match="is not a file of keys"):
        keys.read(file)
