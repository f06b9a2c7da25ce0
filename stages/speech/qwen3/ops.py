"""The few operations whose best form depends on the device, each in one place.

On a GPU these are MLX's fused kernels; on CUDA attention has one only without a mask. The CPU backend has none: it
expands them into 13 to 40 small operations at 2 µs and more each, and its exp and erf are scalar. There the same
formulas are written with few operations.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, Literal

import mlx.core as mx

from ...device import backend, on_cpu

Causal = Literal["causal"]
CAUSAL: Final = "causal"
"""Each row sees itself and those before it."""


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, batch: int = 1) -> mx.array:
    """x / sqrt(mean(x²) + eps) * weight for rows x [N, C].

    :param batch: requests that the rows are of. None of them changes a bit of another.
    """
    if not on_cpu():
        return mx.fast.rms_norm(x, weight, eps)
    scaled = x * mx.rsqrt(_power(x, eps, batch))
    return scaled if weight is None else scaled * weight


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias for rows x [N, C]."""
    if not on_cpu():
        return mx.fast.layer_norm(x, weight, bias, eps)
    centred = x - x @ _averager(x.shape[1], x.dtype)
    return centred * mx.rsqrt(_power(centred, eps)) * weight + bias


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | Causal | None
) -> mx.array:
    """softmax(q kᵀ + bias) v; the scale is in q already.

    q [B, H, T, D]; k, v [B, H / G, S, D], each serving G neighbouring query heads; bias [T, S], `CAUSAL` (T = S) or
    None. → rows [B * T, H * D]
    """
    batch, heads, steps, dim = queries.shape
    kv_heads, groups = keys.shape[1], heads // keys.shape[1]
    if backend() == "metal" or (backend() == "cuda" and not isinstance(bias, mx.array)):
        heard = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=bias)
        return heard.swapaxes(1, 2).reshape(batch * steps, heads * dim)
    # The G heads of one key head become rows of one product.
    rows = queries if groups == 1 else queries.reshape(batch, kv_heads, groups * steps, dim)
    scores = rows @ keys.swapaxes(-1, -2)
    if bias == CAUSAL:
        bias = _triangle(steps, scores.dtype)
    if bias is not None:
        tiled = scores if steps == 1 else scores.reshape(batch, kv_heads, groups, steps, -1)
        scores = (tiled + bias).reshape(scores.shape)
    heard = mx.softmax(scores, axis=-1, precise=True) @ values
    if steps > 1:
        heard = heard.reshape(batch, heads, steps, dim).swapaxes(1, 2)
    return heard.reshape(batch * steps, heads * dim)


def _triangle(steps: int, dtype: mx.Dtype) -> mx.array:
    row = mx.arange(steps)
    return bias(row[None] <= row[:, None], dtype)


def bias(visible: mx.array, dtype: mx.Dtype) -> mx.array:
    """A bool mask as what is added to attention scores: 0 where visible, -inf elsewhere."""
    return mx.where(visible, mx.array(0, dtype), mx.array(-mx.inf, dtype))


def rotary(positions: mx.array, dim: int, theta: float) -> tuple[mx.array, mx.array]:
    """cos [T, 1, 1, dim / 2] and signed sin [T, 1, 2, dim / 2], float32, of int positions [T].

    With x [T, heads, 2, dim / 2], the halves of each head on an axis of their own, the rotation by halves is
    x * cos + x[:, :, ::-1] * sin.
    """
    frequencies = mx.power(theta, -mx.arange(0, dim, 2, dtype=mx.float32) / dim)
    angles = (positions.astype(mx.float32)[:, None] * frequencies)[:, None, None]
    sine = mx.sin(angles)
    return mx.cos(angles), mx.concatenate([-sine, sine], axis=2)


def joined(parts: Sequence[mx.array]) -> mx.array:
    """One behind the other along the first axis; a single one costs nothing."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=0)


def apart(x: mx.array, count: int) -> list[mx.array]:
    """The opposite: `count` equal parts of the first axis."""
    return [x] if count == 1 else list(mx.split(x, count))


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def gelu(x: mx.array) -> mx.array:
    """x Φ(x), within 5e-7; MLX's erf on the CPU takes 5 times as long as this many products.

    x Φ(x) = max(x, 0) - |x| Φ(-|x|), and 1 / Φ(-z) is the 16th power of a polynomial in z (after Abramowitz and
    Stegun 7.1.28; coefficients fitted to the least largest error of z Φ(-z)).
    """
    if not on_cpu():
        return x * (1 + mx.erf(x * 0.5**0.5)) * 0.5
    size = mx.abs(x)
    root = size * _GELU[0] + _GELU[1]
    for coefficient in _GELU[2:]:
        root = root * size + coefficient
    for _ in range(4):
        root = mx.square(root)
    return mx.maximum(x, 0) - size / root


_GELU = (6.98801703e-06, 3.9649187e-05, 7.5322323e-05, 0.00337051053, 0.0221137168, 0.052063978, 1.04427484)


def _power(x: mx.array, eps: float, batch: int = 1) -> mx.array:
    """mean(x²) + eps of each row of x [N, C], as a product of each request's own: [N, 1]."""
    rows, width = x.shape
    square, average = mx.square(x), _averager(width, x.dtype)
    if batch > 1:  # OpenBLAS sums many rows in another order than few
        square, average = square.reshape(batch, -1, width), mx.broadcast_to(average, (batch, width, 1))
    return mx.addmm(_column(rows // batch, eps, x.dtype), square, average).reshape(rows, 1)


def _averager(width: int, dtype: mx.Dtype) -> mx.array:
    return _column(width, 1 / width, dtype)


@cache
def _column(rows: int, value: float, dtype: mx.Dtype) -> mx.array:
    column = mx.full((rows, 1), value, dtype)
    mx.eval(column)
    return column
