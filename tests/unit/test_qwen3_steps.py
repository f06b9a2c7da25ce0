"""Talker, code predictor and codec decoder as functions of explicit state."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from vivavoce.configs.models import find
from vivavoce.stages.speech.qwen3 import talker_step
from vivavoce.stages.speech.qwen3.checkpoint import load
from vivavoce.stages.speech.qwen3.codec_decoder import to_int16
from vivavoce.stages.speech.qwen3.model import Qwen3TTS
from vivavoce.stages.speech.qwen3.prompt import Prompt, build
from vivavoce.stages.speech.qwen3.sampling import Sampling
from vivavoce.stages.speech.qwen3.talker import PROMPT_ROWS, doubled

CHECKPOINTS = Path(__file__).parents[1] / "golden" / "data" / "checkpoints"
HOT = Sampling(temperature=1.5, repetition_penalty=1.05)
END = 2150


@pytest.fixture(scope="module")
def model() -> Qwen3TTS:
    return load(CHECKPOINTS / "custom06")


@pytest.fixture(scope="module")
def prompt(model: Qwen3TTS) -> Prompt:
    return build(model, "A few words.", voice="ryan", language="en", instructions=None)


def _speak(model: Qwen3TTS, prompt: Prompt, seed: int, frames: int = 4) -> list[list[int]]:
    state, code, hidden = model.talker.start(prompt.prefill, HOT, seed)
    spoken: list[list[int]] = []
    for _ in range(frames):
        codes, embedding = model.predictor.frame(hidden, code, HOT, state.key, state.frame)
        spoken.append(np.array(codes)[0].tolist())
        state, code, hidden = model.talker.step(state, embedding, prompt.pad)
    return spoken


def test_a_seed_decides_every_code(model: Qwen3TTS, prompt: Prompt) -> None:
    assert _speak(model, prompt, 5) == _speak(model, prompt, 5)
    assert _speak(model, prompt, 5) != _speak(model, prompt, 6)


def test_neighbours_change_nothing(model: Qwen3TTS, prompt: Prompt) -> None:
    alone = _speak(model, prompt, 5, frames=3)
    other = build(model, "Something else entirely.", voice="serena", language=None, instructions=None)
    ours, theirs = (model.talker.start(p.prefill, HOT, seed) for p, seed in ((prompt, 5), (other, 9)))
    for frame in range(3):
        rows: list[list[int]] = []
        for state, code, hidden in (ours, theirs):
            codes, embedding = model.predictor.frame(hidden, code, HOT, state.key, state.frame)
            rows.append(np.array(codes)[0].tolist())
            stepped = model.talker.step(state, embedding, prompt.pad)
            ours, theirs = (stepped, theirs) if len(rows) == 1 else (ours, stepped)
        assert rows[0] == alone[frame]


@pytest.mark.parametrize("checkpoint", [CHECKPOINTS / "custom06", CHECKPOINTS / "custom", find("embedded")])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_requests_computed_together_are_what_each_is_alone(checkpoint: Path, count: int) -> None:
    """To the last bit, whatever the voices' own sizes, for every way to choose."""
    model = load(checkpoint, dtype="fp32")
    texts = ["One.", "Two words.", "And three of them. " * 12] * 3
    prompts = [build(model, t, voice="ryan", language=None, instructions=None) for t in texts[:count]]
    for sampling in (HOT, Sampling(do_sample=False), Sampling(top_p=0.8)):
        alone = [model.talker.start(p.prefill, sampling, seed) for seed, p in enumerate(prompts)]
        together = list(alone)
        for _ in range(2):
            said = [
                model.predictor.frame(hidden, code, model.sub_sampling, state.key, state.frame)
                for state, code, hidden in alone
            ]
            states, codes, hidden = (list(part) for part in zip(*together, strict=True))
            made = model.predictor.frames(
                hidden, codes, model.sub_sampling, [s.key for s in states], [s.frame for s in states]
            )
            stepped = [
                model.talker.step(state, embedding, prompts[0].pad)
                for (state, _, _), (_, embedding) in zip(alone, said, strict=True)
            ]
            alone, pads = stepped, [prompts[0].pad] * count
            together = model.talker.steps(states, [embedding for _, embedding in made], pads)
            for own, other in zip([*said, *alone], [*made, *together], strict=True):
                for a, b in zip(_flat(own), _flat(other), strict=True):
                    np.testing.assert_array_equal(np.array(a), np.array(b))


def _flat(made: Any) -> list[Any]:
    """The arrays of what the predictor gave, or of what the talker gave with its state."""
    first, *others = made
    return [first, *others] if isinstance(first, mx.array) else [*first[0], *first[1:4], *others]


def test_steps_see_what_a_longer_prompt_would(model: Qwen3TTS, prompt: Prompt) -> None:
    rows = prompt.prefill
    _, _, whole = model.talker.start(rows, HOT, 0)
    state, _, hidden = model.talker.start(rows[:, :-3], HOT, 0)
    for place in range(3, 0, -1):
        at = rows.shape[1] - place
        state, _, hidden = model.talker.step(state, rows[:, at : at + 1], mx.zeros_like(prompt.pad))
    np.testing.assert_allclose(np.array(hidden), np.array(whole), atol=1e-4)


def test_a_larger_cache_changes_nothing(model: Qwen3TTS, prompt: Prompt) -> None:
    state, code, hidden = model.talker.start(prompt.prefill, HOT, 1)
    _, embedding = model.predictor.frame(hidden, code, HOT, state.key, state.frame)
    _, _, small = model.talker.step(state, embedding, prompt.pad)
    grown = state._replace(cache=[mx.pad(part, [(0, 0), (0, 0), (0, 192), (0, 0)]) for part in state.cache])
    after, _, large = model.talker.step(grown, embedding, prompt.pad)
    assert after.cache[0].shape[2] >= state.cache[0].shape[2] + 192
    np.testing.assert_allclose(np.array(large), np.array(small), atol=1e-5)


def test_a_cache_grows_when_it_is_full(model: Qwen3TTS, prompt: Prompt) -> None:
    state, _, _ = model.talker.start(prompt.prefill, HOT, 1)
    row = mx.zeros_like(prompt.pad)
    state, _, _ = model.talker.step(state, row, row)
    size = state.cache[0].shape[2]
    while state.filled < size:
        state, _, _ = model.talker.step(state, row, row)
    before = np.array(state.cache[0])
    state, _, _ = model.talker.step(state, row, row)
    after = np.array(state.cache[0])
    assert after.shape[2] == 2 * size
    np.testing.assert_array_equal(after[:, :, :size], before)
    assert np.array(state.position).tolist() == [state.filled]


def test_positions_run_out_with_a_clear_error(model: Qwen3TTS, prompt: Prompt) -> None:
    state, _, _ = model.talker.start(prompt.prefill, HOT, 1)
    full = state._replace(filled=model.config.talker_config.max_position_embeddings)
    with pytest.raises(ValueError, match="end the request"):
        model.talker.step(full, prompt.pad, prompt.pad)


def test_the_end_cannot_come_in_the_first_two_frames_and_no_special_id_ever(model: Qwen3TTS) -> None:
    logits = mx.zeros((1, model.talker.first.vocabulary))
    seen = mx.zeros((model.talker.first.vocabulary,), mx.bool_)
    state, _, _ = model.talker.start(mx.zeros((1, 4, 32)), HOT, 0)
    for frame, allowed in ((0, False), (1, False), (2, True), (500, True)):
        ready = model.talker.first.admissible(logits, seen, mx.array([frame], mx.int32), state.control)
        open_ids = np.flatnonzero(np.isfinite(np.array(ready)[0]))
        assert open_ids.tolist() == [*range(2048), *([END] if allowed else [])]
    assert talker_step.MIN_FRAMES == 2


def test_what_was_said_is_remembered(model: Qwen3TTS, prompt: Prompt) -> None:
    state, code, hidden = model.talker.start(prompt.prefill, HOT, 3)
    said = [int(np.array(code)[0, 0])]
    for _ in range(3):
        _, embedding = model.predictor.frame(hidden, code, HOT, state.key, state.frame)
        state, code, hidden = model.talker.step(state, embedding, prompt.pad)
        said.append(int(np.array(code)[0, 0]))
    assert np.flatnonzero(np.array(state.seen)[0]).tolist() == sorted(set(said))
    assert np.array(state.frame).tolist() == [3]


def test_the_codec_leaves_the_state_it_was_given(model: Qwen3TTS) -> None:
    codes = mx.random.randint(0, 2048, (1, 6, 16), key=mx.random.key(0))
    _, state = model.codec.step(codes[:, :2], model.codec.start())
    first, _ = model.codec.step(codes[:, 2:4], state)
    model.codec.step(codes[:, 4:], state)
    again, after = model.codec.step(codes[:, 2:4], state)
    np.testing.assert_array_equal(np.array(first), np.array(again))
    assert np.array(after.position).tolist() == [4]
    assert first.shape == (1, 2 * 1920)
    assert first.dtype == mx.float32


def test_codec_streams_side_by_side_hear_only_themselves(model: Qwen3TTS) -> None:
    codes = mx.random.randint(0, 2048, (2, 4, 16), key=mx.random.key(1))
    alone = [np.array(model.codec.decode(row[None])) for row in codes]
    states = [model.codec.start(), model.codec.start()]
    parts: list[list[npt.NDArray[np.float32]]] = [[], []]
    for frame in range(4):
        for stream in range(2):
            row = codes[stream : stream + 1, frame : frame + 1]
            pcm, states[stream] = model.codec.step(row, states[stream])
            parts[stream].append(np.array(pcm))
    for stream in range(2):
        np.testing.assert_allclose(np.concatenate(parts[stream], axis=1), alone[stream], atol=1e-5)


def test_the_codec_forgets_what_is_past_its_window(model: Qwen3TTS) -> None:
    """Every state array has a fixed size, so a stream of any length costs the same."""
    state = model.codec.start()
    shapes = [part.shape for part in (*state.tails, *state.cache)]
    for _ in range(10):
        pcm, state = model.codec.step(mx.zeros((1, 8, 16), mx.int32), state)
        mx.eval(pcm, state)
    assert [part.shape for part in (*state.tails, *state.cache)] == shapes
    assert model.codec.decode(mx.zeros((1, 0, 16), mx.int32)).shape == (1, 0)


def test_int16_rounds_to_nearest_ties_to_even() -> None:
    pcm = mx.array([1.0, -1.0, 0.0, 0.5 / 32767, 1.5 / 32767, -0.6 / 32767])
    assert to_int16(pcm).tolist() == [32767, -32767, 0, 0, 2, -1]


def test_warming_up_reports_its_share(model: Qwen3TTS) -> None:
    heard: list[float] = []
    model.warm_up(heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_texts_of_all_lengths_take_a_gpu_to_the_few_sizes_that_were_warmed_up(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Hm." * count for count in range(1, 60)]
    plain = [np.array(_built(model, text).prefill) for text in texts]
    monkeypatch.setattr("vivavoce.stages.speech.qwen3.model.on_cpu", lambda: False)
    products, prompts = set[int](), set[int]()
    widen, start = model.rows._widen, model.talker.start  # pyright: ignore[reportPrivateUsage]

    def widening(rows: mx.array) -> mx.array:
        products.add(rows.shape[0])
        return widen(rows)

    def starting(rows: mx.array, sampling: Sampling, seed: int) -> Any:
        prompts.add(doubled(PROMPT_ROWS, rows.shape[1]))
        return start(rows, sampling, seed)

    monkeypatch.setattr(model.rows, "_widen", widening)
    monkeypatch.setattr(model.talker, "start", starting)
    model.warm_up()
    assert prompts == {32, 64, 128, 256, 512}
    warm = set(products)
    for text, rows in zip(texts, plain, strict=True):
        np.testing.assert_allclose(np.array(_built(model, text).prefill), rows, atol=1e-5)
    assert products == warm == {1 << i for i in range(10)}


def _built(model: Qwen3TTS, text: str) -> Prompt:
    return build(model, text, voice="ryan", language=None, instructions=None)
