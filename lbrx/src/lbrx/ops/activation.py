"""Activation functions, and the gated pairs that feed-forward layers use."""

from __future__ import annotations

import math

import numpy as np

from lbrx.dtype import Dtype
from lbrx.ops import rules
from lbrx.ops.error_function import erf
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

_UNARY = (OpFamily.ACTIVATION, rules.elementwise(1), rules.floating)
_GATED = (OpFamily.ACTIVATION, rules.elementwise(2), rules.floating)


@op(OpFamily.ACTIVATION, rules.elementwise(1), rules.same)
def relu(x: NumpyArray) -> NumpyArray:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, x.dtype.type(0)))


@op(*_UNARY)
def leaky_relu(x: NumpyArray, *, slope: float = 0.01) -> NumpyArray:
    """x where it is positive, slope * x elsewhere."""
    return np.where(x > 0, x, x * slope)


@op(*_UNARY)
def sigmoid(x: NumpyArray) -> NumpyArray:
    """1 / (1 + exp(-x)), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


@op(*_UNARY)
def tanh(x: NumpyArray) -> NumpyArray:
    """The hyperbolic tangent."""
    return np.asarray(np.tanh(x))


def _gelu_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    kind = attributes["approximate"]
    if kind not in ("none", "tanh"):
        raise ValueError(f"approximate={kind!r} is no kind of gelu: give 'none' or 'tanh'")
    return rules.floating(promoted, attributes)


@op(OpFamily.ACTIVATION, rules.elementwise(1), _gelu_dtype)
def gelu(x: NumpyArray, *, approximate: str = "none") -> NumpyArray:
    """x * Phi(x) with the normal distribution's Phi; approximate="tanh" for the usual formula."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    return np.asarray(0.5 * x * (1 + erf(x.astype(np.float64) / math.sqrt(2))))


@op(*_UNARY)
def silu(x: NumpyArray) -> NumpyArray:
    """x * sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


@op(*_UNARY)
def softplus(x: NumpyArray) -> NumpyArray:
    """log(1 + exp(x)), without overflow."""
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


@op(*_GATED)
def swiglu(gate: NumpyArray, x: NumpyArray) -> NumpyArray:
    """silu(gate) * x."""
    return np.asarray(silu(gate) * x)


@op(OpFamily.ACTIVATION, rules.elementwise(2), _gelu_dtype)
def geglu(gate: NumpyArray, x: NumpyArray, *, approximate: str = "none") -> NumpyArray:
    """gelu(gate) * x."""
    return np.asarray(gelu(gate, approximate=approximate) * x)
