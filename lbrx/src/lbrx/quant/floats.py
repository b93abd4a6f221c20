"""The small floats of the microscaling formats: E2M1, E4M3 and powers of two (E8M0)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import ByteArray

FloatArray = NDArray[np.float32]

_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])
"""The values of the sixteen codes."""
E2M1_MAX = np.float32(6)
E4M3_MAX = np.float32(448)
# The midpoints of the magnitudes are multiples of a quarter, so ceil(4 x) finds the code of x.
_CODES: ByteArray = np.searchsorted(
    2 * (_MAGNITUDES[1:] + _MAGNITUDES[:-1]), np.arange(25), side="left"
).astype(np.uint8)


def to_e2m1(values: FloatArray) -> ByteArray:
    """Codes of the nearest values; ties go to the smaller magnitude, and zero has no sign."""
    codes: ByteArray = _CODES.take(np.ceil(4 * np.abs(values)).clip(0, 24).astype(np.uint8))
    negative = (values < 0) & (codes > 0)
    return codes | negative.astype(np.uint8) << np.uint8(3)


def to_e4m3(values: FloatArray) -> ByteArray:
    """Rounded to nearest, ties to even; larger values become the largest."""
    clipped = values.clip(-E4M3_MAX, E4M3_MAX)
    return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def from_e4m3(stored: NDArray[Any]) -> FloatArray:
    numbers = np.ascontiguousarray(stored).view(ml_dtypes.float8_e4m3fn)
    return np.asarray(numbers, np.float32)


def to_e8m0(values: FloatArray) -> ByteArray:
    """The exponents of the smallest powers of two not below the values; for zero, that of one."""
    mantissa, exponent = np.frexp(values)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.where(values > 0, exponent + 127, 127).clip(0, 254).astype(np.uint8)


def from_e8m0(stored: NDArray[Any]) -> FloatArray:
    powers: FloatArray = np.ldexp(np.float32(1), stored.astype(np.int32) - 127)
    return powers
