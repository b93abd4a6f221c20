"""Gathering and scattering by indices.

Until iOS 16 an index may be negative, counting from the end, and one out of range is refused. From
iOS 17 on validate_indices refuses both; without it MIL leaves the result open but safe: here
negative indices still count from the end, and others are moved to the nearest element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, axis_of, define, require_size, widen
from softcoreml.operations.registry import Function


def _resolved(indices: Array, length: Any, strict: bool, validate: bool) -> Array:
    """Indices of an axis (or of several, along the last axis) that are safe to use."""
    given = np.asarray(indices)
    if given.dtype.kind not in "iu":
        raise ModelError(f"indices must be integers, not {given.dtype}")
    given = given.astype(np.int64)
    sizes = np.asarray(length)
    if not given.size:
        return given
    if not np.all(sizes):
        raise ModelError("indices point into an axis without elements")
    low = np.zeros_like(sizes) if validate else -sizes
    if (strict or validate) and not np.all((given >= low) & (given < sizes)):
        raise ModelError(f"indices are out of range for {sizes.tolist()} elements")
    return np.clip(np.where(given < 0, given + sizes, given), 0, sizes - 1)


def _gather(x: Array, indices: Array, axis: Any, batch_dims: Any, how: dict[str, bool]) -> Array:
    x, batch = np.asarray(x), int(batch_dims)
    where = axis_of(axis, x.ndim)
    if not 0 <= batch <= min(where, np.ndim(indices)):
        raise ModelError(f"batch_dims {batch} must lie between 0 and the axis {where}")
    safe = _resolved(indices, x.shape[where], **how)
    shape = x.shape[:where] + safe.shape[batch:] + x.shape[where + 1 :]
    require_size(shape, "indices", x.itemsize)
    if not batch:
        return np.asarray(np.take(x, safe, axis=where))
    if x.shape[:batch] != safe.shape[:batch]:
        raise ModelError(f"indices {list(safe.shape)} need the batch of x {list(x.shape)}")
    flat = x.reshape(-1, *x.shape[batch:])
    rows = safe.reshape(len(flat), *safe.shape[batch:])
    parts = [np.take(one, row, axis=where - batch) for one, row in zip(flat, rows, strict=True)]
    return np.stack(parts).reshape(shape) if parts else np.zeros(shape, x.dtype)


@define("gather")
def gather(x: Array, indices: Array, axis: Any = 0, batch_dims: Any = 0) -> Array:
    return _gather(x, indices, axis, batch_dims, {"strict": True, "validate": False})


@define("gather", "ios17")
def gather_lenient(
    x: Array, indices: Array, axis: Any = 0, batch_dims: Any = 0, validate_indices: bool = False
) -> Array:
    how = {"strict": False, "validate": bool(validate_indices)}
    return _gather(x, indices, axis, batch_dims, how)


def _gather_along(x: Array, indices: Array, axis: Any, how: dict[str, bool]) -> Array:
    x = np.asarray(x)
    where = axis_of(axis, x.ndim)
    _require_along(x, indices, where)
    return np.take_along_axis(x, _resolved(indices, x.shape[where], **how), where)


def _require_along(x: Array, indices: Array, axis: int) -> None:
    sizes = list(np.shape(indices))
    others = [size for one, size in enumerate(sizes) if one != axis]
    if len(sizes) != x.ndim or others != [n for one, n in enumerate(x.shape) if one != axis]:
        raise ModelError(f"indices {sizes} may differ from {list(x.shape)} along axis {axis} only")


@define("gather_along_axis")
def gather_along_axis(x: Array, indices: Array, axis: Any = 0) -> Array:
    return _gather_along(x, indices, axis, {"strict": True, "validate": False})


@define("gather_along_axis", "ios17")
def gather_along_axis_lenient(
    x: Array, indices: Array, axis: Any = 0, validate_indices: bool = False
) -> Array:
    return _gather_along(x, indices, axis, {"strict": False, "validate": bool(validate_indices)})


def _tuples(indices: Array, shape: tuple[int, ...], how: dict[str, bool]) -> tuple[Array, ...]:
    """Indices whose last axis holds one for each leading axis of a shape, one array for each."""
    depth = np.shape(indices)[-1] if np.ndim(indices) else 0
    if not 1 <= depth <= len(shape):
        raise ModelError(f"indices {list(np.shape(indices))} need a last axis of 1 to {len(shape)}")
    return tuple(np.moveaxis(_resolved(indices, shape[:depth], **how), -1, 0))


def _gather_nd(x: Array, indices: Array, batch_dims: Any, how: dict[str, bool]) -> Array:
    x, batch = np.asarray(x), int(batch_dims)
    if not 0 <= batch < x.ndim or batch >= np.ndim(indices):
        raise ModelError(f"batch_dims {batch} must be below the ranks of x and indices")
    if np.shape(indices)[:batch] != x.shape[:batch]:
        raise ModelError(f"indices {list(np.shape(indices))} need the batch of x {list(x.shape)}")
    places = _tuples(indices, x.shape[batch:], how)
    shape = places[0].shape + x.shape[batch + len(places) :]
    require_size(shape, "indices", x.itemsize)
    extra = (1,) * (places[0].ndim - batch)
    grid = [
        np.arange(x.shape[one]).reshape([-1 if at == one else 1 for at in range(batch)] + [*extra])
        for one in range(batch)
    ]
    return np.asarray(x[(*grid, *places)])


@define("gather_nd")
def gather_nd(x: Array, indices: Array, batch_dims: Any = 0) -> Array:
    return _gather_nd(x, indices, batch_dims, {"strict": True, "validate": False})


@define("gather_nd", "ios17")
def gather_nd_lenient(
    x: Array, indices: Array, batch_dims: Any = 0, validate_indices: bool = False
) -> Array:
    how = {"strict": False, "validate": bool(validate_indices)}
    return _gather_nd(x, indices, batch_dims, how)


_MODES: dict[str, np.ufunc] = {
    "add": np.add,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "sub": np.subtract,
}


def _combine(data: Array, where: tuple[Any, ...], updates: Array, mode: str) -> Array:
    """A copy of data with updates at an index. Every mode but update counts repeated indices."""
    result = np.array(widen(data))
    expected = np.shape(result[where])
    if np.shape(updates) != expected:
        raise ModelError(f"updates {list(np.shape(updates))} need the shape {list(expected)}")
    given = widen(updates)
    if mode == "update":
        result[where] = given
    elif mode == "div" and result.dtype.kind in "iu":
        real = result.astype(np.float64)
        np.divide.at(real, where, given)
        result = real.astype(result.dtype)
    elif mode in _MODES:
        _MODES[mode].at(result, where, given.astype(result.dtype))
    else:
        raise ModelError(f"mode {mode!r} is unknown: give update, {', '.join(_MODES)}")
    return result


def _scatter(
    data: Array, indices: Array, updates: Array, axis: Any, mode: str, how: dict[str, bool]
) -> Array:
    data = np.asarray(data)
    where = axis_of(axis, data.ndim)
    safe = _resolved(indices, data.shape[where], **how)
    return _combine(data, (slice(None),) * where + (safe,), updates, mode)


def _scatter_along(
    data: Array, indices: Array, updates: Array, axis: Any, mode: str, how: dict[str, bool]
) -> Array:
    data = np.asarray(data)
    where = axis_of(axis, data.ndim)
    _require_along(data, indices, where)
    safe = _resolved(indices, data.shape[where], **how)
    grid: list[Array] = list(np.indices(safe.shape, sparse=True))
    grid[where] = safe
    return _combine(data, tuple(grid), updates, mode)


def _scatter_nd(
    data: Array, indices: Array, updates: Array, mode: str, how: dict[str, bool]
) -> Array:
    data = np.asarray(data)
    return _combine(data, _tuples(indices, data.shape, how), updates, mode)


def _define_scatter(name: str, function: Function) -> None:
    def strict(**inputs: Any) -> Array:
        inputs.setdefault("mode", "add")
        return np.asarray(function(**inputs, how={"strict": True, "validate": False}))

    def lenient(validate_indices: bool = False, **inputs: Any) -> Array:
        inputs.setdefault("mode", "add")
        how = {"strict": False, "validate": bool(validate_indices)}
        return np.asarray(function(**inputs, how=how))

    define(name)(strict)
    define(name, "ios17")(lenient)


def _axis_first(function: Function) -> Function:
    def with_axis(axis: Any = 0, **inputs: Any) -> Any:
        return function(axis=axis, **inputs)

    return with_axis


_define_scatter("scatter", _axis_first(_scatter))
_define_scatter("scatter_along_axis", _axis_first(_scatter_along))
_define_scatter("scatter_nd", _scatter_nd)
