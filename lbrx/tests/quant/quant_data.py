"""Arrays of several distributions, and the error after quantization."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lbrx import quant

Maker = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float32]]


def _gaussian(rng, shape):
    return rng.standard_normal(shape)


def _weights(rng, shape):
    """Rows of very different sizes, as trained weights have."""
    return rng.standard_normal(shape) * np.exp(rng.normal(-4, 1.5, (*shape[:-1], 1)))


def _outliers(rng, shape):
    values = rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.003, values * 40, values)


def _laplace(rng, shape):
    return rng.laplace(size=shape)


def _positive(rng, shape):
    return rng.random(shape) + 0.25


def _negative(rng, shape):
    return -rng.random(shape) - 3


def _sparse(rng, shape):
    """Many groups of nothing but zeros, and some with a single value."""
    return np.where(rng.random(shape) < 0.02, rng.standard_normal(shape), 0)


DATA: dict[str, Maker] = {
    "gaussian": _gaussian,
    "weights": _weights,
    "outliers": _outliers,
    "laplace": _laplace,
    "positive": _positive,
    "negative": _negative,
    "sparse": _sparse,
    "constant": lambda rng, shape: np.full(shape, -0.37),
    "zeros": lambda rng, shape: np.zeros(shape),
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-30,
}

ENCODABLE = [name for name, scheme in quant.SCHEMES.items() if scheme.encode]


def make(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return DATA[kind](rng, shape).astype(np.float32)


def round_trip(values: NDArray, scheme: str, importance: NDArray | None = None) -> NDArray:
    return quant.dequantize(*quant.quantize(values, scheme, importance))


def rmse(values: NDArray, back: NDArray, weights: NDArray | float = 1.0) -> float:
    """The root of the mean squared difference, in double precision."""
    difference = values.astype(np.float64) - back.astype(np.float64)
    return float(np.sqrt(np.mean(weights * difference**2)))
