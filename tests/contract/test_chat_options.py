"""O27: options that a chat model cannot have are refused at the start; a draft model changes no greedy answer."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3_text

from vivavoce.api.cli import main
from vivavoce.bus.running import Running

from .conftest import TINY, chat_layout, serving

CHAT = "/v1/chat/completions"
GREEDY = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0, "max_tokens": 40}


def copied(folder: Path, target: Path, config: dict[str, Any]) -> Path:
    """The tokenizer of a model's folder beside another configuration."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.fixture
def sliding_folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A tiny random model some of whose layers see a window only."""
    config = {
        **TINY,
        "model_type": "gemma3_text",
        "rope_theta": 10_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 32,
        "sliding_window_pattern": 2,
    }
    folder = copied(tiny_folder, tmp_path / "sliding", config)
    net = gemma3_text.Model(gemma3_text.ModelArgs.from_dict(config))
    leaves: Any = tree_flatten(net.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(leaves), {"format": "mlx"})
    return folder


@pytest.fixture
def other_words(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny model with two tokens of its vocabulary exchanged."""
    folder = copied(tiny_folder, tmp_path / "other", TINY)
    shutil.copy(tiny_folder / "model.safetensors", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["!"], words["#"] = words["#"], words["!"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What a server that does not start says."""
    words = ["serve", "--layout", "chat", "--port", "0", *options]
    assert main(words) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("option", [("--kv-bits", "4"), ("--kv-bits", "8"), ("--max-kv-size", "64")])
def test_a_cache_that_cannot_be_quantised(
    sliding_folder: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    told = refused(capsys, "--chat-model", str(sliding_folder), *option)
    assert option[0] in told
    assert "RotatingKVCache" in told


def test_a_draft_model_with_other_words(
    tiny_folder: Path, other_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, "--chat-model", str(tiny_folder), "--draft-model", str(other_words))
    assert "2 tokens differ" in told


@pytest.fixture
async def drafted(tiny_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    layout = chat_layout(tiny_folder, chunk=64, draft_model=str(tiny_folder))
    async with (
        Running(layout) as running,
        serving(running) as server,
        httpx.AsyncClient(base_url=server.url, timeout=20) as client,
    ):
        yield client


async def answered(http: httpx.AsyncClient, **fields: Any) -> tuple[str, str]:
    answer = await http.post(CHAT, json={**GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


async def test_the_answers_stay_the_same(drafted: httpx.AsyncClient, chat_http: httpx.AsyncClient) -> None:
    plain, _ = await answered(chat_http)
    assert await answered(drafted) == (plain, "length")
    stop = plain[len(plain) // 2 :][:3]
    assert await answered(drafted, stop=[stop]) == await answered(chat_http, stop=[stop])
    body = {**GREEDY, "max_tokens": 2000, "stream": True}
    async with drafted.stream("POST", CHAT, json=body) as answer:
        async for line in answer.aiter_lines():
            if '"content":"' in line:
                break
    assert await answered(drafted) == (plain, "length")
    long = [{"role": "user", "content": "word " * 500}]
    assert (await answered(drafted, messages=long, max_tokens=2))[1] == "length"


async def test_a_prompt_cache_outlives_the_server(tiny_folder: Path, tmp_path: Path) -> None:
    layout = chat_layout(tiny_folder, chunk=64, prompt_cache=str(tmp_path / "kept"))
    body = {**GREEDY, "messages": [{"role": "user", "content": "word " * 200}], "max_tokens": 5}
    told: list[Any] = []
    for _ in range(2):
        async with (
            Running(layout) as running,
            serving(running) as server,
            httpx.AsyncClient(base_url=server.url, timeout=20) as client,
        ):
            told.append((await client.post(CHAT, json=body)).json())
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in told]
    assert cached[0] == 0
    assert cached[1] >= 192
    assert told[0]["choices"] == told[1]["choices"]
