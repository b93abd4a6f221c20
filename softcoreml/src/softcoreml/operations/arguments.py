"""Checks and conversions of operations' inputs, and the decorator that registers an operation.

Numbers: float16 inputs are widened to float32 where arithmetic is done, sums and products
accumulate in float32, and the interpreter rounds the result once. Operations that only move values
keep the type of their input. Integer arithmetic wraps around, as in NumPy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from softcoreml.errors import ModelError
from softcoreml.operations.registry import Function, operation

Array = npt.NDArray[Any]

LARGEST_RESULT = 1 << 34
"""Bytes that one tensor may need: above this a program's sizes are taken for a mistake."""

DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
"""MIL's names of types."""

_FAILURES = (ArithmeticError, AttributeError, IndexError, MemoryError, TypeError, ValueError)


def define(name: str, since: str = "ios15") -> Callable[[Function], Function]:
    """Register a function as the operation `name`, from the opset `since` on.

    What NumPy refuses (shapes that do not broadcast, an axis out of range, a missing input) becomes
    a ModelError that names the operation and describes its inputs. Infinities and NaNs are results,
    so NumPy does not warn of them.
    """

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def checked(**inputs: Any) -> Any:
            try:
                with np.errstate(all="ignore"):
                    return function(**inputs)
            except _FAILURES as error:
                described = ", ".join(f"{key}: {_describe(one)}" for key, one in inputs.items())
                raise ModelError(f"{name}: {error} (inputs {described})") from error
            except ModelError as error:
                raise ModelError(f"{name}: {error}") from error

        operation(name, since)(checked)
        return checked

    return register


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} tensors"
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim == 0:
            return str(value)
        return f"{value.dtype} {list(value.shape)}"
    return repr(value)


def widen(x: Array) -> Array:
    """The tensor in the type that arithmetic is done in: float32 for float16, else its own."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float16 else x


def like(result: Array, x: Array) -> Array:
    """The result in the type of an integer input, truncated towards zero; floats stay."""
    x = np.asarray(x)
    return result.astype(x.dtype) if x.dtype.kind in "iu" else result


def dtype_named(name: str, parameter: str) -> np.dtype[Any]:
    """NumPy's type for one of MIL's names."""
    found = DTYPES.get(str(name).lower())
    if found is None:
        raise ModelError(f"{parameter} {name!r} is not a type: give one of {', '.join(DTYPES)}")
    return found


def integers(
    values: Iterable[Any] | Array, name: str, length: int | None = None
) -> tuple[int, ...]:
    """A vector input as Python's integers, of the given length."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise ModelError(f"{name} must be a vector of integers, not {_describe(array)}")
    if length is not None and array.size != length:
        raise ModelError(f"{name} needs {length} values and has {array.size}")
    return tuple(int(one) for one in array)


def positive(values: Sequence[int], name: str) -> tuple[int, ...]:
    """The values, all of them at least 1."""
    if any(one < 1 for one in values):
        raise ModelError(f"{name} {list(values)} must be at least 1 everywhere")
    return tuple(values)


def axis_of(axis: Any, rank: int, name: str = "axis") -> int:
    """An axis counted from the front."""
    value = int(axis)
    if not -rank <= value < rank:
        raise ModelError(f"{name} {value} is out of range for a tensor of rank {rank}")
    return value % rank


def axes_of(axes: Iterable[Any] | None, rank: int, name: str = "axes") -> tuple[int, ...]:
    """Distinct axes counted from the front; every axis if none are given."""
    if axes is None:
        return tuple(range(rank))
    found = tuple(axis_of(one, rank, name) for one in np.atleast_1d(np.asarray(axes)))
    if len(set(found)) != len(found):
        raise ModelError(f"{name} {list(found)} names an axis twice")
    return found


def require_rank(x: Array, name: str, *ranks: int) -> None:
    """Refuse a tensor of another rank."""
    if np.ndim(x) not in ranks:
        wanted = " or ".join(str(one) for one in ranks)
        raise ModelError(f"{name} must have rank {wanted}, not shape {list(np.shape(x))}")


def require_size(shape: Sequence[int], name: str, itemsize: int = 4) -> tuple[int, ...]:
    """A shape that can be allocated: no negative sizes, and at most LARGEST_RESULT bytes."""
    sizes = tuple(int(one) for one in shape)
    if any(one < 0 for one in sizes):
        raise ModelError(f"{name} gives the shape {list(sizes)}: sizes cannot be negative")
    if math.prod(sizes) * itemsize > LARGEST_RESULT:
        raise ModelError(
            f"{name} gives the shape {list(sizes)}: over the {LARGEST_RESULT} bytes of a tensor"
        )
    return sizes


def require_broadcast(name: str, *tensors: Array) -> tuple[int, ...]:
    """The shape that tensors broadcast to."""
    shapes = [np.shape(one) for one in tensors]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError as error:
        listed = " and ".join(str(list(one)) for one in shapes)
        raise ModelError(f"{name} have shapes {listed}, which do not broadcast") from error
    return require_size(shape, name)


def by_channel(values: Array, x: Array, name: str) -> Array:
    """One parameter for each channel (axis 1 of x), widened and laid out to broadcast."""
    if np.shape(values) != (x.shape[1],):
        raise ModelError(f"{name} {list(np.shape(values))} needs {x.shape[1]} values")
    return along(widen(values), 1, x.ndim)


def along(values: Array, axis: int, rank: int) -> Array:
    """A vector laid along one axis of a tensor of that rank, to broadcast; scalars stay."""
    values = np.asarray(values)
    if values.ndim == 0:
        return values
    return values.reshape([-1 if one == axis else 1 for one in range(rank)])
