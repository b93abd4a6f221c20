"""Activation functions, and the gated products of feed-forward layers (SwiGLU, GEGLU)."""

from __future__ import annotations

import math

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.ops import rules
from lbrx.ops.error_function import erf
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

_UNARY = (OpFamily.ACTIVATION, rules.elementwise(1), rules.floating)
_GATED = (OpFamily.ACTIVATION, rules.elementwise(2), rules.floating)


@op(OpFamily.ACTIVATION, rules.elementwise(1), rules.same)
def relu(x: NumpyArray) -> NumpyArray:
    """max(x, 0), elementwise. The dtype stays, also of integers; NaN stays NaN.

    >>> lbrx.tensor([-1.5, 2.0]).relu().tolist()
    [0.0, 2.0]
    """
    return np.asarray(np.maximum(x, x.dtype.type(0)))


@op(*_UNARY)
def leaky_relu(x: NumpyArray, *, slope: float = 0.01) -> NumpyArray:
    """x where x > 0 and slope * x elsewhere. Integers become float32."""
    return np.where(x > 0, x, x * slope)


@op(*_UNARY)
def sigmoid(x: NumpyArray) -> NumpyArray:
    """1 / (1 + exp(-x)), computed without overflow for large |x|. Integers become float32."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


@op(*_UNARY)
def tanh(x: NumpyArray) -> NumpyArray:
    """The hyperbolic tangent of each element. Integers become float32."""
    return np.asarray(np.tanh(x))


def _gelu_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    kind = attributes["approximate"]
    if kind not in ("none", "tanh"):
        raise ValueError(f"approximate={kind!r} is not a variant of gelu: give 'none' or 'tanh'")
    return rules.floating(promoted, attributes)


@op(OpFamily.ACTIVATION, rules.elementwise(1), _gelu_dtype)
def gelu(x: NumpyArray, *, approximate: str = "none") -> NumpyArray:
    """x * Phi(x), where Phi is the cumulative normal distribution. Integers become float32.

    approximate="none" is exact, x / 2 * (1 + erf(x / sqrt(2))); approximate="tanh" computes
    x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))). Other values raise ValueError.
    """
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    return np.asarray(0.5 * x * (1 + erf(x.astype(np.float64) / math.sqrt(2))))


@op(*_UNARY)
def silu(x: NumpyArray) -> NumpyArray:
    """x * sigmoid(x), also called swish. Integers become float32."""
    return np.asarray(x * sigmoid(x))


@op(*_UNARY)
def softplus(x: NumpyArray) -> NumpyArray:
    """log(1 + exp(x)), computed without overflow for large x. Integers become float32."""
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


@op(*_GATED)
def swiglu(gate: NumpyArray, x: NumpyArray) -> NumpyArray:
    """silu(gate) * x. The operands broadcast; two integers become float32."""
    return np.asarray(silu(gate) * x)


@op(OpFamily.ACTIVATION, rules.elementwise(2), _gelu_dtype)
def geglu(gate: NumpyArray, x: NumpyArray, *, approximate: str = "none") -> NumpyArray:
    """gelu(gate, approximate) * x. The operands broadcast; two integers become float32."""
    return np.asarray(gelu(gate, approximate=approximate) * x)
