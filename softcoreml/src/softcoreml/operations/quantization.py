"""Affine quantization of activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, along, axis_of, define, dtype_named, widen


def _parameter(values: Array, data: Array, axis: Any, name: str) -> Array:
    """A scalar, or a vector laid along an axis of data, in float32."""
    real = np.asarray(values).astype(np.float32)
    if real.ndim == 0:
        return real
    if real.ndim > 1 or axis is None:
        raise ModelError(f"{name} {list(real.shape)} must be a scalar, or a vector with an axis")
    where = axis_of(axis, data.ndim)
    if len(real) not in (1, data.shape[where]):
        raise ModelError(f"{name} has {len(real)} values for {data.shape[where]} along the axis")
    return along(real, where, data.ndim)


def scaled_difference(
    data: Array, scale: Array, zero_point: Array | None, axis: Any, name: str
) -> Array:
    """scale * (data - zero point) in float32: exact until the interpreter rounds it."""
    data = np.asarray(data)
    if data.dtype.kind not in "iu":
        raise ModelError(f"{name} must be integers, not {data.dtype}")
    real = data.astype(np.float32)
    if zero_point is not None:
        real -= _parameter(zero_point, data, axis, "zero_point")
    return np.asarray(real * _parameter(scale, data, axis, "scale"))


@define("quantize", "ios17")
def quantize(
    input: Array, scale: Array, output_dtype: str, zero_point: Array | None = None, axis: Any = None
) -> Array:
    """round(input / scale) + zero point in 8 bits, saturated; halves round to even."""
    dtype = dtype_named(output_dtype, "output_dtype")
    if dtype not in (np.dtype(np.int8), np.dtype(np.uint8)):
        raise ModelError(f"output_dtype {output_dtype!r} is not one of int8 and uint8")
    data = widen(input)
    real = np.round(data / _parameter(scale, data, axis, "scale"))
    if zero_point is not None:
        real = real + _parameter(zero_point, data, axis, "zero_point")
    limits = np.iinfo(dtype)
    return np.clip(np.nan_to_num(real), limits.min, limits.max).astype(dtype)


@define("dequantize", "ios17")
def dequantize(
    input: Array, scale: Array, zero_point: Array | None = None, axis: Any = None
) -> Array:
    return scaled_difference(input, scale, zero_point, axis, "input")
