"""Activation functions, elementwise but for softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, axis_of, by_channel, define, require_rank, widen
from softcoreml.operations.elementwise import error_function
from softcoreml.operations.registry import Function


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)); an overflow of the exponential gives the limit, 0."""
    return np.asarray(np.reciprocal(1 + np.exp(-x)))


def hard_logistic(x: Array, alpha: Any = 0.2, beta: Any = 0.5) -> Array:
    """alpha * x + beta between 0 and 1."""
    return np.asarray(np.clip(np.float32(alpha) * x + np.float32(beta), 0, 1))


def rectified(x: Array) -> Array:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def _soft_plus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + rectified(x)


def softmax_of(x: Array, axis: int) -> Array:
    """exp(x) over its sum along an axis, with the maximum subtracted first."""
    powers = np.asarray(x - np.max(x, axis=axis, keepdims=True))
    np.exp(powers, out=powers)
    powers /= np.sum(powers, axis=axis, keepdims=True)
    return powers


_PLAIN: dict[str, Function] = {
    "relu": rectified,
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "softplus": _soft_plus,
    "softsign": lambda x: x / (1 + np.abs(x)),
}


def _plain(function: Function) -> Function:
    def one(x: Array) -> Array:
        return np.asarray(function(widen(x)))

    return one


for _name, _function in _PLAIN.items():
    define(_name)(_plain(_function))


@define("clamped_relu")
def clamped_relu(x: Array, alpha: Any, beta: Any) -> Array:
    x = widen(x)
    return np.minimum(np.where(x >= 0, x, np.float32(alpha) * x), np.float32(beta))


@define("elu")
def elu(x: Array, alpha: Any) -> Array:
    x = widen(x)
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


@define("gelu")
def gelu(x: Array, mode: str = "EXACT") -> Array:
    x = widen(x)
    if mode == "EXACT":
        exact = error_function(x * np.float32(math.sqrt(0.5)))
        return np.asarray(np.float32(0.5) * x * (1 + exact))
    if mode == "TANH_APPROXIMATION":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
        return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))
    if mode == "SIGMOID_APPROXIMATION":
        return x * logistic(np.float32(1.702) * x)
    raise ModelError(
        f"mode {mode!r} is unknown: give EXACT, TANH_APPROXIMATION or SIGMOID_APPROXIMATION"
    )


@define("leaky_relu")
def leaky_relu(x: Array, alpha: Any) -> Array:
    x = widen(x)
    return np.where(x >= 0, x, np.float32(alpha) * x)


@define("linear_activation")
def linear_activation(x: Array, alpha: Any, beta: Any) -> Array:
    return np.float32(alpha) * widen(x) + np.float32(beta)


@define("prelu")
def prelu(x: Array, alpha: Array) -> Array:
    x = widen(x)
    require_rank(x, "x", 3, 4, 5)
    return np.where(x > 0, x, by_channel(alpha, x, "alpha") * x)


@define("scaled_tanh")
def scaled_tanh(x: Array, alpha: Any, beta: Any) -> Array:
    return np.float32(alpha) * np.tanh(widen(x) * np.float32(beta))


@define("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: Any, beta: Any) -> Array:
    return hard_logistic(widen(x), alpha, beta)


@define("softplus_parametric")
def softplus_parametric(x: Array, alpha: Array, beta: Array) -> Array:
    x = widen(x)
    require_rank(x, "x", 3, 4, 5)
    return by_channel(alpha, x, "alpha") * _soft_plus(x * by_channel(beta, x, "beta"))


@define("softmax")
def softmax(x: Array, axis: Any = -1) -> Array:
    x = widen(x)
    return softmax_of(x, axis_of(axis, x.ndim))


@define("thresholded_relu")
def thresholded_relu(x: Array, alpha: Any) -> Array:
    x = widen(x)
    return np.where(x >= np.float32(alpha), x, np.float32(0))
