"""The transformer layer that the talker and the code predictor share: RMS norms, grouped-query attention with
per-head q/k norms and rotary positions, SwiGLU. Weights are merged: one product for q, k, v, one for gate, up.
"""

from typing import NamedTuple

import mlx.core as mx

from .config import PredictorConfig, TalkerConfig
from .weights import Linear, Stacked, Weights, merge


class Layer(NamedTuple):
    qkv: Linear | Stacked
    """hidden → (heads + 2 * kv_heads) * head_dim"""
    out: Linear
    gate_up: Linear | Stacked
    down: Linear
    input_norm: mx.array
    output_norm: mx.array
    query_norm: mx.array
    key_norm: mx.array
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float

    @classmethod
    def build(cls, weights: Weights, name: str, config: TalkerConfig | PredictorConfig) -> "Layer":
        width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return cls(
            merge(
                weights.linear(f"{attention}.q_proj", width, heads * dim),
                weights.linear(f"{attention}.k_proj", width, kv_heads * dim),
                weights.linear(f"{attention}.v_proj", width, kv_heads * dim),
            ),
            weights.linear(f"{attention}.o_proj", heads * dim, width),
            merge(
                weights.linear(f"{mlp}.gate_proj", width, inner),
                weights.linear(f"{mlp}.up_proj", width, inner),
            ),
            weights.linear(f"{mlp}.down_proj", inner, width),
            weights.array(f"{name}.input_layernorm.weight", width),
            weights.array(f"{name}.post_attention_layernorm.weight", width),
            weights.array(f"{attention}.q_norm.weight", dim),
            weights.array(f"{attention}.k_norm.weight", dim),
            heads,
            kv_heads,
            dim,
            config.rms_norm_eps,
            config.rope_theta,
        )

    def project(self, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """x [1, T, hidden] at positions offset… → q [1, heads, T, D], k and v [1, kv_heads, T, D]."""
        rows = self.qkv(mx.fast.rms_norm(x, self.input_norm, self.eps))
        rows = rows.reshape(*x.shape[:2], self.heads + 2 * self.kv_heads, self.head_dim)
        queries, keys, values = mx.split(rows, [self.heads, self.heads + self.kv_heads], axis=2)
        queries = mx.fast.rms_norm(queries, self.query_norm, self.eps).transpose(0, 2, 1, 3)
        keys = mx.fast.rms_norm(keys, self.key_norm, self.eps).transpose(0, 2, 1, 3)
        return self._rotate(queries, offset), self._rotate(keys, offset), values.transpose(0, 2, 1, 3)

    def finish(self, x: mx.array, attended: mx.array) -> mx.array:
        """Residual, then the MLP: x [1, T, hidden], attended [1, heads, T, D] → [1, T, hidden]."""
        joined = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], self.heads * self.head_dim)
        x = x + self.out(joined)
        gate, up = mx.split(self.gate_up(mx.fast.rms_norm(x, self.output_norm, self.eps)), 2, axis=-1)
        return x + self.down(gate * mx.sigmoid(gate) * up)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None
    ) -> mx.array:
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.head_dim**-0.5, mask=mask
        )

    def _rotate(self, x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(x, self.head_dim, traditional=False, base=self.theta, scale=1.0, offset=offset)
