"""Values between operations: their types, and how results are rounded to what is declared."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError

Precision = Literal["declared", "float32"]
"""`declared` rounds each result to its type in the program; `float32` holds fp16 in float32."""

_HALF = ("fp16", "bf16")


def held_dtype(dtype: str, precision: Precision) -> np.dtype[Any]:
    """The NumPy type in which values of a MIL type are held."""
    if precision == "float32" and dtype in _HALF:
        return np.dtype(np.float32)
    return mil.DTYPES[dtype]


def as_argument(value: Any) -> Any:
    """A value as operations take it: rank 0 is a NumPy scalar, or Python's own bool or str."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        scalar = value[()]
        return bool(scalar) if isinstance(scalar, np.bool_) else scalar
    return value


def conform(value: Any, kind: mil.ValueType, precision: Precision, where: str) -> Any:
    """A result in the type that the program declares.

    Raises:
        ModelError: its shape is not the declared one.
    """
    if not isinstance(kind, mil.TensorType):
        return value
    if kind.dtype == "string":
        return value
    array = np.asarray(value)
    if not kind.admits(array.shape):
        raise ModelError(f"{where} gives the shape {array.shape} where the program says {kind}")
    wanted = held_dtype(kind.dtype, precision)
    return array if array.dtype == wanted else array.astype(wanted)
