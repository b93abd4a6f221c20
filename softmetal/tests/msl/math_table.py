"""metal_math's functions with float64 oracles, the arguments to try and MSL's error bounds.

Bounds are in units of the last place of a float: those of the specification's table without fast
maths, and of its table with fast maths. Where the latter gives a formula ("implemented as") or an
absolute error instead, ours is a function of the arguments and the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Bound = float | Callable[..., Any]  # of (exact result, arguments...), in ulp


@dataclass(frozen=True)
class Function:
    name: str
    oracle: Callable[..., Any]
    precise: float
    fast: Bound | None = None  # as precise when None
    low: float = -np.inf  # where sampling concentrates, besides all bit patterns
    high: float = np.inf
    arity: int = 1
    fast_range: tuple[float, float] = (-np.inf, np.inf)  # of the first argument

    def bound(self, fast: bool, exact: F64, *arguments: F64) -> Any:
        bound = self.fast if fast and self.fast is not None else self.precise
        return bound(exact, *arguments) if callable(bound) else bound


def ulp(exact: F64) -> F64:
    """The distance of neighbouring floats at `exact`."""
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))
    spacing: F64 = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    return spacing


def errors(got: F32, exact: F64) -> F64:
    """Errors in ulp; what overflows counts as 2^128, NaN for a number or the reverse as infinite."""
    finite = np.clip(got.astype(np.float64), -(2.0**128), 2.0**128)
    limit = np.clip(exact, -(2.0**128), 2.0**128)
    with np.errstate(invalid="ignore"):
        error = np.abs(finite - limit) / ulp(limit)
    nan, want_nan = np.isnan(got), np.isnan(exact)
    return np.where(nan | want_nan, np.where(nan & want_nan, 0.0, np.inf), error)


def _half_turns(x: F64) -> tuple[F64, Any]:
    """x = r + n / 2, exactly, with |r| <= 1/4."""
    y = x - 2.0 * np.rint(x / 2.0)
    n = np.rint(2.0 * y)
    return y - n / 2.0, np.mod(np.where(np.isfinite(n), n, 0), 4).astype(int)


def sinpi(x: F64) -> Any:
    r, n = _half_turns(x)
    s, c = np.sin(np.pi * r), np.cos(np.pi * r)
    return np.choose(n, [s, c, -s, -c])


def cospi(x: F64) -> Any:
    r, n = _half_turns(x)
    s, c = np.sin(np.pi * r), np.cos(np.pi * r)
    return np.choose(n, [c, -s, -c, s])


def tanpi(x: F64) -> F64:
    r, n = _half_turns(x)
    t = np.tan(np.pi * r)
    return np.where(n % 2 == 1, np.where(t == 0, np.where(n == 1, np.inf, -np.inf), -1.0 / t), t)


def powr(x: F64, y: F64) -> F64:
    undefined = ((x == 0) & (y == 0)) | (np.isinf(x) & (y == 0)) | ((x == 1) & np.isinf(y))
    unknown = np.isnan(x) | np.isnan(y) | (x < 0)
    return np.where(undefined | unknown, np.nan, np.power(np.abs(x), y))


def round_away(x: F64) -> F64:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def absolute(error: float) -> Callable[..., F64]:
    """An absolute error, where that is more than the 4 ulp of the precise functions."""
    return lambda exact, *_: np.maximum(error / ulp(exact), 4.0)


def exponential(exact: F64, x: F64) -> F64:
    return 3.0 + np.floor(np.abs(2.0 * x))


def logarithm(error: float, elsewhere: float) -> Callable[..., F64]:
    def bound(exact: F64, x: F64) -> F64:
        near_one = (x >= 0.5) & (x <= 2.0)
        return np.where(near_one, np.maximum(error / ulp(exact), elsewhere), elsewhere)

    return bound


def power(exact: F64, x: F64, y: F64) -> F64:
    """exp2(y * log2(x)): two roundings of the exponent, and exp2's own bound."""
    with np.errstate(all="ignore"):
        exponent = np.abs(y * np.log2(np.abs(x)))
    return np.nan_to_num(8.0 + 5.0 * exponent, nan=8.0)


BIG = 2.0**20  # where the fast trigonometric functions end
PI = float(np.pi)
FUNCTIONS = [
    Function("acos", np.arccos, 5, low=-1, high=1),
    Function("acosh", np.arccosh, 5, low=1, high=100),
    Function("asin", np.arcsin, 5, low=-1, high=1),
    Function("asinh", np.arcsinh, 5, low=-10, high=10),
    Function("atan", np.arctan, 5, low=-3, high=3),
    Function("atanh", np.arctanh, 5, low=-1, high=1),
    Function("ceil", np.ceil, 0, low=-9, high=9),
    Function("cos", np.cos, 4, absolute(2.0**-20), -10, 10, fast_range=(-BIG, BIG)),
    Function("cosh", np.cosh, 4, 5, -90, 90),
    Function("cospi", cospi, 4, low=-2, high=2),
    Function("exp", np.exp, 4, exponential, -110, 90),
    Function("exp10", lambda x: np.power(10.0, x), 4, exponential, -46, 39),
    Function("exp2", np.exp2, 4, exponential, -151, 129),
    Function("fabs", np.abs, 0),
    Function("abs", np.abs, 0),
    Function("floor", np.floor, 0, low=-9, high=9),
    Function("log", np.log, 4, logarithm(2.0**-21, 3), 0, 4),
    Function("log10", np.log10, 4, logarithm(2.0**-21, 3), 0, 4),
    Function("log2", np.log2, 4, logarithm(2.0**-22, 3), 0, 4),
    Function("rint", np.rint, 0, low=-9, high=9),
    Function("round", round_away, 0, low=-9, high=9),
    Function("rsqrt", lambda x: 1.0 / np.sqrt(x), 2, low=0, high=9),
    Function("sin", np.sin, 4, absolute(2.0**-20), -10, 10, fast_range=(-BIG, BIG)),
    Function("sinh", np.sinh, 4, 5, -90, 90),
    Function("sinpi", sinpi, 4, low=-2, high=2),
    Function("sqrt", np.sqrt, 0.5, 4, 0, 9),
    Function("tan", np.tan, 6, 6, -10, 10, fast_range=(-BIG, BIG)),
    Function("tanh", np.tanh, 5, 8, -10, 10),
    Function("tanpi", tanpi, 6, low=-2, high=2),
    Function("trunc", np.trunc, 0, low=-9, high=9),
    Function("atan2", np.arctan2, 6, low=-3, high=3, arity=2),
    Function("copysign", np.copysign, 0, arity=2),
    Function("divide", np.divide, 0.5, 2.5, arity=2),
    Function("fdim", lambda x, y: np.where(x <= y, 0.0, x - y), 0.5, arity=2),
    Function("fmax", np.fmax, 0, arity=2),
    Function("fmin", np.fmin, 0, arity=2),
    Function("max", np.fmax, 0, arity=2),
    Function("min", np.fmin, 0, arity=2),
    Function("pow", np.power, 16, power, -4, 4, arity=2),
    Function("powr", powr, 16, power, 0, 4, arity=2),
]
