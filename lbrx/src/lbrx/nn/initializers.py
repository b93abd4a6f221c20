"""Initializers: functions that return a tensor of new values in the shape and dtype of another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.errors import ShapeError
from lbrx.tensors import random
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import eye, full, tensor

Initializer = Callable[[Tensor], Tensor]


def constant(value: float, dtype: DtypeLike = dt.float32) -> Initializer:
    """Every element is one value."""
    return lambda x: full(x.shape, float(value), dtype, x.device)


def normal(mean: float = 0.0, std: float = 1.0, dtype: DtypeLike = dt.float32) -> Initializer:
    """Normally distributed."""
    return lambda x: random.normal(x.shape, mean, std, dtype, x.device)


def uniform(low: float = 0.0, high: float = 1.0, dtype: DtypeLike = dt.float32) -> Initializer:
    """Uniformly distributed in [low, high)."""
    return lambda x: random.uniform(x.shape, low, high, dtype, x.device)


def identity(dtype: DtypeLike = dt.float32) -> Initializer:
    """The identity matrix; a shape that is not square raises ShapeError."""

    def make(x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[0] != x.shape[1]:
            raise ShapeError(f"shape {x.shape} is not that of a square matrix")
        return eye(x.shape[0], dtype=dtype, device=x.device)

    return make


def _fans(x: Tensor) -> tuple[int, int]:
    """The numbers of inputs and outputs of a weight (outputs, ..., inputs)."""
    if x.ndim < 2:
        raise ShapeError(f"shape {x.shape} has no inputs and outputs: give two axes or more")
    window = math.prod(x.shape[1:-1])
    return x.shape[-1] * window, x.shape[0] * window


def glorot_normal(dtype: DtypeLike = dt.float32) -> Callable[..., Tensor]:
    """Normally distributed with the deviation gain * sqrt(2 / (inputs + outputs))."""

    def make(x: Tensor, gain: float = 1.0) -> Tensor:
        return normal(0.0, gain * math.sqrt(2 / sum(_fans(x))), dtype)(x)

    return make


def glorot_uniform(dtype: DtypeLike = dt.float32) -> Callable[..., Tensor]:
    """Uniformly distributed up to gain * sqrt(6 / (inputs + outputs)) in both directions."""

    def make(x: Tensor, gain: float = 1.0) -> Tensor:
        limit = gain * math.sqrt(6 / sum(_fans(x)))
        return uniform(-limit, limit, dtype)(x)

    return make


Mode = Literal["fan_in", "fan_out"]


def he_normal(dtype: DtypeLike = dt.float32) -> Callable[..., Tensor]:
    """Normally distributed with the deviation gain / sqrt(inputs), or outputs by `mode`."""

    def make(x: Tensor, mode: Mode = "fan_in", gain: float = 1.0) -> Tensor:
        return normal(0.0, gain / math.sqrt(_fan(x, mode)), dtype)(x)

    return make


def he_uniform(dtype: DtypeLike = dt.float32) -> Callable[..., Tensor]:
    """Uniformly distributed up to gain * sqrt(3 / inputs), or outputs by `mode`."""

    def make(x: Tensor, mode: Mode = "fan_in", gain: float = 1.0) -> Tensor:
        limit = gain * math.sqrt(3 / _fan(x, mode))
        return uniform(-limit, limit, dtype)(x)

    return make


def _fan(x: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode={mode!r} is not known: give 'fan_in' or 'fan_out'")
    return _fans(x)[mode == "fan_out"]


def sparse(
    sparsity: float, mean: float = 0.0, std: float = 1.0, dtype: DtypeLike = dt.float32
) -> Initializer:
    """Normally distributed, with a share `sparsity` of each column zero."""

    def make(x: Tensor) -> Tensor:
        if x.ndim != 2:
            raise ShapeError(f"shape {x.shape} is not that of a matrix")
        order: Any = random.uniform(x.shape, device=x.device).argsort(axis=0).argsort(axis=0)
        kept = order >= math.ceil(sparsity * x.shape[0])
        made: Tensor = normal(mean, std, dtype)(x) * kept.astype(dtype)
        return made

    return make


def orthogonal(gain: float = 1.0, dtype: DtypeLike = dt.float32) -> Initializer:
    """An orthogonal matrix times a gain, by the QR decomposition of a random one, on the host."""

    def make(x: Tensor) -> Tensor:
        import numpy as np

        if x.ndim != 2:
            raise ShapeError(f"shape {x.shape} is not that of a matrix")
        rows, columns = x.shape
        size = (max(rows, columns), min(rows, columns))
        drawn = random.normal(size, device="cpu").numpy().astype(np.float64)
        q, r = np.linalg.qr(drawn)
        q = q * np.sign(np.diagonal(r))
        made = gain * (q if rows >= columns else q.T)
        return tensor(made, dtype=dtype, device=x.device)

    return make
