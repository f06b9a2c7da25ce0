"""`vivavoce tap` and `vivavoce keys` from the command line, over a publisher of this test's own."""

import json
import os
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
import zmq

from vivavoce.api import cli, cli_tap
from vivavoce.bus import keys, run_folder, wire
from vivavoce.bus.listener import Event
from vivavoce.bus.messages import Codes, Ending, Failure, Message, Pcm, Speak, Tensor
from vivavoce.bus.tap import SCHEMA, Envelope, Timing

SPOKEN: list[tuple[str, str, int, Message]] = [
    ("codec_decoder", "pcm", 0, Pcm(request="r", frame=0, frames=1, samples=b"\1\0" * 1920)),
    ("codec_decoder", "pcm", 0, Pcm(request="other", frame=0, frames=1, samples=b"\7\0" * 1920)),
    ("codec_decoder", "pcm", 2, Pcm(request="r", frame=3, frames=2, samples=b"\2\0" * 3840)),
    ("api", "ending", 0, Ending(request="r", reason="stop", frames=5)),
    ("codec_decoder", "ending", 0, Ending(request="r", reason="stop", frames=5)),
]


class Publisher:
    """Sends the messages as soon as somebody listens to all that is asked for."""

    def __init__(
        self, address: str, subscriptions: int, messages: list[tuple[str, str, int, Message]]
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.bind(address)
        self._thread = threading.Thread(target=self._run, args=[subscriptions, messages])
        self._thread.start()

    def _run(self, subscriptions: int, messages: list[tuple[str, str, int, Message]]) -> None:
        for _ in range(subscriptions):
            self._socket.recv()
        for stage, kind, sequence, message in messages:
            envelope = Envelope(SCHEMA, sequence, 1.5, msgspec.Raw(wire.encode(message)))
            self._socket.send_multipart([f"{stage}.{kind}.{message.request}".encode(), wire.encode(envelope)])

    def close(self) -> None:
        self._thread.join()
        self._socket.close()
        self._context.term()


@pytest.fixture
def address() -> Iterator[str]:
    with TemporaryDirectory(prefix="vv") as folder:
        yield f"ipc://{folder}/tap"


async def test_wav_holds_one_request_and_silence_for_what_was_lost(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "heard.wav"
    publisher = Publisher(address, 4, SPOKEN)
    assert await anyio.to_thread.run_sync(cli.main, ["tap", address, "--wav", str(file)]) == 0
    publisher.close()
    with wave.open(str(file)) as opened:
        assert (opened.getnchannels(), opened.getsampwidth(), opened.getframerate()) == (1, 2, 24_000)
        assert opened.readframes(10**6) == b"\1\0" * 1920 + bytes(2 * 3840) + b"\2\0" * 3840
    assert capsys.readouterr().out == f"{file}: 0.40 s of r, 2 frames lost\n"


async def test_wav_ends_when_the_decoder_has_died(address: str, tmp_path: Path) -> None:
    file = tmp_path / "heard.wav"
    failure = Failure(status=503, code="stage_down", message="gone")
    ending = Ending(request="r", reason="error", failure=failure)
    publisher = Publisher(address, 4, [SPOKEN[0], ("api", "ending", 0, ending)])
    assert await anyio.to_thread.run_sync(cli.main, ["tap", address, "--wav", str(file)]) == 0
    publisher.close()
    with wave.open(str(file)) as opened:
        assert opened.getnframes() == 1920


def test_lines_and_json_say_the_same() -> None:
    codes = Codes(request="r", frame=4, codes=Tensor("int32", (1, 16), b"\5\0\0\0" * 16))
    event = Event("code_predictor", "codes", "r", 4, 2, 1.25, codes)
    line = cli_tap.as_line(event)
    assert "code_predictor codes   r  frame 4: 5 5 5" in line
    assert ".250 " in line
    assert line.endswith("(2 lost before)")
    assert json.loads(cli_tap.as_json(event)) == {
        "stage": "code_predictor",
        "kind": "codes",
        "request": "r",
        "sequence": 4,
        "missed": 2,
        "at": 1.25,
        "message": {"type": "Codes", "request": "r", "frame": 4, "codes": [5] * 16},
    }


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Speak(request="r", model="m", text="Hi\n", seed=1), r"'Hi\n'"),
        (SPOKEN[2][3], "frame 3, 2 of them, 3840 samples"),
        (SPOKEN[3][3], "stop after 5 frames"),
        (
            Ending(request="r", reason="error", failure=Failure(status=500, code="c", message="why")),
            "error after 0 frames: why",
        ),
        (Timing(request="r", sent="Hidden", frame=2), "Hidden of frame 2"),
        (Timing(request="r", sent="Speak"), "Speak"),
    ],
)
def test_every_message_has_its_line(message: Any, words: str) -> None:
    assert cli_tap.as_line(Event("talker", "timing", "r", 0, 0, 0.0, message)).endswith(words)


def test_keys_are_made_once_and_let_clients_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, client = tmp_path / "server.toml", tmp_path / "client.toml"
    assert cli.main(["keys", str(server)]) == 0
    assert f'keys = "{server}"' in capsys.readouterr().out
    assert cli.main(["keys", str(server)]) == 1
    assert "add somebody to it with --client" in capsys.readouterr().err
    assert cli.main(["keys", str(server), "--client", str(client)]) == 0
    ours, theirs = keys.read(server), keys.read(client)
    assert theirs.server == ours.public
    assert ours.admits(keys.GUESTS, theirs.public)
    assert not ours.admits(keys.MACHINES, theirs.public)
    assert not ours.admits(keys.GUESTS, keys.make().public)
    assert cli.main(["keys", str(client), "--client", str(tmp_path / "more.toml")]) == 1
    assert "give the server's" in capsys.readouterr().err
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_an_address_without_a_server_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tap", f"ipc://{tmp_path}/none"]) == 1
    assert "no server at ipc://" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8123", "http://127.0.0.1:8123", "tcp://127.0.0.1", "tcp://box:99999", "tcp://box:0"],
)
def test_what_is_no_address_is_told_what_one_looks_like(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tap", address]) == 1
    assert f"{address!r} is no tap's address: give ipc://PATH or tcp://HOST:PORT" in capsys.readouterr().err


def test_a_stage_that_there_is_not_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tap", address, "--stage", "bogus"]) == 1
    assert "no stage 'bogus' sends anything; use api, prompt, talker" in capsys.readouterr().err


def test_of_several_servers_the_processes_are_named(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(address.removeprefix("ipc://")).parent))
    with run_folder.run_folder() as one, run_folder.run_folder() as other:
        for folder in (one, other):
            (folder / "tap").touch()
        assert cli.main(["tap"]) == 1
    told = capsys.readouterr().err
    assert all(f"{folder}/tap (pid {os.getpid()})" in told for folder in (one, other))
