"""Views of tensors in MIL: in lbrx a view is a layout over a storage, here it is operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lbrx.arrays.shape import Layout, Shape
from lbrx.neural_engine.binding import mil_builder


def view(base: Any, layout: Layout) -> Any:
    """The elements of a contiguous variable that a layout shows: a reshape, a slice, a transpose
    and a repetition where these suffice, else a gather with constant indices."""
    mb = mil_builder()
    shape = layout.shape
    if layout.offset == 0 and layout.is_contiguous and layout.size == math.prod(base.shape):
        return reshaped(base, shape)
    repeated = [n > 1 and step == 0 for n, step in zip(shape, layout.strides, strict=True)]
    kept = [i for i, n in enumerate(shape) if n > 1 and not repeated[i]]
    order = sorted(kept, key=lambda axis: -layout.strides[axis])
    sizes = [shape[axis] for axis in order]
    strides = [layout.strides[axis] for axis in order]
    sliced = _sliced(base, sizes, strides, layout.offset)
    if sliced is None:
        return _gathered(base, layout)
    moved = [order.index(axis) for axis in kept]
    if moved != sorted(moved):
        sliced = mb.transpose(x=sliced, perm=moved)
    ones = [1 if repeated[axis] else n for axis, n in enumerate(shape)]
    result = reshaped(sliced, tuple(ones))
    if not any(repeated):
        return result
    return mb.tile(
        x=result, reps=[n if again else 1 for n, again in zip(shape, repeated, strict=True)]
    )


def reshaped(x: Any, shape: Shape) -> Any:
    """The variable in another shape; a scalar is a vector of one element."""
    wanted = tuple(shape) or (1,)
    return x if tuple(x.shape) == wanted else mil_builder().reshape(x=x, shape=wanted)


def _sliced(base: Any, sizes: list[int], strides: list[int], offset: int) -> Any:
    """A slice of the base seen with one axis for each stride, the largest first. None if there is
    no such slice: strides that do not divide each other, or run backwards."""
    mb, total = mil_builder(), math.prod(base.shape)
    if not sizes:
        flat = reshaped(base, (total,))
        return mb.slice_by_index(x=flat, begin=[offset], end=[offset + 1])
    if strides[-1] < 1:
        return None
    outer = [total, *strides[:-1]]
    inner = [*strides[:-1], 1]  # the last axis keeps its step
    if any(n % m for n, m in zip(outer, inner, strict=True)):
        return None
    extents = [n // m for n, m in zip(outer, inner, strict=True)]
    steps = [1] * (len(sizes) - 1) + [strides[-1]]
    begin, end, rest = [], [], offset
    for size, extent, unit, step in zip(sizes, extents, inner, steps, strict=True):
        first, rest = divmod(rest, unit)
        begin.append(first)
        end.append(first + (size - 1) * step + 1)
        if end[-1] > extent:
            return None
    whole = reshaped(base, tuple(extents))
    if begin == [0] * len(begin) and end == extents and steps[-1] == 1:
        return whole
    return mb.slice_by_index(x=whole, begin=begin, end=end, stride=steps)


def _gathered(base: Any, layout: Layout) -> Any:
    """Any view at all, by the number of each element."""
    places = np.array(layout.offset)
    for n, step in zip(layout.shape, layout.strides, strict=True):
        places = places[..., None] + np.arange(n) * step
    flat = reshaped(base, (math.prod(base.shape),))
    found = mil_builder().gather(x=flat, indices=places.reshape(-1).astype(np.int32), axis=0)
    return reshaped(found, layout.shape)
