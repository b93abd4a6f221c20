"""Elementwise operations of one and of two tensors, casts, and select."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    define,
    dtype_named,
    like,
    require_broadcast,
    widen,
)
from softcoreml.operations.registry import Function

# W. J. Cody, "Rational Chebyshev approximations for the error function" (1969): numerator and
# denominator, highest power first, of erfc(x)*exp(x^2) from 0.46875 to 4; down to 0 its error is
# below 5e-12. Near 0, where 1 - erfc(x) has few digits left, erf(x)/x is its Taylor series.
_ERF_SERIES = (-1 / 42, 1 / 10, -1 / 3, 1.0)
_SERIES_LIMIT = 0.05
_ERFC_MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)


_BLOCK = 8192
"""Elements that are computed at a time, so that float64 temporaries stay in the cache."""


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's scheme without temporaries."""
    value = np.full_like(x, coefficients[0])
    for one in coefficients[1:]:
        value *= x
        value += one
    return value


def _error_function(x: Array) -> Array:
    size = np.minimum(np.abs(x.astype(np.float64)), 4.0)
    square = size * size
    large = np.exp(-square)
    large *= _polynomial(_ERFC_MIDDLE[0], size)
    large /= _polynomial(_ERFC_MIDDLE[1], size)
    np.subtract(1.0, large, out=large)
    small = 2 / math.sqrt(math.pi) * size * _polynomial(_ERF_SERIES, square)
    return np.copysign(np.where(size < _SERIES_LIMIT, small, large), x)


def error_function(x: Array) -> Array:
    """The Gauss error function in x's type, within one unit in the last place of float32.

    Beyond 4 it is 1 less 1.5e-8, which is 1 in float32.
    """
    x = np.asarray(x)
    flat, result = x.reshape(-1), np.empty(x.size, dtype=x.dtype)
    for first in range(0, x.size, _BLOCK):
        result[first : first + _BLOCK] = _error_function(flat[first : first + _BLOCK])
    return result.reshape(x.shape)


def _unary(function: Function) -> Function:
    def one(x: Array) -> Array:
        return like(np.asarray(function(widen(x))), x)

    return one


_UNARY: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": error_function,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "round": np.round,  # half to even
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}
for _name, _function in _UNARY.items():
    define(_name)(_unary(_function))


def _binary(function: Function) -> Function:
    def two(x: Array, y: Array) -> Array:
        require_broadcast("x and y", x, y)
        return np.asarray(function(widen(x), widen(y)))

    return two


def _true_divide(x: Array, y: Array) -> Array:
    return like(np.true_divide(x, y), x)


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":  # NumPy refuses negative integer exponents
        return np.power(x.astype(np.float64), y).astype(x.dtype)
    return np.asarray(np.power(x, y))


_BINARY: dict[str, Function] = {
    "add": np.add,
    "equal": np.equal,
    "floor_div": np.floor_divide,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.mod,  # the sign of the divisor
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "pow": _power,
    "real_div": _true_divide,
    "sub": np.subtract,
}
for _name, _function in _BINARY.items():
    define(_name)(_binary(_function))


@define("logical_not")
def logical_not(x: Array) -> Array:
    return np.logical_not(x)


@define("clip")
def clip(x: Array, alpha: Any, beta: Any) -> Array:
    """Values between alpha and beta; where alpha is above beta the result is beta."""
    x = widen(x)
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(alpha)), x.dtype.type(beta)))


@define("clip", "ios17")
def clip_ordered(x: Array, alpha: Any, beta: Any) -> Array:
    """The same; from iOS 17 on alpha must be below beta."""
    if not alpha < beta:
        raise ModelError(f"alpha {alpha} must be below beta {beta}")
    x = widen(x)
    return np.clip(x, x.dtype.type(alpha), x.dtype.type(beta))


@define("threshold")
def threshold(x: Array, alpha: Any) -> Array:
    x = widen(x)
    return np.asarray(np.maximum(x, x.dtype.type(alpha)))


def _epsilon(x: Array, epsilon: Any, default: float) -> Any:
    """The constant added to x. A default is of x's type: in float16, 1e-12 and 1e-45 are zero."""
    given = np.asarray(x).dtype.type(default) if epsilon is None else epsilon
    return np.float32(given)


@define("inverse")
def inverse(x: Array, epsilon: Any = None) -> Array:
    return np.asarray(np.reciprocal(widen(x) + _epsilon(x, epsilon, 1e-4)))


@define("log")
def log(x: Array, epsilon: Any = None) -> Array:
    return np.asarray(np.log(widen(x) + _epsilon(x, epsilon, 1e-45)))


@define("rsqrt")
def rsqrt(x: Array, epsilon: Any = None) -> Array:
    return np.asarray(np.reciprocal(np.sqrt(widen(x) + _epsilon(x, epsilon, 1e-12))))


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """Values in another type. Floats to integers truncate, saturate and map NaN to 0.

    Conversions to float16 are returned in float32, for the interpreter to round.
    """
    x = np.asarray(x)
    if dtype == np.float16:
        return widen(x) if x.dtype.kind == "f" else x.astype(np.float32)
    if dtype.kind in "iu" and x.dtype.kind == "f":
        limits = np.iinfo(dtype)
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        return np.asarray(np.clip(wide, limits.min, limits.max), dtype=dtype)
    return x.astype(dtype)


@define("cast")
def cast(x: Array, dtype: str) -> Array:
    return convert(x, dtype_named(dtype, "dtype"))


@define("select")
def select(cond: Array, a: Array, b: Array) -> Array:
    """a where cond holds, elsewhere b; all three broadcast."""
    require_broadcast("cond, a and b", cond, a, b)
    return np.where(np.asarray(cond, dtype=np.bool_), a, b)
