"""NumPy, which is a peer for float32 and, in float64, the reference of correctness."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lbrx.bench.peers import Operation, Peer

Array = np.ndarray[Any, Any]


def load(module: Any, threads: int, gpu: bool) -> Peer:
    return Peer(
        name="numpy",
        version=module.__version__,
        dtypes=frozenset({"float32"}),
        array=lambda x, dtype: x.astype(dtype, copy=False),
        finish=lambda result: result,
        operations=OPERATIONS,
    )


def chain(x: Array) -> Array:
    return x * 0.5 / (1.0 + np.exp(-x)) + x * x * 0.1 - 1.0


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def rms_norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)  # type: ignore[no-any-return]


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)  # type: ignore[no-any-return]


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Consecutive query heads share a key head."""
    heads = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, heads, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    if causal:
        length = q.shape[-2]
        scores = np.where(np.tri(length, k.shape[-2], k.shape[-2] - length) > 0, scores, -np.inf)
    return softmax(scores) @ v  # type: ignore[no-any-return]


def rope(x: Array, positions: Array) -> Array:
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def conv2d(x: Array, weight: Array) -> Array:
    """Without padding, as one product over the windows."""
    windows = sliding_window_view(x, weight.shape[2:], (2, 3))
    made = np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(made.transpose(0, 3, 1, 2))


def max_pool2d(x: Array, size: int) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // size, size, w // size, size).max((3, 5))  # type: ignore[no-any-return]


def scatter_add(x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    np.add.at(made, (np.arange(len(x))[:, None], indices), updates)
    return made


def overwrite(cache: Array, rows: Array, positions: Array) -> Array:
    made = cache.copy()
    made[positions] = rows
    return made


def topk(x: Array, k: int) -> Array:
    return -np.sort(np.partition(-x, k - 1, -1)[..., :k], -1)


def recurrence(values: Array, keys: Array, queries: Array, decay: Array) -> Array:
    """What queries read of states that decay and take up a value for a key with each token."""
    state = np.zeros((*values.shape[1:], keys.shape[-1]), values.dtype)
    results = np.empty_like(values)
    for token, (value, key, query) in enumerate(zip(values, keys, queries, strict=True)):
        state = state * decay[token, :, None, None] + value[..., None] * key
        results[token] = state @ query
    return results


def network(x: Array, weights: Array) -> Array:
    for w in weights:
        x = gelu(x @ w) + x
    return x


OPERATIONS: dict[str, Operation] = {
    "add": lambda x, y: x + y,
    "attention": attention,
    "cast": lambda x, to: x.astype(to),
    "chain": chain,
    "conv2d": conv2d,
    "cumsum": lambda x: np.cumsum(x, -1),
    "gather": lambda x, indices: np.take_along_axis(x, indices, -1),
    "gelu": gelu,
    "layer_norm": layer_norm,
    "linear": lambda x, w: x @ w.T,
    "matmul": lambda x, y: x @ y,
    "max_pool2d": max_pool2d,
    "network": network,
    "overwrite": overwrite,
    "random": lambda count: np.random.default_rng(0).standard_normal(count, np.float32),
    "recurrence": recurrence,
    "rms_norm": rms_norm,
    "rope": rope,
    "scatter": scatter_add,
    "softmax": softmax,
    "sort": lambda x: np.sort(x, -1),
    "sum": lambda x: x.sum(),
    "sum_columns": lambda x: x.sum(0),
    "sum_rows": lambda x: x.sum(-1),
    "take": lambda x, indices: x[indices],
    "topk": topk,
    "transpose": lambda x: np.ascontiguousarray(x.T),
}
