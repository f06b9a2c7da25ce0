"""The web page in a real Chromium, over its DevTools socket: it loads, speaks, and samples reach WebAudio."""

import json
import shutil
import subprocess
import wave
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import wsproto
from wsproto.events import AcceptConnection, Request, TextMessage

from vivavoce.bus.running import Running

from .conftest import Server, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

# Counts the samples that are handed to WebAudio and that are not silence.
LISTEN = """
window.heard = {samples: 0, loudest: 0};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (...when) {
  for (const sample of this.buffer.getChannelData(0)) {
    window.heard.samples += 1;
    window.heard.loudest = Math.max(window.heard.loudest, Math.abs(sample));
  }
  return start.apply(this, when);
};
"""


class Tab:
    """One page of a browser, by the DevTools protocol."""

    def __init__(self, stream: Any, wire: Any) -> None:
        self._stream, self._wire = stream, wire
        self._count = 0
        self._text = ""

    async def ask(self, method: str, **params: Any) -> Any:
        self._count += 1
        message = TextMessage(data=json.dumps({"id": self._count, "method": method, "params": params}))
        await self._stream.send(self._wire.send(message))
        while True:
            self._wire.receive_data(await self._stream.receive())
            for event in self._wire.events():
                assert isinstance(event, TextMessage)
                self._text += event.data
                if event.message_finished:
                    answer, self._text = json.loads(self._text), ""
                    if answer.get("id") == self._count:
                        return answer["result"]

    async def run(self, script: str) -> Any:
        answer = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        while not await self.run(script):
            await anyio.lowlevel.checkpoint()


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    assert CHROMIUM
    options = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"),
        *("--autoplay-policy=no-user-gesture-required", "--disable-background-networking"),
        *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
        *("--window-size=1000,1100", f"--user-data-dir={tmp_path}"),
    ]
    async with await anyio.open_process(
        [CHROMIUM, *options, "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stderr
            text = b""
            with anyio.fail_after(15):
                while b"DevTools listening on" not in text or not text.endswith(b"\n"):
                    text += await process.stderr.receive()
            port = int(text.partition(b"ws://127.0.0.1:")[2].split(b"/")[0])
            async with httpx.AsyncClient() as http:
                pages = (await http.get(f"http://127.0.0.1:{port}/json")).json()
            target = next(page for page in pages if page["type"] == "page")["webSocketDebuggerUrl"]
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                wire = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
                path = "/" + target.split("/", 3)[3]
                await stream.send(wire.send(Request(host=f"127.0.0.1:{port}", target=path)))
                wire.receive_data(await stream.receive())
                assert isinstance(next(wire.events()), AcceptConnection)
                yield Tab(stream, wire)
        finally:
            process.kill()


async def opened(tab: Tab, server: Server) -> None:
    await tab.ask("Page.enable")
    await tab.ask("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
    await tab.ask("Page.navigate", url=server.url)
    await tab.until(
        "document.readyState === 'complete' && document.getElementById('voice').options.length > 8"
    )


async def said(tab: Tab, text: str, ending: str = "stop") -> None:
    """Type it and press the button."""
    await tab.run(f"document.getElementById('text').value = {json.dumps(text)}")
    await tab.run("document.getElementById('speak').click()")
    await tab.until(f"document.getElementById('ending').textContent === '{ending}'")
    await tab.until("!document.getElementById('save').hidden")


async def shown(tab: Tab, element: str) -> str:
    return await tab.run(f"document.getElementById('{element}').textContent")


async def rows_painted(tab: Tab) -> list[bool]:
    """Whether the timeline has anything in each of its rows, right of their names."""
    return await tab.run(
        "(() => { const c = document.getElementById('timeline'), scale = c.width / c.clientWidth;"
        " return [...Array(8).keys()].map((row) => { const part = c.getContext('2d')"
        ".getImageData(112 * scale, (row * 27 + 4) * scale, c.width - 130 * scale, 17 * scale).data;"
        " const colors = new Set(); for (let i = 0; i < part.length; i += 4)"
        " if (part[i + 3] > 64) colors.add(part.slice(i, i + 3).join());"
        " return colors.size > 1; }); })()"
    )


async def test_it_speaks_and_shows_when_what_was_made(tab: Tab, server: Server) -> None:
    with anyio.fail_after(18):
        await opened(tab, server)
        await said(tab, "Hi there.")
    assert await shown(tab, "problem") == ""
    frames = int(await shown(tab, "frames"))
    heard = await tab.run("window.heard")
    assert heard["samples"] == frames * 1920
    assert heard["loudest"] > 0.01
    for figure in ("ttfa", "server-ttfa", "audible", "queued"):
        assert (await shown(tab, figure)).endswith(" ms")
    assert float(await shown(tab, "rtf")) > 0
    # What the prompt hands on may come before the tap listens.
    assert (await rows_painted(tab))[1:] == [True] * 7
    await tab.until("document.getElementById('load').textContent === '0 running, 0 waiting'")


async def test_the_queue_is_shown(
    tab: Tab, serve_with: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    async with serve_with(max_concurrent=1) as server, connect(server.port) as parked:
        await parked.speak(input="A long story begins here, and it goes on. " * 20, response_format="pcm")
        await parked.head()
        with anyio.fail_after(18):
            await opened(tab, server)
            await tab.run("document.getElementById('speak').click()")
            await tab.until("document.getElementById('load').textContent === '1 running, 1 waiting'")
            await tab.run("document.getElementById('stop').click()")
            await tab.until("document.getElementById('ending').textContent === 'stopped'")


async def test_a_refusal_is_shown(tab: Tab, server: Server) -> None:
    with anyio.fail_after(18):
        await opened(tab, server)
        await tab.run("document.getElementById('text').value = ' '")
        await tab.run("document.getElementById('speak').click()")
        await tab.until("!document.getElementById('problem').hidden")
    assert "nothing to say" in await shown(tab, "problem")


@pytest.fixture
async def house(family: Running) -> AsyncIterator[Server]:
    async with serving(family) as server:
        yield server


async def chosen(tab: Tab, kind: str) -> None:
    await tab.run(f"document.querySelector('[name=kind][value={kind}]').click()")
    await tab.until(f"document.getElementById('model').textContent.includes('{MODELS[kind]}')")


MODELS = {"custom_voice": "custom", "base": "base", "voice_design": "design"}


async def stored(tab: Tab, name: str) -> None:
    await tab.until("!document.getElementById('store').disabled")
    await tab.run(f"document.getElementById('name').value = '{name}'")
    await tab.run("document.getElementById('store').click()")
    await tab.until(f"document.getElementById('stored').textContent.startsWith('Stored {name}')")
    await tab.until(f"document.getElementById('voice').value === '{name}'")


async def test_a_voice_is_uploaded_recorded_spoken_and_forgotten(
    tab: Tab, house: Server, tmp_path: Path
) -> None:
    recording = tmp_path / "clip.wav"
    with wave.open(str(recording), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(array("h", [8000 if n // 80 % 2 else -8000 for n in range(24_000)]).tobytes())
    await tab.ask("DOM.enable")
    with anyio.fail_after(19):
        await opened(tab, house)
        document = await tab.ask("DOM.getDocument")
        chooser = await tab.ask("DOM.querySelector", nodeId=document["root"]["nodeId"], selector="#file")
        await tab.ask("DOM.setFileInputFiles", nodeId=chooser["nodeId"], files=[str(recording)])
        await tab.run("document.getElementById('transcript').value = 'What is said.'")
        await stored(tab, "ada")
        # Chromium's own device beeps once a second.
        await tab.run("document.getElementById('record').click()")
        await tab.until("parseFloat(document.getElementById('record').textContent.slice(6)) > 1.5")
        await tab.run("document.getElementById('record').click()")
        await tab.until("document.getElementById('record').textContent === 'Record again'")
        await stored(tab, "bea")
        await tab.run("document.getElementById('forget').click()")
        await tab.until("document.getElementById('voice').options.length === 1")
    assert await shown(tab, "problem") == ""
    async with httpx.AsyncClient(base_url=house.url) as http:
        voices = (await http.get("/v1/audio/voices")).json()["voices"]
        (ada,) = (voice for voice in voices if voice["type"] == "stored")
        assert (ada["id"], ada["seconds"], ada["ref_text"]) == ("ada", 1.0, "What is said.")
        await http.delete("/v1/audio/voices/ada")


async def test_each_kind_of_voice_asks_its_own_model(tab: Tab, house: Server) -> None:
    """The tiny models' random speech has no end that could be awaited: that it runs is enough."""
    with anyio.fail_after(19):
        await opened(tab, house)
        await tab.run("document.getElementById('text').value = 'Hi.'")
        for kind in MODELS:
            await chosen(tab, kind)
            hidden = {
                name: await tab.run(f"document.getElementById('{name}').closest('[data-for]').hidden")
                for name in ("voice", "manner", "description")
            }
            assert hidden == {
                "voice": kind == "voice_design",
                "manner": kind != "custom_voice",
                "description": kind != "voice_design",
            }
        await tab.run("document.getElementById('description').value = 'A calm old man.'")
        await tab.run("document.getElementById('speak').click()")
        await tab.until("document.getElementById('ttfa').textContent.endsWith('ms')")
        await tab.run("document.getElementById('stop').click()")
        await chosen(tab, "base")
        await tab.until("document.getElementById('hint').textContent.includes('No voice is stored yet')")
