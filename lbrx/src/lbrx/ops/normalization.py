"""Softmax and its logarithm over an axis; layer norm and RMS norm over the last axis.

`add_rms_norm` and `add_layer_norm` normalise the sum before it is rounded to the dtype, and also
return the rounded sum: one kernel reads both operands once and keeps the sum in float32.
"""

from __future__ import annotations

import numpy as np

from lbrx.ops import rules
from lbrx.ops.table import NumpyArray, OpFamily, op


def _centred(x: NumpyArray, axis: int) -> NumpyArray:
    """x minus its maximum, so that exp does not overflow."""
    return np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))


@op(OpFamily.SOFTMAX, rules.along_axis, rules.floating)
def softmax(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """exp(x) / sum(exp(x)) along an axis, computed without overflow.

    The shape stays; integers become float32. A row with NaN, or of -inf only, becomes NaN.

    >>> lbrx.zeros(4).softmax().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    powers = np.exp(_centred(x, axis))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


@op(OpFamily.SOFTMAX, rules.along_axis, rules.floating)
def log_softmax(x: NumpyArray, *, axis: int = -1) -> NumpyArray:
    """log(softmax(x)) along an axis, more accurate than the two operations in turn.

    The shape stays; integers become float32. A row with NaN, or of -inf only, becomes NaN.
    """
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
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last axis.

    weight and bias, where given, have the shape of the last axis; another shape, and a scalar x,
    raise ShapeError. The result has the promoted dtype; integers become float32.
    """
    if x.size == 0:
        return x
    centred = x - _mean(x)
    return _scaled(centred / np.sqrt(_mean(centred * centred) + eps), weight, bias)


@op(OpFamily.NORM, rules.normalized, rules.floating)
def rms_norm(x: NumpyArray, weight: NumpyArray | None = None, *, eps: float = 1e-5) -> NumpyArray:
    """x / sqrt(mean(x**2) + eps) * weight, over the last axis.

    weight, where given, has the shape of the last axis; another shape, and a scalar x, raise
    ShapeError. The result has the promoted dtype; integers become float32.
    """
    if x.size == 0:
        return x
    wide = x.astype(np.float64)
    return _scaled(wide / np.sqrt(_mean(wide * wide) + eps), weight, None)


@op(OpFamily.NORM, rules.normalized_sum, rules.floating_pair)
def add_rms_norm(
    x: NumpyArray, residual: NumpyArray, weight: NumpyArray | None = None, *, eps: float = 1e-5
) -> tuple[NumpyArray, NumpyArray]:
    """rms_norm(x + residual, weight) and x + residual, both in the promoted floating dtype.

    The norm is computed from the sum before it is rounded to the dtype. x and residual must have
    the same shape; otherwise ShapeError is raised.
    """
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
    """layer_norm(x + residual, weight, bias) and x + residual, both in the promoted floating dtype.

    The norm is computed from the sum before it is rounded to the dtype. x and residual must have
    the same shape; otherwise ShapeError is raised.
    """
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total
