"""The code predictor: code groups 1–15 of one frame, one after the other, as one compiled function.

Pass 0 takes two rows, the talker's hidden state and the embedding of code 0; pass i takes the embedding of
code i. Each pass runs all layers at fixed positions and samples one code: [B, 16] codes in, 15 passes, no host.
The frames of B requests are the B rows of every product. With kernels all passes are one launch.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ...device import compiled
from . import kernels, launch
from .config import ModelConfig
from .layers import Layer, Turn
from .ops import CAUSAL, apart, joined, rms_norm, rotary
from .sampling import Controls, Sampling, controls, noise
from .weights import Linear, Weights


class CodePredictor:
    def __init__(self, config: ModelConfig, weights: Weights, first_embedding: mx.array) -> None:
        """`first_embedding` [talker vocabulary, H] is the talker's own table, for code 0."""
        talker, own = config.talker_config, config.talker_config.code_predictor_config
        name = "talker.code_predictor"
        self._groups = own.num_code_groups
        self._vocabulary = own.vocab_size
        later = [
            weights.table(f"{name}.model.codec_embedding.{i}", own.vocab_size, talker.hidden_size)
            for i in range(self._groups - 1)
        ]
        self._table = mx.concatenate([first_embedding, *later], axis=0)
        starts = [0] + [talker.vocab_size + i * own.vocab_size for i in range(self._groups - 1)]
        self._starts = mx.array(starts, mx.int32)
        """Row of `_table` at which each group begins."""
        self._heads: list[Linear] = [
            weights.linear(f"{name}.lm_head.{i}", own.hidden_size, own.vocab_size)
            for i in range(self._groups - 1)
        ]
        self._narrow: Linear | None = None
        if own.hidden_size != talker.hidden_size:
            self._narrow = weights.linear(
                f"{name}.small_to_mtp_projection", talker.hidden_size, own.hidden_size, bias=True
            )
        self._rows = self._table if self._narrow is None else self._narrow(self._table)
        self._inputs = mx.split(self._rows, starts[1:], axis=0)
        """What each group's codes look like to this model: the projection is done once, here."""
        layers = [Layer.build(weights, f"{name}.model.layers.{i}", own) for i in range(own.num_hidden_layers)]
        self._norm = weights.array(f"{name}.model.norm.weight", own.hidden_size)
        self._layers, self._heads, stack = kernels.stack(layers, self._heads, self._norm)
        self._eps = own.rms_norm_eps
        cos, sin = rotary(mx.arange(self._groups), own.head_dim, own.rope_theta)
        self._turns = {
            first: [layer.turn(cos[first:end], sin[first:end]) for layer in self._layers]
            for first, end in [(0, 2), *((at, at + 1) for at in range(2, self._groups))]
        }
        """By first position: pass 0 takes positions 0 and 1, each later one the next."""
        self._shape = own.num_key_value_heads, self._groups, own.head_dim
        self._dtype = weights.dtype
        mx.eval(self._turns)
        self._frame: dict[bool, Callable[..., Any]] = {
            flag: compiled(self._framer(flag)) for flag in (False, True)
        }
        self._stack = stack if own.vocab_size <= kernels.CHOICES else None
        """An attribute for its weights to be found: functions are not looked into."""
        self.widest = kernels.widest(self._stack)
        """Requests whose frames may be computed together."""
        if self._stack:
            self._frame[False] = self._launcher(self._stack, cos, sin)

    def frame(
        self, hidden: mx.array, code0: mx.array, sampling: Sampling, key: mx.array, frame: mx.array
    ) -> tuple[mx.array, mx.array]:
        """hidden [1, 1, H], code0 int32 [1, 1], the request's key and int32 frame index [1]
        → (codes int32 [1, 16], sum of their embeddings [1, 1, H])."""
        return self.frames([hidden], [code0], sampling, [key], [frame])[0]

    def frames(
        self,
        hidden: list[mx.array],
        code0: list[mx.array],
        sampling: Sampling,
        keys: list[mx.array],
        frames: list[mx.array],
    ) -> list[tuple[mx.array, mx.array]]:
        """One frame of each of several requests, computed together; as `frame` for each."""
        control = controls(sampling, self._vocabulary)
        made = self._frame[kernels.nucleus(sampling, self._vocabulary)](control, hidden, code0, keys, frames)
        return list(zip(*made, strict=True))[: len(hidden)]

    def logits(self, hidden: mx.array, codes: mx.array) -> mx.array:
        """What each group's head says of the codes before it: hidden [1, 1, H], codes [1, 16] → float32 [15, V]."""
        start = hidden[0] if self._narrow is None else self._narrow(hidden[0])
        given = [mx.take(table, codes[0, i : i + 1], axis=0) for i, table in enumerate(self._inputs[:-1])]
        x = mx.concatenate([start, *given], axis=0)
        for i, layer in enumerate(self._layers):
            turns = zip(*(turn[i] for turn in self._turns.values()), strict=True)
            turn = Turn(*(mx.concatenate(list(parts), axis=0) for parts in turns))
            x = layer.attend(x, *layer.project(x, turn), CAUSAL)
        rows = rms_norm(x, self._norm, self._eps)
        said = [head(rows[i + 1 : i + 2]) for i, head in enumerate(self._heads)]
        return mx.concatenate(said, axis=0).astype(mx.float32)

    def embed(self, codes: mx.array) -> mx.array:
        """The sum of the embeddings of int codes [B, 16]: [B, 1, H]."""
        return mx.take(self._table, codes + self._starts, axis=0).sum(axis=1, keepdims=True)

    def _framer(self, nucleus: bool) -> Callable[..., tuple[list[mx.array], list[mx.array]]]:
        def frame(
            control: Controls,
            hidden: list[mx.array],
            code0: list[mx.array],
            keys: list[mx.array],
            indices: list[mx.array],
        ) -> tuple[list[mx.array], list[mx.array]]:
            control, batch, groups = Controls(*control), len(hidden), self._groups - 1
            gumbel = noise(joined(keys), joined(indices), 1, groups, self._vocabulary, control)
            start, codes = joined(hidden)[:, 0], [joined(code0)]
            start = start if self._narrow is None else self._narrow(start, batch)
            caches = [mx.zeros((2 * batch, *self._shape), self._dtype) for _ in self._layers]
            for i, drawn in enumerate(mx.split(gumbel, groups)):
                x, first = mx.take(self._inputs[i], codes[-1][:, 0], axis=0), i + 1
                if i == 0:
                    x, first = mx.stack([start, x], axis=1).reshape(2 * batch, -1), 0
                logits = self._heads[i](self._pass(x, caches, first), batch).astype(mx.float32)
                codes.append(kernels.choose(logits, drawn[0], control, nucleus))
            chosen = mx.concatenate(codes, axis=1)
            return apart(chosen, batch), apart(self.embed(chosen), batch)

        return frame

    def _launcher(self, stack: kernels.Stack, cos: mx.array, sin: mx.array) -> Callable[..., Any]:
        mx.eval(cos, sin, self._table, self._rows)

        def launching(
            ticket: mx.array,
            control: Controls,
            hidden: list[mx.array],
            code0: list[mx.array],
            keys: list[mx.array],
            indices: list[mx.array],
        ) -> tuple[tuple[list[mx.array], list[mx.array]], mx.array]:
            batch = len(hidden)
            # MLX's product goes request by request: what it makes of a row depends on the others.
            starts = [row[:, 0] if self._narrow is None else self._narrow(row[:, 0]) for row in hidden]
            start, first, key, frame = launch.together(list(zip(starts, code0, keys, indices, strict=True)))
            asked = start, first, key, frame, Controls(*control), ticket
            chosen, embedded, ticket = stack.frame(self._table, self._rows, (cos, sin), *asked)
            return (apart(chosen, batch), apart(embedded, batch)), ticket

        launched = launch.one_by_one(compiled(launching))

        def filled_up(control: Controls, *parts: list[mx.array]) -> Any:
            return launched(control, *map(launch.filled_up, parts))

        return filled_up

    def _pass(self, x: mx.array, caches: list[mx.array], first: int) -> mx.array:
        """rows x [B * T, hidden] at positions first…, put into the caches → normed last rows [B, hidden]."""
        batch = caches[0].shape[0] // 2
        steps = x.shape[0] // batch
        end = first + steps
        for i, layer in enumerate(self._layers):
            turn = self._turns[first][i]
            if steps > 1 and batch > 1:
                turn = Turn(*(mx.tile(part, (batch, 1, 1, 1)) for part in turn))
            queries, keys_values = layer.project(x, turn, batch)
            caches[i][:, :, first:end] = keys_values
            x = layer.attend(x, queries, caches[i][:, :, :end], CAUSAL if steps > 1 else None)
        return rms_norm(x[steps - 1 :: steps] if steps > 1 else x, self._norm, self._eps, batch)
