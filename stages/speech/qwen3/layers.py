"""The transformer layer that the talker and the code predictor share: RMS norms, grouped-query attention with
per-head q/k norms and rotary positions, SwiGLU. Weights are merged: one product for q, k, v, one for gate, up.

Shapes: rows x [T, hidden]; the heads of one row are q, then k, then v: H = heads + 2 * kv_heads, each D wide.
Cache: [2, kv_heads, S, D], keys and values of one layer.
"""

from typing import NamedTuple

import mlx.core as mx

from .config import PredictorConfig, TalkerConfig
from .ops import Causal, attention, rms_norm, silu
from .weights import Linear, Stacked, Weights, absorb, merge


class Turn(NamedTuple):
    """Head norm weights, attention scale and rotation at T positions in one: row * along + flipped row * across."""

    along: mx.array
    """float32 [T, H, 2, D / 2]"""
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

    def project(self, x: mx.array, turn: Turn) -> tuple[mx.array, mx.array]:
        """x [T, hidden] → q [1, heads, T, D], scaled, and keys with values [2, kv_heads, T, D]."""
        steps, heads, kv_heads, dim = x.shape[0], self.heads, self.kv_heads, self.head_dim
        shape = (steps, heads + 2 * kv_heads, 2, dim // 2)
        rows = self.qkv(rms_norm(x, self.input_norm, self.eps)).reshape(-1, dim)
        normed = rms_norm(rows, None, self.eps).reshape(shape)
        turned = normed * turn.along + normed[:, :, ::-1] * turn.across
        rows = mx.where(self.is_value, rows.reshape(shape), turned.astype(x.dtype))
        queries, keys_values = mx.split(rows, [heads], axis=1)
        if steps == 1:
            return queries.reshape(1, heads, 1, dim), keys_values.reshape(2, kv_heads, 1, dim)
        queries = queries.reshape(1, steps, heads, dim).swapaxes(1, 2)
        return queries, keys_values.reshape(steps, 2, kv_heads, dim).transpose(1, 2, 0, 3)

    def finish(
        self, x: mx.array, queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | Causal | None
    ) -> mx.array:
        """Attention over keys and values [1, kv_heads, S, D] (bias as in `ops.attention`), MLP, both residuals."""
        x = self.out.add(x, attention(queries, keys, values, bias))
        wide = self.gate_up(rms_norm(x, self.output_norm, self.eps))
        gate, up = mx.split(wide, 2, axis=1)
        return self.down.add(x, silu(gate) * up)
