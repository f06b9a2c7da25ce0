"""The prompt cache on disk: the same answers, only for the model that wrote it, within its bound."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vivavoce.bus.errors import StartError
from vivavoce.bus.messages import Sampling
from vivavoce.stages.chat.engine import Engine, EngineOptions
from vivavoce.stages.chat.model import KvOptions
from vivavoce.stages.chat.prefix_disk import ChunkFiles, fingerprint

END = 257
WANTED = {"max_tokens": 5, "sampling": Sampling(temperature=0, seed=0), "logprobs": 2}
PROMPT = [n % 200 for n in range(90)]


def options(cache_bytes: int = 10_000_000, **more: Any) -> EngineOptions:
    return EngineOptions(chunk=16, rows=4, cache_bytes=cache_bytes, **more)


def files(folder: Path, limit: int = 10_000_000) -> ChunkFiles:
    return ChunkFiles(folder, limit)


def told(outcome: Any) -> Any:
    return outcome.text, outcome.reasons, outcome.logprobs


@pytest.fixture(params=["llama", "sliding", "hybrid"])
def model(request: Any, tiny_models: Any) -> Any:
    return tiny_models(request.param)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=60), min_size=1, max_size=6),
    limit=st.sampled_from([40_000, 10_000_000]),
)
def test_the_same_answers_after_every_start(
    model: Any, ask: Any, tmp_path_factory: Any, prompts: list[list[int]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    cold = Engine(model, options(0))
    for prompt in prompts:
        engine = Engine(model, options(limit), files=files(folder))
        assert told(ask(engine, prompt, **WANTED)) == told(ask(cold, prompt, **WANTED))
        engine.close()


def test_what_was_evicted_and_what_was_there_at_the_end_is_found(
    tiny_models: Any, ask: Any, tmp_path: Path
) -> None:
    model = tiny_models("llama")
    first = Engine(model, options(30_000), files=files(tmp_path))
    ask(first, PROMPT, **WANTED)
    ask(first, [3, *PROMPT], **WANTED)
    assert list(tmp_path.iterdir())  # evicted
    assert ask(first, PROMPT, **WANTED).started.cached_tokens == 80
    first.close()
    again = Engine(model, options(), files=files(tmp_path))
    assert ask(again, PROMPT, **WANTED).started.cached_tokens == 80
    assert ask(again, [3, *PROMPT], **WANTED).started.cached_tokens == 80


def test_another_model_reads_none_of_it(tiny_models: Any, ask: Any, tmp_path: Path) -> None:
    model = tiny_models("llama")
    engine = Engine(model, options(), files=files(tmp_path))
    ask(engine, PROMPT, **WANTED)
    engine.close()

    def cached(other: Any, **more: Any) -> int:
        return ask(
            Engine(other, options(**more), files=files(tmp_path)), PROMPT, **WANTED
        ).started.cached_tokens

    assert cached(model) == 80
    assert cached(model, slice_tokens=8) == 0
    assert cached(tiny_models("llama", options=KvOptions(max_size=64))) == 0
    before = fingerprint(model)
    weights = model.net.model.embed_tokens.weight
    model.net.model.embed_tokens.weight = weights.at[7, 7].add(1e-6)
    assert fingerprint(model) != before
    assert cached(model) == 0
    model.net.model.embed_tokens.weight = weights
    assert fingerprint(model) == before


def test_broken_files_are_dropped(tiny_models: Any, ask: Any, tmp_path: Path) -> None:
    model = tiny_models("llama")
    engine = Engine(model, options(), files=files(tmp_path))
    expected = told(ask(engine, PROMPT, **WANTED))
    engine.close()
    for number, file in enumerate(sorted(tmp_path.iterdir())):
        file.write_bytes(file.read_bytes()[: number * 700])
    again = Engine(model, options(), files=files(tmp_path))
    assert told(ask(again, PROMPT, **WANTED)) == expected


def test_a_chunk_that_is_not_what_was_written_is_none(tmp_path: Path) -> None:
    part = [(mx.arange(1000), [mx.ones((2,), mx.bfloat16), "x"])]
    files(tmp_path).save(b"a", part)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole.replace(b"x", b"y"),
        whole.replace(b'"BF16"', b'"U16" '),
        *(whole.replace(b"array", other) for other in (b"tuple", b"value", b"other")),
    ):
        assert damaged != whole
        file.write_bytes(damaged)
        assert files(tmp_path).load(b"a") is None
        assert not file.exists()
    file.write_bytes(whole)
    file.rename(file.with_stem(b"b".hex()))
    assert files(tmp_path).load(b"b") is None
    for outline in ("5", '"x"', "[null]", '[{"tuple": 5}]', "[" * 10_000):
        mx.save_safetensors(str(file), {"0": mx.zeros((1,))}, {"outline": outline})
        assert files(tmp_path).load(b"a") is None


def test_only_whole_chunks_count(tmp_path: Path) -> None:
    (tmp_path / f"{b'a'.hex()}.safetensors").symlink_to(tmp_path / "gone")
    unfinished = tmp_path / f".{b'b'.hex()}.123.safetensors"
    for file in (unfinished, tmp_path / "adapters.safetensors"):
        file.write_bytes(b"x" * 1000)
    kept = files(tmp_path, 100)
    assert kept.nbytes == 0
    assert b"a" not in kept
    assert not unfinished.exists()


def test_the_folder_stays_within_its_bound(tmp_path: Path) -> None:
    kept = files(tmp_path, 9_000)
    part = [(mx.zeros((1, 1000), mx.float32), None, [mx.ones((2,), mx.bfloat16), "x"])]
    for name in (b"a", b"b"):
        kept.save(name, part)
    assert kept.load(b"a") is not None  # and so it is newer than b
    kept.save(b"c", part)
    assert [name in kept for name in (b"a", b"b", b"c")] == [True, False, True]
    assert kept.nbytes == sum(file.stat().st_size for file in tmp_path.iterdir()) <= 9_000
    kept.save(b"large", [mx.zeros((9_001,), mx.uint8)])
    assert b"large" not in kept
    again = files(tmp_path, 9_000)
    assert b"a" in again
    loaded: Any = again.load(b"a")
    zeros, nothing, (ones, text) = loaded[0]
    assert (zeros.shape, nothing, ones.dtype, text) == ((1, 1000), None, mx.bfloat16, "x")
    assert again.load(b"b") is None


def test_a_folder_that_goes_away_harms_no_request(tiny_models: Any, ask: Any, tmp_path: Path) -> None:
    model = tiny_models("llama")
    engine = Engine(model, options(30_000), files=files(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    assert ask(engine, PROMPT, **WANTED).failed is None
    engine.close()


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot be used"):
        files(tmp_path / "file" / "x")
