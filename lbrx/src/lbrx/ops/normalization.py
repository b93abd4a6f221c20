"""Softmax and its logarithm over an axis; layer and RMS norm over the last one.

The norms that add a residual first normalise the sum as it is before it is rounded (to half, say),
and return it rounded: one kernel reads both operands once and keeps the sum in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.ops import rules
from lbrx.ops.table import Family, op

Array = NDArray[Any]


def _centred(x: Array, axis: int) -> Array:
    """Less the largest, so that exp cannot overflow."""
    return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))


@op(Family.SOFTMAX, rules.along_axis, rules.floating)
def softmax(x: Array, *, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x))."""
    powers = np.exp(_centred(x, axis))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


@op(Family.SOFTMAX, rules.along_axis, rules.floating)
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """log(softmax(x))."""
    centred = _centred(x, axis)
    return np.asarray(centred - np.log(np.sum(np.exp(centred), axis=axis, keepdims=True)))


def _mean(x: Array) -> Array:
    return np.asarray(np.sum(x, axis=-1, keepdims=True, dtype=np.float64) / x.shape[-1])


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


@op(Family.NORM, rules.normalized, rules.floating)
def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """(x - mean) / sqrt(var + eps) over the last axis, times weight, plus bias."""
    if x.size == 0:
        return x
    centred = x - _mean(x)
    return _scaled(centred / np.sqrt(_mean(centred * centred) + eps), weight, bias)


@op(Family.NORM, rules.normalized, rules.floating)
def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-5) -> Array:
    """x / sqrt(mean(x^2) + eps) over the last axis, times weight."""
    if x.size == 0:
        return x
    wide = x.astype(np.float64)
    return _scaled(wide / np.sqrt(_mean(wide * wide) + eps), weight, None)


@op(Family.NORM, rules.normalized_sum, rules.floating_pair)
def add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, *, eps: float = 1e-5
) -> tuple[Array, Array]:
    """rms_norm(x + residual), and x + residual; the norm is that of the sum before rounding."""
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


@op(Family.NORM, rules.normalized_sum, rules.floating_pair)
def add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Array, Array]:
    """layer_norm(x + residual), and x + residual; the norm is that of the sum before rounding."""
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total
