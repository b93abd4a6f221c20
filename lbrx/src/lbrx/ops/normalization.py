"""Softmax and its logarithm over an axis; layer and RMS norm over the last one.

The norms that add a residual first normalise the sum as it is before it is rounded (to half, say),
and return it rounded: one kernel reads both operands once and keeps the sum in float32.
"""

from __future__ import annotations

import numpy as np

from lbrx.ops import rules
from lbrx.ops.table import NumpyArray, OpFamily, op


def _centred(x: NumpyArray, axis: int) -> NumpyArray:
    """Less the largest, so that exp cannot overflow."""
    return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))


@op(OpFamily.SOFTMAX, rules.along_axis, rules.floating)
def softmax(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """exp(x) / sum(exp(x))."""
    powers = np.exp(_centred(x, axis))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


@op(OpFamily.SOFTMAX, rules.along_axis, rules.floating)
def log_softmax(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """log(softmax(x))."""
    centred = _centred(x, axis)
    return np.asarray(centred - np.log(np.sum(np.exp(centred), axis=axis, keepdims=True)))


def _mean(x: NumpyArray) -> NumpyArray:
    return np.asarray(np.sum(x, axis=-1, keepdims=True, dtype=np.float64) / x.shape[-1])


def _scaled(x: NumpyArray, weight: NumpyArray | None, bias: NumpyArray | None) -> NumpyArray:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


@op(OpFamily.NORM, rules.normalized, rules.floating)
def layer_norm(
    x: NumpyArray,
    weight: NumpyArray | None = None,
    bias: NumpyArray | None = None,
    *,
    eps: float = 1e-5,
) -> NumpyArray:
    """(x - mean) / sqrt(var + eps) over the last axis, times weight, plus bias."""
    if x.size == 0:
        return x
    centred = x - _mean(x)
    return _scaled(centred / np.sqrt(_mean(centred * centred) + eps), weight, bias)


@op(OpFamily.NORM, rules.normalized, rules.floating)
def rms_norm(x: NumpyArray, weight: NumpyArray | None = None, *, eps: float = 1e-5) -> NumpyArray:
    """x / sqrt(mean(x^2) + eps) over the last axis, times weight."""
    if x.size == 0:
        return x
    wide = x.astype(np.float64)
    return _scaled(wide / np.sqrt(_mean(wide * wide) + eps), weight, None)


@op(OpFamily.NORM, rules.normalized_sum, rules.floating_pair)
def add_rms_norm(
    x: NumpyArray, residual: NumpyArray, weight: NumpyArray | None = None, *, eps: float = 1e-5
) -> tuple[NumpyArray, NumpyArray]:
    """rms_norm(x + residual), and x + residual; the norm is that of the sum before rounding."""
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


@op(OpFamily.NORM, rules.normalized_sum, rules.floating_pair)
def add_layer_norm(
    x: NumpyArray,
    residual: NumpyArray,
    weight: NumpyArray | None = None,
    bias: NumpyArray | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[NumpyArray, NumpyArray]:
    """layer_norm(x + residual), and x + residual; the norm is that of the sum before rounding."""
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total
