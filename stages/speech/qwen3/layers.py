"""The transformer layer that the talker and the code predictor share: RMS norms, grouped-query attention with
per-head q/k norms and rotary positions, SwiGLU. Weights are merged: one product for q, k, v, one for gate, up.

Shapes: rows x [B * T, hidden], T of each of B requests; the heads of one row are q, then k, then v: H = heads +
2 * kv_heads, each D wide. Cache: [2 * B, kv_heads, S, D], the keys of every request, then the values.
"""

from typing import NamedTuple

import mlx.core as mx

from .config import PredictorConfig, TalkerConfig
from .ops import Causal, attention, rms_norm, silu
from .weights import Linear, Stacked, Weights, absorb, merge


class Turn(NamedTuple):
    """Head norm weights, attention scale and rotation of each row in one: row * along + flipped row * across."""

    along: mx.array
    """float32 [B * T, H, 2, D / 2]"""
    across: mx.array


class Layer(NamedTuple):
    qkv: Linear | Stacked
    out: Linear
    gate_up: Linear | Stacked
    down: Linear
    input_norm: mx.array | None
    """None where it is part of `qkv`; likewise `output_norm` of `gate_up`."""
    output_norm: mx.array | None
    head_norm: mx.array
    """float32 [1, H, 2, D / 2]: q norm times the attention scale, k norm, and ones for v."""
    flipped_norm: mx.array
    """`head_norm` with the halves of each head exchanged."""
    is_value: mx.array
    """bool, likewise: heads that are neither normed nor rotated."""
    heads: int
    kv_heads: int
    head_dim: int
    eps: float

    @classmethod
    def build(cls, weights: Weights, name: str, config: TalkerConfig | PredictorConfig) -> "Layer":
        width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        query_norm = weights.array(f"{attention}.q_norm.weight", dim, dtype=mx.float32) * dim**-0.5
        key_norm = weights.array(f"{attention}.k_norm.weight", dim, dtype=mx.float32)
        rows = [query_norm] * heads + [key_norm] * kv_heads + [mx.ones_like(key_norm)] * kv_heads
        qkv = merge(
            weights.linear(f"{attention}.q_proj", width, heads * dim),
            weights.linear(f"{attention}.k_proj", width, kv_heads * dim),
            weights.linear(f"{attention}.v_proj", width, kv_heads * dim),
        )
        gate_up = merge(
            weights.linear(f"{mlp}.gate_proj", width, inner), weights.linear(f"{mlp}.up_proj", width, inner)
        )
        qkv, input_norm = absorb(qkv, weights.array(f"{name}.input_layernorm.weight", width))
        gate_up, output_norm = absorb(
            gate_up, weights.array(f"{name}.post_attention_layernorm.weight", width)
        )
        norm = mx.stack(rows).reshape(1, len(rows), 2, dim // 2)
        return cls(
            qkv,
            weights.linear(f"{attention}.o_proj", heads * dim, width),
            gate_up,
            weights.linear(f"{mlp}.down_proj", inner, width),
            input_norm,
            output_norm,
            norm,
            norm[:, :, ::-1],
            mx.repeat(mx.arange(len(rows)) >= heads + kv_heads, dim).reshape(1, len(rows), 2, dim // 2),
            heads,
            kv_heads,
            dim,
            config.rms_norm_eps,
        )

    def turn(self, cos: mx.array, sin: mx.array) -> Turn:
        """This layer's part of `ops.rotary`."""
        return Turn(self.head_norm * cos, self.flipped_norm * sin)

    def project(self, x: mx.array, turn: Turn, batch: int = 1) -> tuple[mx.array, mx.array]:
        """x [B * T, hidden] → q [B, heads, T, D], scaled, and keys with values [2 * B, kv_heads, T, D]."""
        rows, heads, kv_heads, dim = x.shape[0], self.heads, self.kv_heads, self.head_dim
        steps, shape = rows // batch, (rows, heads + 2 * kv_heads, 2, dim // 2)
        projected = self.qkv(rms_norm(x, self.input_norm, self.eps, batch), batch).reshape(-1, dim)
        normed = rms_norm(projected, None, self.eps, batch).reshape(shape)
        turned = normed * turn.along + normed[:, :, ::-1] * turn.across
        projected = mx.where(self.is_value, projected.reshape(shape), turned.astype(x.dtype))
        queries, keys_values = mx.split(projected, [heads], axis=1)
        if rows == 1:
            return queries.reshape(1, heads, 1, dim), keys_values.reshape(2, kv_heads, 1, dim)
        queries = queries.reshape(batch, steps, heads, dim).swapaxes(1, 2)
        keys_values = keys_values.reshape(batch, steps, 2, kv_heads, dim).transpose(2, 0, 3, 1, 4)
        return queries, keys_values.reshape(2 * batch, kv_heads, steps, dim)

    def apart(self, queries: mx.array, keys_values: mx.array) -> list[tuple[mx.array, mx.array]]:
        """What `project` gave, for each request alone: q [1, heads, T, D], keys with values [2, kv_heads, T, D]."""
        batch = queries.shape[0]
        if batch == 1:
            return [(queries, keys_values)]
        own = mx.split(keys_values.reshape(2, batch, *keys_values.shape[1:]), batch, axis=1)
        return list(zip(mx.split(queries, batch), [part[:, 0] for part in own], strict=True))

    def attend(
        self, x: mx.array, queries: mx.array, cache: mx.array, bias: mx.array | Causal | None
    ) -> mx.array:
        """Attention over the cache (bias as in `ops.attention`), MLP, both residuals: rows x to rows."""
        keys, values = mx.split(cache, 2)
        return self.finish(x, attention(queries, keys, values, bias), queries.shape[0])

    def finish(self, x: mx.array, heard: mx.array, batch: int = 1) -> mx.array:
        """What attention heard, rows [B * T, heads * D], put into x, and the MLP."""
        x = self.out.add(x, heard, batch)
        wide = self.gate_up(rms_norm(x, self.output_norm, self.eps, batch), batch)
        gate, up = mx.split(wide, 2, axis=1)
        return self.down.add(x, silu(gate) * up, batch)
