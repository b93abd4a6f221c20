"""Layouts that kernels can take: axes that are merged, and copies of arrays that have others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.kernels.registry import RUNNERS, Call
from lbrx.ops import TABLE, Spec


def collapsed(shape: Shape, layouts: Sequence[Layout]) -> tuple[Shape, list[Shape]]:
    """Merge axes as far as the strides of all arrays (already of this shape) allow."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in layouts]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        steps = [layout.strides[axis] for layout in layouts]
        if sizes and all(merged[-1] == n * s for merged, s in zip(strides, steps, strict=True)):
            sizes[-1] *= n
            for merged, s in zip(strides, steps, strict=True):
                merged[-1] = s
        else:
            sizes.append(n)
            for merged, s in zip(strides, steps, strict=True):
                merged.append(s)
    if not sizes:
        return (1,), [(0,)] * len(layouts)
    return tuple(sizes), [tuple(merged) for merged in strides]


def contiguous(b: Builder, array: Array) -> Array:
    """The array itself if it is contiguous, else a contiguous copy."""
    return array if array.layout.is_contiguous else _applied(b, "copy", array)


def cast(b: Builder, array: Array, dtype: Dtype) -> Array:
    """The array cast to a dtype; the array itself if it has that dtype."""
    return array if array.dtype is dtype else _applied(b, "cast", array, dtype=dtype)


def _applied(b: Builder, name: str, array: Array, **attributes: Any) -> Array:
    op = TABLE[name]
    outputs = op.infer([Spec(array.layout.shape, array.dtype)], attributes)
    (result,) = RUNNERS[name](Call(b, op, (array,), attributes, outputs))
    return result
