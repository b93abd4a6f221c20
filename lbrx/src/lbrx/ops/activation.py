"""Activation functions, and the gated pairs that feed-forward layers use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.dtype import Dtype
from lbrx.ops import rules
from lbrx.ops.error_function import erf
from lbrx.ops.table import Attributes, Family, op

Array = NDArray[Any]

_UNARY = (Family.ACTIVATION, rules.elementwise(1), rules.floating)
_GATED = (Family.ACTIVATION, rules.elementwise(2), rules.floating)


@op(Family.ACTIVATION, rules.elementwise(1), rules.same)
def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, x.dtype.type(0)))


@op(*_UNARY)
def leaky_relu(x: Array, *, slope: float = 0.01) -> Array:
    """x where it is positive, slope * x elsewhere."""
    return np.where(x > 0, x, x * slope)


@op(*_UNARY)
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


@op(*_UNARY)
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.asarray(np.tanh(x))


def _gelu_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    kind = attributes["approximate"]
    if kind not in ("none", "tanh"):
        raise ValueError(f"approximate={kind!r} is no kind of gelu: give 'none' or 'tanh'")
    return rules.floating(promoted, attributes)


@op(Family.ACTIVATION, rules.elementwise(1), _gelu_dtype)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x * Phi(x) with the normal distribution's Phi; approximate="tanh" for the usual formula."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    return np.asarray(0.5 * x * (1 + erf(x.astype(np.float64) / math.sqrt(2))))


@op(*_UNARY)
def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


@op(*_UNARY)
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


@op(*_GATED)
def swiglu(gate: Array, x: Array) -> Array:
    """silu(gate) * x."""
    return np.asarray(silu(gate) * x)


@op(Family.ACTIVATION, rules.elementwise(2), _gelu_dtype)
def geglu(gate: Array, x: Array, *, approximate: str = "none") -> Array:
    """gelu(gate) * x."""
    return np.asarray(gelu(gate, approximate=approximate) * x)
