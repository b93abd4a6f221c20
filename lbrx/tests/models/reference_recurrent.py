"""Recurrent layers in float64 numpy, one token after the other, independent of lbrx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Linear = Callable[[Array, str], Array]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def convolved(x: Array, weight: Array, bias: Array | float) -> Array:
    """x is (tokens, channels), weight (channels, 1, taps): only earlier tokens are seen."""
    taps = weight.shape[-1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return np.array([(padded[t : t + taps].T * weight[:, 0]).sum(-1) for t in range(len(x))]) + bias


def short_convolution(x: Array, at: str, w: Mapping[str, Array], linear: Linear) -> Array:
    """LFM 2's."""
    b, c, inner = np.split(linear(x, at + "in_proj"), 3, -1)
    return linear(c * convolved(b * inner, w[at + "conv.weight"], 0), at + "out_proj")


def mamba2(
    x: Array, at: str, w: Mapping[str, Array], linear: Linear, c: Mapping[str, Any]
) -> Array:
    """`c` has heads, size, groups, state, eps, and whether the norm comes first."""
    heads, size, groups, state = c["heads"], c["size"], c["groups"], c["state"]
    inner, shared = heads * size, groups * state
    factors = np.repeat(c["factors"], [inner, inner, shared, shared, heads])
    mixed = linear(x, at + "in_proj") * factors
    gate, rest, steps = np.split(mixed, [inner, 2 * inner + 2 * shared], -1)
    rest = silu(convolved(rest, w[at + "conv1d.weight"], w.get(at + "conv1d.bias", 0)))
    values, keys, queries = np.split(rest, [inner, inner + shared], -1)
    steps = softplus(steps + w[at + "dt_bias"])
    memory, result = np.zeros((heads, size, state)), np.zeros((len(x), heads, size))
    for t in range(len(x)):
        for h in range(heads):
            group = slice(h // (heads // groups) * state, (h // (heads // groups) + 1) * state)
            value = values[t, h * size : (h + 1) * size]
            memory[h] *= np.exp(-np.exp(w[at + "A_log"][h]) * steps[t, h])
            memory[h] += steps[t, h] * np.outer(value, keys[t, group])
            result[t, h] = memory[h] @ queries[t, group] + w[at + "D"][h] * value
    flat = result.reshape(len(x), inner)
    if at + "norm.weight" not in w:
        return linear(flat * silu(gate), at + "out_proj")
    flat = flat if c["norm_first"] else flat * silu(gate)
    parts = flat.reshape(len(x), c["norm_groups"], -1)
    parts = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + c["eps"])
    flat = parts.reshape(flat.shape) * w[at + "norm.weight"]
    return linear(flat * silu(gate) if c["norm_first"] else flat, at + "out_proj")


def delta_net(
    x: Array, at: str, w: Mapping[str, Array], linear: Linear, c: Mapping[str, Any]
) -> Array:
    """Qwen3-Next's: each head of keys has its queries, keys, values and gates side by side."""
    key_heads, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    key_size, size = c["linear_key_head_dim"], c["linear_value_head_dim"]
    share = heads // key_heads
    mixed = linear(x, at + "in_proj_qkvz").reshape(len(x), key_heads, -1)
    q, k, v, z = np.split(mixed, np.cumsum([key_size, key_size, share * size]), -1)
    b, a = np.split(linear(x, at + "in_proj_ba").reshape(len(x), key_heads, -1), 2, -1)
    b, a = b.reshape(len(x), heads), a.reshape(len(x), heads)
    joined = np.concatenate([part.reshape(len(x), -1) for part in (q, k, v)], -1)
    joined = silu(convolved(joined, w[at + "conv1d.weight"], 0))
    q, k, v = np.split(joined, np.cumsum([key_heads * key_size] * 2), -1)
    q, k = (part.reshape(len(x), key_heads, key_size) for part in (q, k))
    q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
    v, z = v.reshape(len(x), heads, size), z.reshape(len(x), heads, size)
    memory, result = np.zeros((heads, key_size, size)), np.zeros((len(x), heads, size))
    for t in range(len(x)):
        for h in range(heads):
            key, query = k[t, h // share], q[t, h // share] / np.sqrt(key_size)
            memory[h] *= np.exp(
                -np.exp(w[at + "A_log"][h]) * softplus(a[t, h] + w[at + "dt_bias"][h])
            )
            learned = (v[t, h] - key @ memory[h]) / (1 + np.exp(-b[t, h]))
            memory[h] += np.outer(key, learned)
            result[t, h] = query @ memory[h]
    normed = result / np.sqrt((result**2).mean(-1, keepdims=True) + c["rms_norm_eps"])
    return linear((normed * w[at + "norm.weight"] * silu(z)).reshape(len(x), -1), at + "out_proj")
