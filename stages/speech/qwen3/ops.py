"""The few operations whose best form depends on the device, each in one place.

On a GPU these are MLX's fused kernels. MLX's CPU backend has none: it expands them into 13 to 40 small operations
at 2 µs and more each, and its exp and erf are scalar. There the same formulas are written with few operations.
"""

from functools import cache

import mlx.core as mx

from ...device import on_cpu


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x²) + eps) * weight over the last axis of x [1, T, C]."""
    if not on_cpu() or x.dtype != mx.float32:
        return mx.fast.rms_norm(x, weight, eps)
    width = x.shape[2]
    if x.shape[1] == 1:
        power = mx.addmm(_constant(eps), x, x.reshape(1, width, 1), alpha=1 / width)
    else:
        power = mx.mean(mx.square(x), axis=-1, keepdims=True) + _constant(eps)
    scaled = x * mx.rsqrt(power)
    return scaled if weight is None else scaled * weight


def head_norm(x: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x²) + eps) over the last two axes of x [T, H, 2, D / 2]."""
    if not on_cpu() or x.dtype != mx.float32:
        return mx.fast.rms_norm(x.reshape(*x.shape[:2], -1), None, eps).reshape(x.shape)
    return x * mx.rsqrt(mx.mean(mx.square(x), axis=(2, 3), keepdims=True) + _constant(eps))


def layer_norm(x: mx.array, weight: mx.array, bias: mx.array, eps: float) -> mx.array:
    if not on_cpu() or x.dtype != mx.float32:
        return mx.fast.layer_norm(x, weight, bias, eps)
    centred = x - mx.mean(x, axis=-1, keepdims=True)
    scale = mx.rsqrt(mx.mean(mx.square(centred), axis=-1, keepdims=True) + _constant(eps))
    return centred * scale * weight + bias


def attention(queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | None) -> mx.array:
    """softmax(q kᵀ + bias) v; the scale is in q already.

    q [1, H, T, D]; k, v [1, H / G, S, D], each serving G neighbouring query heads; bias [T, S] or None.
    → [1, H, T, D]
    """
    if not on_cpu():
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=bias)
    _, heads, steps, dim = queries.shape
    groups = heads // keys.shape[1]
    # The G heads of one key head become rows of one product.
    rows = queries.reshape(1, keys.shape[1], groups * steps, dim)
    scores = rows @ keys.swapaxes(-1, -2)
    if bias is not None and steps > 1:
        scores = (scores.reshape(1, -1, groups, steps, keys.shape[2]) + bias).reshape(scores.shape)
    elif bias is not None:
        scores = scores + bias
    return (mx.softmax(scores, axis=-1) @ values).reshape(1, heads, steps, dim)


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


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def gelu(x: mx.array) -> mx.array:
    """x Φ(x), within 5e-7; MLX's erf on the CPU takes 5 times as long as this many products.

    x Φ(x) = max(x, 0) - |x| Φ(-|x|), and 1 / Φ(-z) is the 16th power of a polynomial in z (after Abramowitz and
    Stegun 7.1.28; coefficients fitted to the least largest error of z Φ(-z)).
    """
    if not on_cpu() or x.dtype != mx.float32:
        return x * (1 + mx.erf(x * 0.5**0.5)) * 0.5
    size = mx.abs(x)
    root = size * _GELU[0] + _GELU[1]
    for coefficient in _GELU[2:]:
        root = root * size + coefficient
    for _ in range(4):
        root = mx.square(root)
    return mx.maximum(x, 0) - size / root


_GELU = (6.98801703e-06, 3.9649187e-05, 7.5322323e-05, 0.00337051053, 0.0221137168, 0.052063978, 1.04427484)


@cache
def _constant(value: float) -> mx.array:
    return mx.array([[[value]]])
