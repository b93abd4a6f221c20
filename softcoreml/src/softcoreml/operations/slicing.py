"""Slices of tensors, updates of slices, windows, joining, splitting and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    axis_of,
    define,
    integers,
    positive,
    require_size,
)


def _mask(values: Array | None, name: str, rank: int) -> tuple[bool, ...]:
    if values is None:
        return (False,) * rank
    return tuple(bool(one) for one in integers(values, name, rank))


def _slices(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None,
    begin_mask: Array | None,
    end_mask: Array | None,
    squeeze_mask: Array | None,
) -> tuple[slice | int, ...]:
    """NumPy's index for MIL's: masks stand for open ends and for a single element."""
    rank = x.ndim
    starts, stops = integers(begin, "begin", rank), integers(end, "end", rank)
    steps = (1,) * rank if stride is None else integers(stride, "stride", rank)
    if 0 in steps:
        raise ModelError("stride must not be 0")
    open_starts, open_stops = (
        _mask(begin_mask, "begin_mask", rank),
        _mask(end_mask, "end_mask", rank),
    )
    single = _mask(squeeze_mask, "squeeze_mask", rank)
    index: list[slice | int] = []
    for axis in range(rank):
        start = None if open_starts[axis] else starts[axis]
        if single[axis]:
            index.append(0 if start is None else start)
        else:
            index.append(slice(start, None if open_stops[axis] else stops[axis], steps[axis]))
    return tuple(index)


@define("slice_by_index")
def slice_by_index(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    x = np.asarray(x)
    return np.asarray(x[_slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)])


@define("slice_update", "ios18")
def slice_update(
    x: Array,
    update: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    """A copy of x in which the slice holds the update, whose shape must be the slice's."""
    result = np.array(x)
    where = _slices(result, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    if np.shape(result[where]) != np.shape(update):
        raise ModelError(
            f"update has shape {list(np.shape(update))}, its slice {list(result[where].shape)}"
        )
    result[where] = update
    return result


@define("slice_by_size")
def slice_by_size(x: Array, begin: Array, size: Array) -> Array:
    """A size of -1 takes everything from begin on."""
    x = np.asarray(x)
    index = []
    sizes = integers(size, "size", x.ndim)
    for start, count, length in zip(integers(begin, "begin", x.ndim), sizes, x.shape, strict=True):
        first = start + length if start < 0 else start
        stop = length if count == -1 else first + count
        if not 0 <= first <= stop <= length:
            raise ModelError(f"begin {start} and size {count} leave an axis of {length} elements")
        index.append(slice(first, stop))
    return x[tuple(index)]


@define("sliding_windows")
def sliding_windows(x: Array, axis: Any, size: Any, stride: Any = 1) -> Array:
    """Every stride-th window along an axis, as a new axis after it."""
    x = np.asarray(x)
    where = axis_of(axis, x.ndim)
    width, step = positive((int(size), int(stride)), "size and stride")
    if width > x.shape[where]:
        raise ModelError(f"size {width} exceeds the {x.shape[where]} elements of axis {where}")
    require_size((*x.shape, width), "size", x.itemsize)
    windows = np.lib.stride_tricks.sliding_window_view(x, width, axis=where)
    windows = windows[(slice(None),) * where + (slice(None, None, step),)]
    return np.moveaxis(windows, -1, where + 1)


@define("concat")
def concat(values: tuple[Array, ...], axis: Any, interleave: bool = False) -> Array:
    """Tensors joined along an axis, in turn or element by element; scalars become a vector."""
    if not values:
        raise ModelError("values must hold at least one tensor")
    tensors = [np.asarray(one) for one in values]
    if tensors[0].ndim == 0:
        return np.stack(tensors)
    where = axis_of(axis, tensors[0].ndim)
    if not interleave:
        return np.concatenate(tensors, axis=where)
    shape = list(tensors[0].shape)
    shape[where] *= len(tensors)
    return np.stack(tensors, axis=where + 1).reshape(shape)


@define("stack")
def stack(values: tuple[Array, ...], axis: Any) -> Array:
    return np.stack([np.asarray(one) for one in values], axis=int(axis))


@define("split")
def split(
    x: Array, axis: Any, num_splits: Any = None, split_sizes: Array | None = None
) -> tuple[Array, ...]:
    """Parts of equal length, or of the given ones; always a tuple."""
    x = np.asarray(x)
    where = axis_of(axis, x.ndim)
    if split_sizes is not None:
        sizes = integers(split_sizes, "split_sizes")
        if min(sizes, default=0) < 0 or sum(sizes) != x.shape[where]:
            raise ModelError(f"split_sizes {list(sizes)} must add up to {x.shape[where]}")
        if num_splits is not None and int(num_splits) != len(sizes):
            raise ModelError(f"num_splits {num_splits} is not the number of split_sizes")
        return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=where))
    if num_splits is None:
        raise ModelError("num_splits or split_sizes must be given")
    return tuple(np.split(x, int(num_splits), axis=where))


@define("tile")
def tile(x: Array, reps: Array) -> Array:
    x = np.asarray(x)
    times = positive(integers(reps, "reps", x.ndim), "reps")
    sizes = [size * count for size, count in zip(x.shape, times, strict=True)]
    require_size(sizes, "reps", x.itemsize)
    return np.tile(x, times)


@define("pad")
def pad(x: Array, pad: Array, mode: str = "constant", constant_val: Any = 0) -> Array:
    """Pads the last axes by pairs of sizes before and after."""
    x = np.asarray(x)
    sizes = integers(pad, "pad")
    if len(sizes) % 2 or len(sizes) > 2 * x.ndim:
        raise ModelError(f"pad needs pairs for at most {x.ndim} axes, not {len(sizes)} values")
    if min(sizes, default=0) < 0:
        raise ModelError(f"pad {list(sizes)} must not be negative")
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    padded = [size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True)]
    require_size(padded, "pad", x.itemsize)
    if mode == "constant":
        return np.pad(x, pairs, constant_values=constant_val)
    if mode == "replicate":
        return np.pad(x, pairs, mode="edge")
    if mode != "reflect":
        raise ModelError(f"mode {mode!r} is unknown: give constant, reflect or replicate")
    if any(max(pair) > max(0, size - 1) for pair, size in zip(pairs, x.shape, strict=True)):
        raise ModelError(f"pad {list(sizes)} reflects more elements than x {list(x.shape)} has")
    return np.pad(x, pairs, mode="reflect")
