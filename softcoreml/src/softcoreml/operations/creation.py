"""Tensors made from sizes and values, and bands and running sums of tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    axis_of,
    define,
    integers,
    like,
    require_size,
    widen,
)

_ZERO, _ON, _OFF = np.float32(0), np.int32(1), np.int32(0)


@define("fill")
def fill(shape: Array, value: Any = _ZERO) -> Array:
    value = np.asarray(value)
    sizes = require_size(integers(shape, "shape"), "shape", value.itemsize)
    return np.full(sizes, value)


@define("fill_like", "ios16")
def fill_like(ref_tensor: Array, value: Any = _ZERO) -> Array:
    return np.full(np.shape(ref_tensor), np.asarray(value))


@define("range_1d")
def range_1d(start: Any, end: Any, step: Any) -> Array:
    """start, start + step, ... up to but without end; empty where step leads away from end."""
    first, last, by = (widen(one)[()] for one in (start, end, step))
    if not by or not all(math.isfinite(one) for one in (first, last, by)):
        raise ModelError(f"start {first}, end {last} and step {by} do not make a finite range")
    count = max(0, math.ceil((float(last) - float(first)) / float(by)))
    require_size((count,), "end")
    values = float(first) + np.arange(count, dtype=np.float64) * float(by)
    return values.astype(first.dtype)


@define("one_hot")
def one_hot(
    indices: Array,
    one_hot_vector_size: Any,
    axis: Any = -1,
    on_value: Any = _ON,
    off_value: Any = _OFF,
) -> Array:
    """A new axis that holds on_value at each index; an index out of range leaves off_value."""
    indices = np.asarray(indices)
    where = axis_of(axis, indices.ndim + 1)
    depth = int(np.asarray(one_hot_vector_size).reshape(()))
    require_size((*indices.shape, depth), "one_hot_vector_size")
    hot = np.expand_dims(indices, -1) == np.arange(depth)
    return np.moveaxis(np.where(hot, on_value, off_value), -1, where)


@define("band_part")
def band_part(x: Array, lower: Any = -1, upper: Any = -1) -> Array:
    """Zeros outside a band of diagonals of the last two axes; -1 keeps a whole triangle."""
    x = np.asarray(x)
    if x.ndim < 2:
        raise ModelError(f"x must have rank 2 or more, not shape {list(x.shape)}")
    below = np.arange(x.shape[-2])[:, None] - np.arange(x.shape[-1])
    kept = np.ones(below.shape, dtype=np.bool_)
    if int(lower) >= 0:
        kept &= below <= int(lower)
    if int(upper) >= 0:
        kept &= -below <= int(upper)
    return np.where(kept, x, x.dtype.type(0))


@define("cumsum")
def cumsum(x: Array, axis: Any = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running sums in float32, or in the integer type of x."""
    wide = widen(x)
    where = axis_of(axis, wide.ndim)
    if reverse:
        wide = np.flip(wide, where)
    total = np.cumsum(wide, axis=where, dtype=wide.dtype)
    if exclusive:
        total = np.roll(total, 1, axis=where)
        total[(slice(None),) * where + (slice(0, 1),)] = 0
    return like(np.flip(total, where) if reverse else total, np.asarray(x))
