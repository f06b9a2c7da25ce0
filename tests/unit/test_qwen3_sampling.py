"""Keys, noise and choices."""

import mlx.core as mx
import numpy as np
import pytest

from vivavoce.stages.speech.qwen3.sampling import (
    Sampling,
    choose,
    controls,
    kept,
    noise,
    penalise,
    request_key,
)

V = 64
SAMPLED = Sampling(temperature=1.0, top_k=0)


def _noise(key: mx.array, frame: int, first: int, groups: int, sampling: Sampling = SAMPLED) -> mx.array:
    return noise(key, mx.array([frame], mx.int32), first, groups, V, controls(sampling, V))[:, 0]


def test_noise_follows_from_key_frame_and_group_alone() -> None:
    key = request_key(7)
    together = np.array(_noise(key, 3, 1, 15))
    assert np.array_equal(np.array(_noise(key, 3, 5, 2)), together[4:6])
    others = [_noise(request_key(8), 3, 1, 15), _noise(key, 4, 1, 15), _noise(key, 3, 2, 15)]
    assert not any(np.array_equal(np.array(other), together) for other in others)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_every_64_bit_seed_has_a_key_of_its_own(seed: int) -> None:
    others = {tuple(np.array(request_key(other))[0].tolist()) for other in range(2, 50)}
    assert tuple(np.array(request_key(seed))[0].tolist()) not in others


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_choices_follow_the_softmax(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=0)
    logits = mx.array(np.random.default_rng(0).normal(0, 1, (1, V)).astype(np.float32))
    draws = np.concatenate([np.array(_noise(request_key(seed), 0, 1, 2000, sampling)) for seed in range(10)])
    chosen = np.argmax(np.array(logits) + draws, axis=1)
    wanted = np.array(mx.softmax(logits / temperature, axis=-1))[0]
    found = np.bincount(chosen, minlength=V) / len(chosen)
    assert np.abs(found - wanted).max() < 5 * np.sqrt(wanted.max() / len(chosen))


def test_a_greedy_choice_hears_no_noise() -> None:
    greedy = Sampling(do_sample=False)
    assert not np.array(_noise(request_key(1), 0, 0, 1, greedy)).any()
    assert Sampling(temperature=0).greedy


def test_barred_ids_are_never_chosen() -> None:
    logits = mx.where(mx.arange(V)[None] < V - 2, -mx.inf, mx.zeros((1, V)))
    for seed in range(50):
        gumbel = _noise(request_key(seed), 0, 0, 1)
        code = choose(logits, gumbel[0], controls(SAMPLED, V), False)
        assert code.shape == (1, 1)
        assert code.dtype == mx.int32
        assert code.item() in (V - 2, V - 1)


@pytest.mark.parametrize(("top_k", "count"), [(0, 6), (1, 1), (2, 3), (3, 3), (6, 6), (99, 6)])
def test_top_k_keeps_ties(top_k: int, count: int) -> None:
    logits = mx.array([[3.0, 2.0, 2.0, 1.0, 0.5, -1.0]])
    sampling = Sampling(temperature=1.0, top_k=top_k)
    assert np.isfinite(np.array(kept(logits, controls(sampling, 6), False))).sum() == count


@pytest.mark.parametrize(("top_p", "count"), [(0.999, 4), (0.93, 3), (0.6, 2), (0.45, 1), (0.0, 1)])
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p: float, count: int) -> None:
    logits = mx.log(mx.array([[0.08, 0.5, 0.02, 0.4]]))
    sampling = Sampling(temperature=1.0, top_k=0, top_p=top_p)
    assert sampling.nucleus
    left = np.isfinite(np.array(kept(logits, controls(sampling, 4), True)))[0]
    assert left.sum() == count
    assert left[1]


def test_the_penalty_lowers_what_was_seen_whatever_its_sign() -> None:
    logits = mx.array([[2.0, -2.0, 2.0, -2.0]])
    seen = mx.array([True, True, False, False])
    assert penalise(logits, seen, mx.array(2.0)).tolist() == [[1.0, -4.0, 2.0, -2.0]]
