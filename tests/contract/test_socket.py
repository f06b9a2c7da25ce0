"""The WebSocket: text in pieces into one running request."""

import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import wsproto
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    RejectConnection,
    Request,
    TextMessage,
)

from vivavoce.bus.schedule import Playout

PATH = "/v1/audio/speech/stream"


class Socket:
    """A WebSocket client, message by message."""

    def __init__(self, connection: Any) -> None:
        self._wire = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._connection = connection
        self._events: list[Any] = []

    async def open(self, headers: list[tuple[bytes, bytes]]) -> Any:
        await self.put(Request(host="127.0.0.1", target=PATH, extra_headers=headers))
        return await self._event()

    async def say(self, kind: str, **fields: Any) -> None:
        await self.put(TextMessage(data=json.dumps({"type": kind, **fields})))

    async def hear(self) -> Any:
        """The next message: a dict, bytes, or the closing."""
        text, data = "", b""
        while True:
            event = await self._event()
            if isinstance(event, TextMessage):
                text += event.data
                if event.message_finished:
                    return json.loads(text)
            elif isinstance(event, BytesMessage):
                data += bytes(event.data)
                if event.message_finished:
                    return data
            elif isinstance(event, CloseConnection):
                return event

    async def until(self, kind: str) -> list[Any]:
        """Every message up to one of this type."""
        heard: list[Any] = []
        while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == kind):
            heard.append(await self.hear())
            assert not isinstance(heard[-1], CloseConnection)
        return heard

    async def put(self, event: Any) -> None:
        await self._connection.send(self._wire.send(event))

    async def _event(self) -> Any:
        while not self._events:
            self._wire.receive_data(await self._connection.stream.receive())
            self._events = list(self._wire.events())
        return self._events.pop(0)


@pytest.fixture
def dial(connect: Callable[..., Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def dialled(**to: Any) -> AsyncGenerator[Socket]:
        async with connect(**to) as connection:
            socket = Socket(connection)
            assert isinstance(await socket.open([]), AcceptConnection)
            yield socket

    return dialled


async def freed(http: httpx.AsyncClient) -> None:
    with anyio.fail_after(10):
        while (await http.get("/health")).json()["active_requests"]:
            await anyio.lowlevel.checkpoint()


async def test_words_go_into_one_request(
    dial: Callable[..., Any], server: Any, http: httpx.AsyncClient
) -> None:
    """Audio starts before the text has ended, and it is one request."""
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm", seed=5)
        await socket.say("input.text", text="Hello there, ")
        heard = await socket.until("audio.start")
        assert heard[-1]["sample_rate"] == 24000
        assert (heard[-1]["format"], heard[-1]["channels"]) == ("pcm", 1)
        first = await socket.hear()
        assert len(first) == 3840
        assert server.running.processes()[0].active["talker"] == 1
        for word in ("my ", "friend."):
            await socket.say("input.text", text=word)
        await socket.say("input.done")
        *pieces, done, over = await socket.until("session.done")
        assert done["type"] == "audio.done"
        assert done["error"] is False
        assert done["total_bytes"] == sum(map(len, pieces)) + len(first)
        assert done["finish_reason"] in ("stop", "length")
        assert done["usage"]["output_tokens"] == done["total_bytes"] // 3840
        assert over == {"type": "session.done", "utterance_index": 0, "total_sentences": 1}
    await freed(http)


async def test_the_cut_of_the_text_changes_nothing(dial: Callable[..., Any]) -> None:
    heard: list[bytes] = []
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm", seed=5)
        for pieces in (["Hi there, friend."], ["Hi ", "there, ", "friend."]):
            for piece in pieces:
                await socket.say("input.text", text=piece)
            await socket.say("input.done")
            messages = await socket.until("session.done")
            heard.append(b"".join(message for message in messages if isinstance(message, bytes)))
    assert heard[0] == heard[1] != b""


async def test_json_chunks_and_whole_audio(dial: Callable[..., Any]) -> None:
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm", seed=5, chunk_format="json")
        await socket.say("input.text", text="Hi.")
        await socket.say("input.done")
        chunks = [m["audio"] for m in await socket.until("session.done") if m["type"] == "audio.chunk"]
        assert len(chunks) > 1
        await socket.say("session.config", voice="ryan", response_format="wav", seed=5, stream_audio=False)
        await socket.say("input.text", text="Hi.")
        await socket.say("input.done")
        (whole,) = [m for m in await socket.until("session.done") if isinstance(m, bytes)]
        assert whole[44:] == b"".join(map(base64.b64decode, chunks))
        assert int.from_bytes(whole[4:8], "little") == len(whole) - 8
        await socket.say("session.close")
        closing = await socket.hear()
        assert isinstance(closing, CloseConnection)
        assert closing.code == 1000


async def test_close_after_done_waits_for_the_audio(dial: Callable[..., Any]) -> None:
    async with dial() as socket:
        await socket.say("input.text", text="Hi.")
        await socket.say("input.done")
        await socket.say("session.close")
        assert any(isinstance(message, bytes) for message in await socket.until("session.done"))
        assert isinstance(await socket.hear(), CloseConnection)


async def test_cancel_stops_and_the_session_goes_on(
    dial: Callable[..., Any], http: httpx.AsyncClient
) -> None:
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm")
        await socket.say("cancel")
        assert (await socket.hear())["utterance_index"] is None
        await socket.say("input.text", text="A long story begins here, and it goes on and on. " * 10)
        await socket.until("audio.start")
        await socket.say("cancel")
        told = (await socket.until("cancelled"))[-1]
        assert told["utterance_index"] == 0
        await freed(http)
        await socket.say("input.text", text="Hi.")
        await socket.say("input.done")
        after = await socket.until("session.done")
        assert after[-1]["utterance_index"] == 1
        assert after[-2]["error"] is False


async def test_cancel_tells_what_was_heard(dial: Callable[..., Any], http: httpx.AsyncClient) -> None:
    text = "A long story begins here, and it goes on and on. " * 10
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm")
        await socket.say("input.text", text=text)
        heard = [await socket.hear() for _ in range(9)]
        await socket.say("playback", samples=12_000)
        await socket.say("cancel")
        told = (await socket.until("cancelled"))[-1]
        assert told["samples_sent"] >= sum(map(len, heard[1:])) // 2
        assert told["samples_sent"] == told["frames"] * 1920
        assert told["samples_heard"] == 12_000
        # Half a second, at about 15 letters a second, up to a word's end.
        assert text.startswith(told["text"])
        assert 0 < len(told["text"]) < 25
        await socket.say("input.text", text=text)
        await socket.until("audio.start")
        await socket.say("cancel", samples=0)
        told = (await socket.until("cancelled"))[-1]
        assert (told["utterance_index"], told["samples_heard"], told["text"]) == (1, 0, "")
    await freed(http)


async def test_the_talker_learns_what_was_played(
    dial: Callable[..., Any], http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In seconds, and no more than was sent."""
    said: list[float] = []
    taken = Playout.taken

    def take(self: Playout, now: float, played_s: float | None = None) -> None:
        taken(self, now, played_s)
        if played_s is not None:
            said.append(played_s)

    monkeypatch.setattr(Playout, "taken", take)
    async with dial() as socket:
        await socket.say("session.config", voice="ryan", response_format="pcm", sample_rate=48_000)
        await socket.say("input.text", text="A long story begins here, and it goes on and on. " * 10)
        await socket.say("playback", samples=1)  # of nothing
        await socket.until("audio.start")
        await socket.hear()
        for samples in (1_200, 10**9, 100):
            await socket.say("playback", samples=samples)
        with anyio.fail_after(20):
            while len(said) < 3:
                await socket.hear()
        await socket.say("cancel")
        told = (await socket.until("cancelled"))[-1]
    sent = told["samples_sent"]
    assert told["samples_heard"] == sent
    assert said[0] == 0.025
    assert 0.025 < said[1] <= said[2] <= sent / 48_000
    await freed(http)


async def test_nothing_is_spoken_in_another_way_than_was_asked_for(dial: Callable[..., Any]) -> None:
    async with dial() as socket:
        for kind, fields in (
            ("session.config", {"voice": "nobody", "response_format": "pcm"}),
            ("input.text", {"text": "Hello, "}),
            ("input.text", {"text": "there."}),
            ("input.done", {}),
        ):
            await socket.say(kind, **fields)
        assert (await socket.hear())["error"]["param"] == "voice"  # and no more of this utterance
        await _text_waits_for_a_config(socket)


async def test_a_cancel_ends_an_utterance_that_is_left_out(dial: Callable[..., Any]) -> None:
    async with dial() as socket:
        await socket.say("session.config", voice="nobody", response_format="pcm")
        assert (await socket.hear())["error"]["param"] == "voice"
        await socket.say("input.text", text="Hello, ")
        await socket.say("cancel")
        assert (await socket.hear())["type"] == "cancelled"
        await _text_waits_for_a_config(socket)


@pytest.mark.parametrize(
    ("unread", "code"),
    [
        (BytesMessage(data=b'{"type": "session.config", "voice": "ryan"}'), "binary_message"),
        (TextMessage(data='{"type": "session.config", "voice": "ry'), "invalid_json"),
        (TextMessage(data=json.dumps({"type": "session.config", "pad": "x" * 200_000})), "message_too_long"),
    ],
)
async def test_a_config_that_cannot_be_read_is_a_refused_one(
    dial: Callable[..., Any], serve_with: Callable[..., Any], unread: Any, code: str
) -> None:
    async with serve_with(max_body_bytes=200_000) as server, dial(port=server.port) as socket:
        await socket.put(unread)
        assert (await socket.hear())["error"]["code"] == code
        await _text_waits_for_a_config(socket)


async def _text_waits_for_a_config(socket: Any) -> None:
    for _ in range(2):
        await socket.say("input.text", text="Hello, ")
        await socket.say("input.text", text="there.")
        await socket.say("input.done")
        assert "session.config was refused" in (await socket.hear())["message"]
    await socket.say("session.config", voice="ryan", response_format="pcm")
    await socket.say("input.text", text="Hello.")
    await socket.say("input.done")
    (start,) = await socket.until("audio.start")  # and no error besides
    assert start["format"] == "pcm"


async def test_leaving_frees_everything(dial: Callable[..., Any], http: httpx.AsyncClient) -> None:
    async with dial() as socket:
        await socket.say("input.text", text="A long story begins here, and it goes on and on. " * 10)
        await socket.until("audio.start")
    await freed(http)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "session.config", "voice": "nobody"}, "voice"),
        ({"type": "session.config", "model": "nothing"}, "model"),
        ({"type": "session.config", "speed": 9}, "speed"),
        ({"type": "input.text"}, "type"),
        ({"type": "what"}, "type"),
        ({"type": "input.done"}, "text"),
        ({"type": "playback"}, "samples"),
        ({"type": "playback", "samples": -1}, "samples"),
        ({"type": "playback", "samples": True}, "samples"),
        ({"type": "playback", "samples": "100"}, "samples"),
        ({"type": "playback", "samples": 1, "utterance_index": "first"}, "utterance_index"),
        ({"type": "input.text", "text": "x" * 20_001}, "input"),
    ],
)
async def test_wrong_messages_are_answered(dial: Callable[..., Any], message: Any, param: str) -> None:
    async with dial() as socket:
        await socket.say(**{"kind": message["type"]}, **{k: v for k, v in message.items() if k != "type"})
        answer = await socket.hear()
        assert answer["type"] == "error"
        assert answer["error"]["param"] == param
        await socket.say("session.close")
        assert isinstance(await socket.hear(), CloseConnection)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        *(({"samples": samples}, "samples") for samples in (-5, True, "100", 0.5)),
        ({"samples": 1, "utterance_index": -1}, "utterance_index"),
        ({"utterance_index": "first"}, "utterance_index"),
    ],
)
async def test_a_cancel_that_says_something_wrong_cancels_all_the_same(
    dial: Callable[..., Any], wrong: dict[str, Any], param: str
) -> None:
    async with dial() as socket:
        await socket.say("cancel", **wrong)
        assert (await socket.hear())["utterance_index"] is None
        assert (await socket.hear())["error"]["param"] == param
        await socket.say("input.text", text="A long story begins here, and it goes on and on. " * 10)
        await socket.until("audio.start")
        await socket.say("cancel", **wrong)
        assert (await socket.until("cancelled"))[-1]["utterance_index"] == 0
        assert (await socket.hear())["error"]["param"] == param


async def test_without_an_upgrade(http: httpx.AsyncClient) -> None:
    reply = await http.get(PATH)
    assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
    assert "is a WebSocket" in reply.json()["error"]["message"]


async def test_key_and_origin(serve_with: Callable[..., Any], connect: Callable[..., Any]) -> None:
    async with serve_with(api_key="k", cors_origins=("http://app.test",)) as server:
        for headers, status in (
            ([], 401),
            ([(b"Authorization", b"Bearer k")], 0),
            ([(b"x-api-key", b"k"), (b"Origin", b"http://evil.test")], 403),
            ([(b"x-api-key", b"k"), (b"Origin", b"http://app.test")], 0),
        ):
            async with connect(server.port) as connection:
                answer = await Socket(connection).open(headers)
                if status:
                    assert isinstance(answer, RejectConnection)
                    assert answer.status_code == status
                else:
                    assert isinstance(answer, AcceptConnection)
