"""Normalizations. Means and variances are taken in float32, whatever the type of x."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, axes_of, by_channel, define, require_rank, widen
from softcoreml.operations.reduction import mean_of


def _scaled(y: Array, x: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        y = y * by_channel(gamma, x, "gamma")
    if beta is not None:
        y = y + by_channel(beta, x, "beta")
    return y


def _standardized(x: Array, axes: tuple[int, ...], epsilon: Any) -> Array:
    """x less its mean along axes, over the root of its variance plus epsilon."""
    centred = x - mean_of(x, axes, keepdims=True)
    variance = mean_of(np.square(centred), axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.float32(epsilon)))


@define("batch_norm")
def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Any = 1e-5,
) -> Array:
    """x (batch, channels, spatial...) by given statistics of each channel."""
    x = widen(x)
    require_rank(x, "x", 2, 3, 4, 5)
    spread = np.sqrt(by_channel(variance, x, "variance") + np.float32(epsilon))
    return _scaled((x - by_channel(mean, x, "mean")) / spread, x, gamma, beta)


@define("instance_norm")
def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Any = 1e-5
) -> Array:
    """Each channel of each image by its own mean and variance."""
    x = widen(x)
    require_rank(x, "x", 3, 4, 5)
    return _scaled(_standardized(x, tuple(range(2, x.ndim)), epsilon), x, gamma, beta)


@define("layer_norm")
def layer_norm(
    x: Array,
    axes: Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Any = 1e-5,
) -> Array:
    """Normalizes along axes (all by default); gamma and beta have the sizes of those axes."""
    x = widen(x)
    where = sorted(axes_of(axes, x.ndim))
    y = _standardized(x, tuple(where), epsilon)
    sizes = tuple(x.shape[one] for one in where)
    for name, values in (("gamma", gamma), ("beta", beta)):
        if values is not None and np.shape(values) != sizes:
            raise ModelError(f"{name} {list(np.shape(values))} needs the shape {list(sizes)}")
    shape = [size if one in where else 1 for one, size in enumerate(x.shape)]
    if gamma is not None:
        y = y * widen(gamma).reshape(shape)
    return y if beta is None else y + widen(beta).reshape(shape)


@define("l2_norm")
def l2_norm(x: Array, epsilon: Any = 1e-6) -> Array:
    """x over the root of the sum of squares of its last three axes, plus epsilon."""
    x = widen(x)
    if x.ndim < 3:
        raise ModelError(f"x must have rank 3 or more, not shape {list(x.shape)}")
    total = np.sum(np.square(x), axis=(-3, -2, -1), keepdims=True)
    return np.asarray(x / np.sqrt(total + np.float32(epsilon)))


@define("local_response_norm")
def local_response_norm(
    x: Array, size: Any, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0
) -> Array:
    """x over (k + alpha / size * the sum of squares of the `size` channels around it) ** beta.

    A window of even size has one channel more in front, as in PyTorch.
    """
    x = widen(x)
    require_rank(x, "x", 3, 4, 5)
    width, channels = int(size), x.shape[1]
    if width < 1:
        raise ModelError(f"size {width} must be at least 1")
    running = np.zeros((len(x), channels + 1, *x.shape[2:]), dtype=np.float64)
    np.cumsum(np.square(x), axis=1, dtype=np.float64, out=running[:, 1:])
    place = np.arange(channels)
    first = np.maximum(place - width // 2, 0)
    last = np.minimum(place + (width - 1) // 2 + 1, channels)
    total = (running[:, last] - running[:, first]).astype(np.float32)
    return np.asarray(x / (np.float32(k) + np.float32(alpha) / width * total) ** np.float32(beta))
