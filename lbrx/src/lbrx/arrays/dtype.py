"""Element types and how they combine.

Promotion follows numpy's rules, which do not depend on values, with these exceptions, so that
float64, which Metal lacks, appears only where it is requested:

- an integer with a floating type gives that floating type: int32 + float16 is float16;
- float16 with bfloat16 gives float32, the smallest type that holds both;
- uint64 with a signed integer gives int64, not float64: values from 2**63 on wrap;
- operations that turn integers into floating-point (division, exp, mean) give float32.

Python numbers and numpy scalars are weak: they take the type of the tensor operand, and only their
kind can change it. uint8 + 1 is uint8, int32 + 0.5 is float32. An integer that the type cannot hold
is an error, except in divisions, which are of floats, and in comparisons, where 64 bits hold it.
Alone, and in lists, floats are float32 and ints int64.

Only the cpu has float64. numpy arrays of it become float32 tensors on metal; requesting it there by
name is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from lbrx.errors import DtypeError


class Kind(IntEnum):
    """Kinds in the order of promotion, in which signed and unsigned integers rank equal."""

    BOOL = 0
    UINT = 1
    INT = 2
    FLOAT = 3


@dataclass(frozen=True, eq=False, repr=False)
class Dtype:
    """One element type. There is one object for each, so `is` compares them; a dtype also equals
    its name and its numpy dtype: `x.dtype == "float32"`."""

    name: str
    kind: Kind
    numpy: np.dtype[Any]
    msl: str | None
    """Its name in the Metal Shading Language, None if Metal lacks the type."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type; bfloat16 is one."""
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type; bool is not."""
        return self.kind in (Kind.INT, Kind.UINT)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other == self.name
        return other is self or (isinstance(other, np.dtype) and other == self.numpy)

    def __hash__(self) -> int:
        return hash(self.name)  # equal to that of the name, which it equals

    def __repr__(self) -> str:
        return f"lbrx.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Dtype], tuple[str]]:
        return parse, (self.name,)


bool_ = Dtype("bool", Kind.BOOL, np.dtype(np.bool_), "bool")
int8 = Dtype("int8", Kind.INT, np.dtype(np.int8), "char")
int16 = Dtype("int16", Kind.INT, np.dtype(np.int16), "short")
int32 = Dtype("int32", Kind.INT, np.dtype(np.int32), "int")
int64 = Dtype("int64", Kind.INT, np.dtype(np.int64), "long")
uint8 = Dtype("uint8", Kind.UINT, np.dtype(np.uint8), "uchar")
uint16 = Dtype("uint16", Kind.UINT, np.dtype(np.uint16), "ushort")
uint32 = Dtype("uint32", Kind.UINT, np.dtype(np.uint32), "uint")
uint64 = Dtype("uint64", Kind.UINT, np.dtype(np.uint64), "ulong")
float16 = Dtype("float16", Kind.FLOAT, np.dtype(np.float16), "half")
bfloat16 = Dtype("bfloat16", Kind.FLOAT, np.dtype(ml_dtypes.bfloat16), "bfloat")
float32 = Dtype("float32", Kind.FLOAT, np.dtype(np.float32), "float")
float64 = Dtype("float64", Kind.FLOAT, np.dtype(np.float64), None)

ALL = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64),
)
_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}
_BY_PYTHON: dict[object, Dtype] = {bool: bool_, int: int64, float: float32}
_SIGNED = {dtype.itemsize: dtype for dtype in ALL if dtype.kind is Kind.INT}

Scalar = bool | int | float
DtypeLike = Dtype | str | type | np.dtype[Any]


def parse(value: DtypeLike) -> Dtype:
    """The dtype of a name, a numpy dtype, or one of bool, int and float, also as names.

    Raises DtypeError for anything else.
    """
    if isinstance(value, Dtype):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    if isinstance(value, str) and value == "float":  # numpy's is float64
        return float32
    try:
        if value is None:
            raise TypeError
        return _BY_NUMPY[np.dtype(value).newbyteorder("=")]
    except (KeyError, TypeError):
        names = ", ".join(_BY_NAME)
        raise DtypeError(f"{value!r} is not an element type of lbrx: give one of {names}") from None


def promote(a: DtypeLike, b: DtypeLike) -> Dtype:
    """The type that holds both, by the rules in the module's docstring."""
    a, b = parse(a), parse(b)
    if a is b or b.kind is Kind.BOOL:
        return a
    if a.kind is Kind.BOOL:
        return b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.kind is b.kind:
        if a.itemsize == b.itemsize:
            return float32
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind is Kind.INT else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return _SIGNED[min(2 * unsigned.itemsize, 8)]


def of_scalar(value: Scalar) -> Dtype:
    """The type of a Python number alone; uint64 for integers that int64 cannot hold."""
    dtype = _BY_PYTHON[type(value)]
    return uint64 if dtype is int64 and value > np.iinfo(np.int64).max else dtype


def result_type(*values: Dtype | Scalar) -> Dtype:
    """The type of an operation on these types and weak Python numbers."""
    strong = [value for value in values if isinstance(value, Dtype)]
    weak = [of_scalar(value) for value in values if not isinstance(value, Dtype)]
    if not strong:
        return reduce(promote, weak)
    result = reduce(promote, strong)
    for dtype in weak:
        if _rank(dtype) > _rank(result):
            result = dtype
    return result


def _rank(dtype: Dtype) -> int:
    return Kind.INT if dtype.is_integer else dtype.kind


def holds(dtype: Dtype, value: Scalar) -> bool:
    """Whether a number is within the range of a type; floating-point types hold every number."""
    if not dtype.is_integer:
        return True
    limits = np.iinfo(dtype.numpy)
    return bool(limits.min <= value <= limits.max)


def check_scalar(value: Scalar, dtype: Dtype) -> None:
    """Refuse an integer that the type cannot hold; floating-point numbers are rounded."""
    if not holds(dtype, value):
        limits = np.iinfo(dtype.numpy)
        raise DtypeError(
            f"{value} does not fit {dtype} ({limits.min} to {limits.max}): cast to a wider type"
        )


def accumulator(dtype: Dtype) -> Dtype:
    """The type that kernels compute in: float32 for float16 and bfloat16, else the dtype itself."""
    return float32 if dtype in (float16, bfloat16) else dtype
