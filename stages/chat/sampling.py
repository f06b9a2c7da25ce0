"""From logits to tokens, in fp32 on the device, each row with its own settings and its own key.

A row's noise comes from a key made of its seed and the position of the token, so what a request draws does not
depend on what runs beside it. (Its logits may, in their last bits: kernels round differently with the number
of rows. A request with a seed is therefore decoded alone; see batch.py.)
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...bus.messages import Sampling

COLDEST = 1e-6
"""A temperature below which the likeliest token is taken: divided by less, logits leave the range of fp32."""
OPEN = 2.0
"""A top_p that keeps every token in spite of rounding."""


def greedy(sampling: Sampling) -> bool:
    return sampling.temperature < COLDEST


def filters(sampling: Sampling) -> bool:
    """Whether unlikely tokens are left out."""
    return not greedy(sampling) and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def adjusts(sampling: Sampling) -> bool:
    """Whether the logits are changed before a token is drawn."""
    counts = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1, 0, 0)
    return counts or bool(sampling.logit_bias)


def key(seed: int, choice: int) -> int:
    """32 bits for one choice of a request."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{choice}".encode()).digest()[:4], "big")


class Adjuster:
    """Penalties and bias of one row, with its token counts [V] kept on the device."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab: int) -> None:
        self.sampling = sampling
        self._answer = mx.zeros((vocab,), mx.int32)
        self._prompt = mx.zeros((vocab,), mx.int32)
        if sampling.repetition_penalty != 1:
            self._prompt = self._prompt.at[mx.array(list(prompt))].add(1)
        if sampling.logit_bias:
            self._ids = mx.array(list(sampling.logit_bias))
            self._bias = mx.array(list(sampling.logit_bias.values()), mx.float32)

    def count(self, token: mx.array) -> None:
        """Count answer tokens, [] or [n]."""
        self._answer = self._answer.at[token].add(1)

    def __call__(self, logits: mx.array, ahead: mx.array | None = None) -> mx.array:
        """Adjust logits [V]; `ahead` [n] are tokens of the answer that are not counted yet."""
        sampling = self.sampling
        answer = self._answer if ahead is None else self._answer.at[ahead].add(1)
        if sampling.repetition_penalty != 1:
            factor = sampling.repetition_penalty
            scaled = mx.where(logits > 0, logits / factor, logits * factor)
            logits = mx.where(self._prompt + answer > 0, scaled, logits)
        logits = logits - sampling.frequency_penalty * answer - sampling.presence_penalty * (answer > 0)
        return logits.at[self._ids].add(self._bias) if sampling.logit_bias else logits


class Sampler:
    """The settings of the rows of a batch, as columns [B, 1]."""

    def __init__(self, rows: Sequence[tuple[Sampling, int]]) -> None:
        """Rows are pairs of settings and `key`."""
        settings = [sampling for sampling, _ in rows]
        self.greedy = all(greedy(s) for s in settings)
        self.filters = any(filters(s) for s in settings)
        self._keys = mx.array([k for _, k in rows], mx.uint32)
        self._warm = mx.array([not greedy(s) for s in settings])[:, None]
        self._temperature = _column([1.0 if greedy(s) else s.temperature for s in settings])
        self._top_p = _column([s.top_p if filters(s) and s.top_p < 1 else OPEN for s in settings])
        self._top_k = mx.array([s.top_k if filters(s) and s.top_k > 0 else 2**31 - 1 for s in settings])[
            :, None
        ]
        self._min_p = _column([s.min_p if filters(s) else 0.0 for s in settings])

    def __call__(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """Draw one token a row, uint32 [B], from logits fp32 [B, V]; `positions` count the answer's tokens."""
        if self.greedy:
            return mx.argmax(logits, axis=-1)
        scaled = logits / self._temperature
        if self.filters:
            scaled = self._filter(scaled)
        keys = mx.stack([self._keys, mx.array(list(positions), mx.uint32)], axis=-1)
        # argmax(logits + Gumbel noise) is a draw from softmax(logits): Gumbel-max, Maddison et al. 2014.
        noisy = scaled + _gumbel(keys, logits.shape[-1])
        return mx.argmax(mx.where(self._warm, noisy, scaled), axis=-1)

    def _filter(self, logits: mx.array) -> mx.array:
        order = mx.argsort(-logits, axis=-1)
        probabilities = mx.softmax(mx.take_along_axis(logits, order, axis=-1), axis=-1)
        before = mx.cumsum(probabilities, axis=-1) - probabilities
        rank = mx.arange(logits.shape[-1])[None]
        kept = (before < self._top_p) & (rank < self._top_k)
        kept &= probabilities >= self._min_p * probabilities[:, :1]
        kept |= rank == 0
        mask = mx.put_along_axis(mx.zeros(logits.shape, mx.bool_), order, kept, axis=-1)
        return mx.where(mask, logits, -mx.inf)


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), mx.float32)[:, None]


def _gumbel(keys: mx.array, vocab: int) -> mx.array:
    """Noise [B, V]; a row depends on its key [2] alone."""

    def one(one_key: Any) -> mx.array:
        return mx.random.gumbel((vocab,), key=one_key)

    return mx.vmap(one)(keys)


class Likelihood:
    """Log-probability of a drawn token and of the `top` likeliest ones, under the model's own distribution."""

    def __init__(self, logits: mx.array, token: mx.array, top: int) -> None:
        """logits [V], token []; nothing is computed before `read`."""
        logs = logits - mx.logsumexp(logits)
        self._chosen = logs[token]
        self._ids = mx.argsort(-logs)[:top]
        self._logs = logs[self._ids]
        mx.async_eval(self._chosen, self._ids, self._logs)

    def read(self) -> tuple[float, list[tuple[int, float]]]:
        """The token's log-probability, and (id, log-probability) of the likeliest, best first."""
        ids: Any = self._ids.tolist()
        logs: Any = self._logs.tolist()
        chosen: Any = self._chosen.item()
        return chosen, list(zip(ids, logs, strict=True))
