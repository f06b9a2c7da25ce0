"""The web page in a real Chromium, over its DevTools socket: it loads, speaks, and samples reach WebAudio."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import wsproto
from wsproto.events import AcceptConnection, Request, TextMessage

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
        *("--window-size=1000,900", f"--user-data-dir={tmp_path}"),
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


async def test_it_speaks(tab: Tab, server: Any) -> None:
    await tab.ask("Page.enable")
    await tab.ask("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
    await tab.ask("Page.navigate", url=server.url)
    with anyio.fail_after(18):
        await tab.until(
            "document.readyState === 'complete' && document.getElementById('voice').options.length > 9"
        )
        await tab.run("document.getElementById('text').value = 'Hi there.'")
        await tab.run("document.getElementById('speak').click()")
        await tab.until("document.getElementById('ending').textContent !== '–'")
    assert await tab.run("document.getElementById('problem').textContent") == ""
    assert await tab.run("document.getElementById('ending').textContent") == "stop"
    frames = int(await tab.run("document.getElementById('frames').textContent"))
    heard = await tab.run("window.heard")
    assert heard["samples"] == frames * 1920
    assert heard["loudest"] > 0.01
    for figure in ("ttfa", "server-ttfa", "audible", "queued"):
        assert (await tab.run(f"document.getElementById('{figure}').textContent")).endswith(" ms")
    painted = await tab.run(
        "(() => { const c = document.getElementById('timeline');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v); })()"
    )
    assert painted


async def test_a_refusal_is_shown(tab: Tab, server: Any) -> None:
    await tab.ask("Page.navigate", url=server.url)
    with anyio.fail_after(18):
        await tab.until(
            "document.readyState === 'complete' && document.getElementById('voice').options.length > 9"
        )
        await tab.run("document.getElementById('text').value = ' '")
        await tab.run("document.getElementById('speak').click()")
        await tab.until("!document.getElementById('problem').hidden")
    assert "nothing to say" in await tab.run("document.getElementById('problem').textContent")
