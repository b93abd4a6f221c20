"""Reductions along axes. Sums accumulate in float32 (float16 inputs are widened first)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    axes_of,
    axis_of,
    define,
    dtype_named,
    like,
    widen,
)
from softcoreml.operations.registry import Function


def mean_of(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """The mean along axes; of no elements it is NaN, without NumPy's warning."""
    count = math.prod(x.shape[one] for one in axis)
    return np.asarray(np.divide(np.sum(x, axis=axis, keepdims=keepdims), np.float32(count)))


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return np.asarray(total if keepdims else np.squeeze(total, axis=axis))


def _l2_norm(x: Array, **how: Any) -> Array:
    return np.asarray(np.sqrt(np.sum(np.square(x), **how)))


_REDUCTIONS: dict[str, Function] = {
    "reduce_l1_norm": lambda x, **how: np.sum(np.abs(x), **how),
    "reduce_l2_norm": _l2_norm,
    "reduce_log_sum": lambda x, **how: np.log(np.sum(x, **how)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": np.max,
    "reduce_mean": mean_of,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
    "reduce_sum_square": lambda x, **how: np.sum(np.square(x), **how),
}


def _reduction(function: Function) -> Function:
    def reduce(x: Array, axes: Array | None = None, keep_dims: bool = False) -> Array:
        wide = widen(x)
        where = axes_of(axes, wide.ndim)
        return like(np.asarray(function(wide, axis=where, keepdims=bool(keep_dims))), x)

    return reduce


for _name, _function in _REDUCTIONS.items():
    define(_name)(_reduction(_function))


def _position(function: Function) -> Function:
    def position(
        x: Array, axis: Any = -1, keep_dims: bool = False, output_dtype: str = "int32"
    ) -> Array:
        dtype = dtype_named(output_dtype, "output_dtype")
        if dtype not in (np.dtype(np.int32), np.dtype(np.uint16)):
            raise ModelError(f"output_dtype {output_dtype!r} is not one of int32 and uint16")
        where = axis_of(axis, np.ndim(x))
        return np.asarray(function(x, axis=where, keepdims=bool(keep_dims))).astype(dtype)

    return position


# Among equal values the first is found, which MIL leaves open.
define("reduce_argmax")(_position(np.argmax))
define("reduce_argmin")(_position(np.argmin))
