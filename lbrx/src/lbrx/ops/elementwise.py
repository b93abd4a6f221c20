"""Operations on one element at a time: unary, binary, comparison, ternary and cast."""

from __future__ import annotations

import numpy as np

from lbrx.ops import rules
from lbrx.ops.error_function import erf
from lbrx.ops.table import DtypeRule, NumpyArray, OpFamily, Reference, op, register


def rounding(function: np.ufunc) -> Reference:
    """Integers are whole already; numpy would make some of them floating."""
    return lambda x: function(x) if x.dtype.kind == "f" else x


def power(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """numpy refuses negative powers of integers; a device cannot, so 1/x is rounded to zero."""
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, y))
    sign = np.where(y % 2 == 0, 1, x)
    reciprocal = np.where(np.abs(x) == 1, sign, 0)
    return np.where(y < 0, reciprocal, np.power(x, np.maximum(y, 0))).astype(x.dtype)


def _unary(dtype: DtypeRule, table: dict[str, Reference]) -> None:
    for name, function in table.items():
        reference = (lambda f: lambda x: f(x))(function)
        register(name, OpFamily.UNARY, rules.elementwise(1), dtype, reference)


def _binary(family: OpFamily, dtype: DtypeRule, table: dict[str, Reference]) -> None:
    for name, function in table.items():
        reference = (lambda f: lambda x, y: f(x, y))(function)
        register(name, family, rules.elementwise(2), dtype, reference)


_unary(rules.numeric, {"negative": np.negative, "sign": np.sign, "square": np.square})
_unary(
    rules.same,
    {
        "abs": np.abs,
        "floor": rounding(np.floor),
        "ceil": rounding(np.ceil),
        "trunc": rounding(np.trunc),
        "round": rounding(np.rint),
    },
)
_unary(
    rules.floating,
    {
        "exp": np.exp,
        "exp2": np.exp2,
        "expm1": np.expm1,
        "log": np.log,
        "log2": np.log2,
        "log10": np.log10,
        "log1p": np.log1p,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "reciprocal": lambda x: 1 / x,
        "sin": np.sin,
        "cos": np.cos,
        "tan": np.tan,
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "sinh": np.sinh,
        "cosh": np.cosh,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
        "erf": erf,
    },
)
_unary(rules.integral, {"bitwise_invert": np.invert})
_unary(
    rules.boolean,
    {
        "logical_not": np.logical_not,
        "isnan": np.isnan,
        "isinf": np.isinf,
        "isfinite": np.isfinite,
    },
)

_binary(
    OpFamily.BINARY,
    rules.same,
    {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum},
)
_binary(
    OpFamily.BINARY,
    rules.numeric,
    {
        "subtract": np.subtract,
        "floor_divide": np.floor_divide,
        "remainder": np.remainder,
        "pow": power,
    },
)
_binary(OpFamily.BINARY, rules.floating, {"divide": np.divide, "atan2": np.arctan2})
_binary(
    OpFamily.BINARY,
    rules.integral,
    {
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
    },
)
_binary(
    OpFamily.BINARY,
    rules.shiftable,
    {"bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift},
)
_binary(
    OpFamily.COMPARISON,
    rules.boolean,
    {
        "equal": np.equal,
        "not_equal": np.not_equal,
        "less": np.less,
        "less_equal": np.less_equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
    },
)


@op(OpFamily.UNARY, rules.elementwise(1), rules.boolean)
def signbit(x: NumpyArray) -> NumpyArray:
    """Whether each element has a negative sign, also -0 and NaN."""
    return np.asarray(np.signbit(x))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def copysign(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """The magnitude of x with the sign of y."""
    return np.asarray(np.copysign(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def hypot(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """sqrt(x * x + y * y), without overflow on the way."""
    return np.asarray(np.hypot(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.floating)
def logaddexp(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """log(exp(x) + exp(y)), without overflow on the way."""
    return np.asarray(np.logaddexp(x, y))


@op(OpFamily.BINARY, rules.elementwise(2), rules.not_half)
def nextafter(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """The next number after x towards y; of float32 and float64 only."""
    return np.asarray(np.nextafter(x, y))


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def where(condition: NumpyArray, x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """x where the condition holds, y elsewhere."""
    return np.where(condition, x, y)


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def fma(x: NumpyArray, y: NumpyArray, z: NumpyArray) -> NumpyArray:
    """x * y + z with one rounding: float64 holds a product of two float32 exactly."""
    if x.dtype == np.float32:
        x = x.astype(np.float64)
    return np.asarray(x * y + z)


@op(OpFamily.TERNARY, rules.elementwise(3), rules.same)
def clip(x: NumpyArray, low: NumpyArray, high: NumpyArray) -> NumpyArray:
    """x, but at least low and at most high; high wins where they cross."""
    return np.asarray(np.minimum(np.maximum(x, low), high))


@op(OpFamily.CAST, rules.elementwise(1), rules.from_dtype)
def cast(x: NumpyArray, *, dtype: object) -> NumpyArray:
    """The same values in another type; the table rounds what a reference returns."""
    return x


@op(OpFamily.MOVEMENT, rules.elementwise(1), rules.same)
def copy(x: NumpyArray) -> NumpyArray:
    """The same elements, contiguous and in memory of their own."""
    return x
