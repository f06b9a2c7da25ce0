"""The code predictor: code groups 1–15 of one frame, one after the other, as one compiled function.

Pass 0 takes two rows, the talker's hidden state and the embedding of code 0; pass i takes the embedding of
code i. Each pass runs all layers at fixed positions and samples one code: [1, 16] codes in, 15 passes, no host.
"""

from collections.abc import Callable

import mlx.core as mx

from ...device import compiled
from .config import ModelConfig
from .layers import Layer, Turn
from .ops import bias, rms_norm, rotary
from .sampling import Controls, Sampling, choose, controls, noise
from .weights import Linear, Weights


class CodePredictor:
    def __init__(self, config: ModelConfig, weights: Weights, first_embedding: mx.array) -> None:
        """`first_embedding` [talker vocabulary, H] is the talker's own table, for code 0."""
        talker, own = config.talker_config, config.talker_config.code_predictor_config
        name = "talker.code_predictor"
        self._groups = own.num_code_groups
        self._vocabulary = own.vocab_size
        self._embeddings = [first_embedding] + [
            weights.table(f"{name}.model.codec_embedding.{i}", own.vocab_size, talker.hidden_size)
            for i in range(self._groups - 1)
        ]
        self._heads: list[Linear] = [
            weights.linear(f"{name}.lm_head.{i}", own.hidden_size, own.vocab_size)
            for i in range(self._groups - 1)
        ]
        self._narrow: Linear | None = None
        if own.hidden_size != talker.hidden_size:
            self._narrow = weights.linear(
                f"{name}.small_to_mtp_projection", talker.hidden_size, own.hidden_size, bias=True
            )
        self._layers = [
            Layer.build(weights, f"{name}.model.layers.{i}", own) for i in range(own.num_hidden_layers)
        ]
        self._norm = weights.array(f"{name}.model.norm.weight", own.hidden_size)
        self._eps = own.rms_norm_eps
        cos, sin = rotary(mx.arange(self._groups), own.head_dim, own.rope_theta)
        self._turns = [layer.turn(cos, sin) for layer in self._layers]
        self._empty = mx.zeros((2, own.num_key_value_heads, self._groups, own.head_dim), weights.dtype)
        self._causal = bias(mx.arange(2)[None] <= mx.arange(2)[:, None], weights.dtype)
        mx.eval(self._turns, self._empty, self._causal)
        self._frame = {flag: compiled(self._framer(flag)) for flag in (False, True)}

    def frame(
        self, hidden: mx.array, code0: mx.array, sampling: Sampling, key: mx.array, frame: mx.array
    ) -> tuple[mx.array, mx.array]:
        """hidden [1, 1, H], code0 int32 [1, 1], the request's key and int32 frame index [1]
        → (codes int32 [1, 16], sum of their embeddings [1, 1, H])."""
        control = controls(sampling, self._vocabulary)
        return self._frame[sampling.nucleus](hidden, code0, control, key, frame)

    def embed(self, codes: mx.array) -> mx.array:
        """The sum of the embeddings of int codes [1, 16]: [1, 1, H]."""
        rows = [mx.take(table, codes[:, i], axis=0) for i, table in enumerate(self._embeddings)]
        return mx.stack(rows).sum(axis=0)[:, None]

    def _framer(self, nucleus: bool) -> Callable[..., tuple[mx.array, mx.array]]:
        def frame(
            hidden: mx.array, code0: mx.array, control: Controls, key: mx.array, index: mx.array
        ) -> tuple[mx.array, mx.array]:
            control = Controls(*control)
            gumbel = noise(key, index, 1, self._groups - 1, self._vocabulary)
            embedded = mx.take(self._embeddings[0], code0, axis=0)
            codes, total = [code0], embedded
            rows = mx.concatenate([hidden, embedded], axis=1)
            caches = [self._empty[:] for _ in self._layers]
            for i in range(self._groups - 1):
                last = self._pass(rows, caches, 0 if i == 0 else i + 1)
                logits = self._heads[i](last)[0].astype(mx.float32)
                code = choose(logits, gumbel[i], control, nucleus)[:, None]
                rows = mx.take(self._embeddings[i + 1], code, axis=0)
                codes.append(code)
                total = total + rows
            return mx.concatenate(codes, axis=1), total

        return frame

    def _pass(self, rows: mx.array, caches: list[mx.array], first: int) -> mx.array:
        """rows [1, T, H] at positions first…, put into the caches → normed last row [1, 1, hidden]."""
        x = rows if self._narrow is None else self._narrow(rows)
        end = first + x.shape[1]
        for i, layer in enumerate(self._layers):
            turn = Turn(self._turns[i].along[first:end], self._turns[i].across[first:end])
            queries, keys_values = layer.project(x, turn)
            caches[i][:, :, first:end] = keys_values
            x = layer.finish(x, queries, caches[i][:, :, :end], self._causal if end - first > 1 else None)
        return rms_norm(x[:, -1:], self._norm, self._eps)
