"""Elementwise operations: unary, binary, comparison, ternary and cast."""

from __future__ import annotations

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.ops import rules
from lbrx.ops.error_function import erf
from lbrx.ops.table import DtypeRule, NumpyArray, OpFamily, Reference, op, register


def rounding(function: np.ufunc) -> Reference:
    """A rounding function that returns integers unchanged; numpy converts some to floating."""
    return lambda x: function(x) if x.dtype.kind == "f" else x


def power(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """x**y; a negative power of an integer, which numpy rejects, is rounded towards zero."""
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, y))
    sign = np.where(y % 2 == 0, 1, x)
    reciprocal = np.where(np.abs(x) == 1, sign, 0)
    return np.where(y < 0, reciprocal, np.power(x, np.maximum(y, 0))).astype(x.dtype)


Rows = dict[str, tuple[Reference, str]]
"""The function of each operation and the first sentence of its docstring."""


def _unary(dtype: DtypeRule, table: Rows) -> None:
    for name, (function, text) in table.items():
        reference = (lambda f: lambda x: f(x))(function)
        reference.__doc__ = f"{text}\n\n{_dtype_text(dtype, 'the dtype of x')}"
        register(name, OpFamily.UNARY, rules.elementwise(1), dtype, reference)


def _binary(family: OpFamily, dtype: DtypeRule, table: Rows) -> None:
    for name, (function, text) in table.items():
        reference = (lambda f: lambda x, y: f(x, y))(function)
        reference.__doc__ = f"{text}\n\nThe operands broadcast. {_dtype_text(dtype)}"
        register(name, family, rules.elementwise(2), dtype, reference)


def _dtype_text(rule: DtypeRule, promoted: str = "the promoted dtype") -> str:
    """The docstring of a dtype rule as a sentence about the result."""
    assert rule.__doc__ is not None
    dtype = f"{rule.__doc__[0].lower()}{rule.__doc__[1:]}"
    return f"The result's dtype is {dtype.replace('the promoted dtype', promoted)}"


_unary(
    rules.numeric,
    {
        "negative": (np.negative, "-x. Unsigned integers wrap."),
        "sign": (np.sign, "-1, 0 or 1 by the sign of x; NaN stays NaN."),
        "square": (np.square, "x * x."),
    },
)
_unary(
    rules.same,
    {
        "abs": (np.abs, "The absolute value |x|."),
        "floor": (rounding(np.floor), "x rounded down to an integer."),
        "ceil": (rounding(np.ceil), "x rounded up to an integer."),
        "trunc": (rounding(np.trunc), "x rounded towards zero to an integer."),
        "round": (
            rounding(np.rint),
            "x rounded to the nearest integer, to the even one if two are equally near.",
        ),
    },
)
_unary(
    rules.floating,
    {
        "exp": (np.exp, "e to the power x."),
        "exp2": (np.exp2, "2 to the power x."),
        "expm1": (np.expm1, "exp(x) - 1, accurate for x near 0."),
        "log": (np.log, "The natural logarithm; -inf for 0, NaN below."),
        "log2": (np.log2, "The logarithm to base 2; -inf for 0, NaN below."),
        "log10": (np.log10, "The logarithm to base 10; -inf for 0, NaN below."),
        "log1p": (np.log1p, "log(1 + x), accurate for x near 0; -inf for -1, NaN below."),
        "sqrt": (np.sqrt, "The square root; NaN for x < 0."),
        "rsqrt": (lambda x: 1 / np.sqrt(x), "1 / sqrt(x); inf for 0, NaN below."),
        "reciprocal": (lambda x: 1 / x, "1 / x; inf or -inf for a zero of that sign."),
        "sin": (np.sin, "The sine of x in radians."),
        "cos": (np.cos, "The cosine of x in radians."),
        "tan": (np.tan, "The tangent of x in radians."),
        "asin": (np.arcsin, "The inverse sine, from -pi / 2 to pi / 2; NaN for |x| > 1."),
        "acos": (np.arccos, "The inverse cosine, from 0 to pi; NaN for |x| > 1."),
        "atan": (np.arctan, "The inverse tangent, from -pi / 2 to pi / 2."),
        "sinh": (np.sinh, "The hyperbolic sine."),
        "cosh": (np.cosh, "The hyperbolic cosine."),
        "asinh": (np.arcsinh, "The inverse hyperbolic sine."),
        "acosh": (np.arccosh, "The inverse hyperbolic cosine; NaN for x < 1."),
        "atanh": (np.arctanh, "The inverse hyperbolic tangent; NaN for |x| > 1."),
        "erf": (
            erf,
            "The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.",
        ),
    },
)
_unary(rules.integral, {"bitwise_invert": (np.invert, "~x: all bits inverted; for bool, not x.")})
_unary(
    rules.boolean,
    {
        "logical_not": (np.logical_not, "Whether x is zero."),
        "isnan": (np.isnan, "Whether x is NaN."),
        "isinf": (np.isinf, "Whether x is inf or -inf."),
        "isfinite": (np.isfinite, "Whether x is neither NaN nor infinite."),
    },
)

_binary(
    OpFamily.BINARY,
    rules.same,
    {
        "add": (np.add, "x + y; for bool, x or y."),
        "multiply": (np.multiply, "x * y; for bool, x and y."),
        "maximum": (np.maximum, "The larger of x and y; NaN if one of them is."),
        "minimum": (np.minimum, "The smaller of x and y; NaN if one of them is."),
    },
)
_binary(
    OpFamily.BINARY,
    rules.numeric,
    {
        "subtract": (np.subtract, "x - y."),
        "floor_divide": (
            np.floor_divide,
            "x / y rounded down to an integer; 0 for integers with y = 0.",
        ),
        "remainder": (
            np.remainder,
            "x - floor(x / y) * y, which has the sign of y; 0 for integers with y = 0.",
        ),
        "pow": (
            power,
            "x to the power y; integers with y < 0 are rounded towards zero, and 0 for x = 0.",
        ),
    },
)
_binary(
    OpFamily.BINARY,
    rules.floating,
    {
        "divide": (np.divide, "x / y; inf, -inf or NaN for y = 0."),
        "atan2": (
            np.arctan2,
            "The angle of the point (y, x), atan(x / y) with its quadrant, from -pi to pi.",
        ),
    },
)
_binary(
    OpFamily.BINARY,
    rules.integral,
    {
        "bitwise_and": (np.bitwise_and, "x & y of each bit; for bool, x and y."),
        "bitwise_or": (np.bitwise_or, "x | y of each bit; for bool, x or y."),
        "bitwise_xor": (np.bitwise_xor, "x ^ y of each bit; for bool, whether they differ."),
    },
)
_binary(
    OpFamily.BINARY,
    rules.shiftable,
    {
        "bitwise_left_shift": (
            np.left_shift,
            "x * 2**y without the bits that overflow; 0 for y outside the width.",
        ),
        "bitwise_right_shift": (np.right_shift, "x / 2**y rounded down."),
    },
)
_binary(
    OpFamily.COMPARISON,
    rules.boolean,
    {
        "equal": (np.equal, "Whether x == y; False if one is NaN."),
        "not_equal": (np.not_equal, "Whether x != y; True if one is NaN."),
        "less": (np.less, "Whether x < y; False if one is NaN."),
        "less_equal": (np.less_equal, "Whether x <= y; False if one is NaN."),
        "greater": (np.greater, "Whether x > y; False if one is NaN."),
        "greater_equal": (np.greater_equal, "Whether x >= y; False if one is NaN."),
        "logical_and": (np.logical_and, "Whether neither x nor y is zero."),
        "logical_or": (np.logical_or, "Whether x or y is not zero."),
        "logical_xor": (np.logical_xor, "Whether exactly one of x and y is not zero."),
    },
)


@op(OpFamily.UNARY, rules.elementwise(1), rules.boolean)
def signbit(x: NumpyArray) -> NumpyArray:
    """Whether the sign bit is set: x < 0, -0.0 or a negative NaN. The result is bool."""
    return np.asarray(np.signbit(x))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def copysign(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """|x| with the sign of y. The operands broadcast; integers become float32."""
    return np.asarray(np.copysign(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def hypot(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """sqrt(x**2 + y**2), computed without overflow. Broadcasts; integers become float32."""
    return np.asarray(np.hypot(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def logaddexp(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """log(exp(x) + exp(y)), computed without overflow. Broadcasts; integers become float32."""
    return np.asarray(np.logaddexp(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.not_half)
def nextafter(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """The next number after x in the direction of y; float16 and bfloat16 raise DtypeError.

    The operands broadcast; integers become float32.
    """
    return np.asarray(np.nextafter(x, y))


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def where(condition: NumpyArray, x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """x where the condition is True, y elsewhere.

    The operands broadcast. The condition must be bool, otherwise DtypeError is raised; the
    result's dtype is that of x and y, promoted.
    """
    return np.where(condition, x, y)


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def fma(x: NumpyArray, y: NumpyArray, z: NumpyArray) -> NumpyArray:
    """x * y + z, rounded once.

    The operands broadcast. The result's dtype is the promoted dtype.
    """
    if x.dtype == np.float32:  # float64 holds the product of two float32 exactly
        x = x.astype(np.float64)
    return np.asarray(x * y + z)


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def clip(x: NumpyArray, low: NumpyArray, high: NumpyArray) -> NumpyArray:
    """min(max(x, low), high); NaN if one of them is.

    The operands broadcast. Where low > high, the result is high. The result's dtype is the
    promoted dtype.
    """
    return np.asarray(np.minimum(np.maximum(x, low), high))


@op(OpFamily.CAST, rules.elementwise(1), rules.from_dtype)
def cast(x: NumpyArray, *, dtype: dt.DtypeLike) -> NumpyArray:
    """The elements converted to a dtype.

    Floats are truncated to integers; one outside the integer's range becomes its nearest value,
    and NaN becomes 0. Integers wrap. bool is True where an element is not zero. float64 on metal
    raises DtypeError.

    >>> lbrx.tensor([1.9, -1.9]).cast("int32").tolist()
    [1, -1]
    """
    target = dt.parse(dtype)
    if x.dtype.kind != "f" or target.is_float or target is dt.bool_:
        return x  # Op converts every result to its dtype
    return _saturated(x, target)


def _saturated(x: NumpyArray, target: dt.Dtype) -> NumpyArray:
    """Floats as integers. The conversion of others than the integer's is undefined in numpy."""
    limits = np.iinfo(target.numpy)
    low, high = target.numpy.type(limits.min), target.numpy.type(limits.max)
    below, above = x <= float(limits.min), x >= float(limits.max)  # 64 bits round to a power of 2
    inside = np.where(below | above | np.isnan(x), 0, x).astype(target.numpy)
    return np.where(below, low, np.where(above, high, inside))


@op(OpFamily.MOVEMENT, rules.elementwise(1), rules.same)
def copy(x: NumpyArray) -> NumpyArray:
    """The same elements, contiguous and in new memory."""
    return x
