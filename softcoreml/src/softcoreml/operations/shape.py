"""Operations that rearrange a tensor's elements without computing anything."""

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
    integers,
    positive,
    require_rank,
    require_size,
)


@define("identity")
def identity(x: Any) -> Any:
    return x


@define("shape")
def shape_of(x: Array) -> Array:
    return np.array(np.shape(x), dtype=np.int32)


def _reshaped(x: Array, shape: list[int]) -> Array:
    """x with a shape in which one size may be -1."""
    x = np.asarray(x)
    if shape.count(-1) > 1 or any(one < -1 for one in shape):
        raise ModelError(f"shape {shape} may have one size of -1 and no other negative ones")
    known = math.prod(one for one in shape if one != -1)
    fits = x.size == known if -1 not in shape else known > 0 and x.size % known == 0
    if not fits:
        raise ModelError(f"shape {shape} does not fit the {x.size} elements of x {list(x.shape)}")
    return x.reshape([x.size // known if one == -1 else one for one in shape])


@define("reshape")
def reshape(x: Array, shape: Array) -> Array:
    """Sizes of 0 are those of x at the same place; the ranks must then be equal."""
    sizes = integers(shape, "shape")
    if 0 in sizes and len(sizes) != np.ndim(x):
        raise ModelError(f"shape {list(sizes)} with a 0 needs as many sizes as x {np.shape(x)} has")
    old = np.shape(x)
    return _reshaped(x, [one or old[place] for place, one in enumerate(sizes)])


@define("reshape", "ios17")
def reshape_from_the_right(x: Array, shape: Array) -> Array:
    """Sizes of 0 are those of x at the same place counted from the right, or 1 beyond its rank."""
    sizes = integers(shape, "shape")
    old = (1,) * max(0, len(sizes) - np.ndim(x)) + np.shape(x)
    offset = len(old) - len(sizes)
    return _reshaped(x, [one or old[offset + place] for place, one in enumerate(sizes)])


@define("reshape_like", "ios16")
def reshape_like(
    x: Array,
    ref_tensors: tuple[Array, ...],
    begins: tuple[Any, ...],
    ends: tuple[Any, ...],
    end_masks: tuple[Any, ...],
) -> Array:
    """The shape is joined from slices of the reference tensors' shapes."""
    sizes: list[int] = []
    for tensor, begin, end, open_end in zip(ref_tensors, begins, ends, end_masks, strict=True):
        sizes += np.shape(tensor)[int(begin) : None if bool(open_end) else int(end)]
    return _reshaped(x, sizes)


@define("expand_dims")
def expand_dims(x: Array, axes: Array) -> Array:
    where = axes_of(axes, np.ndim(x) + np.size(axes))
    return np.expand_dims(np.asarray(x), where)


@define("squeeze")
def squeeze(x: Array, axes: Array | None = None) -> Array:
    """Axes longer than 1 are left alone, also where they are named."""
    x = np.asarray(x)
    dropped = {one for one in axes_of(axes, x.ndim) if x.shape[one] == 1}
    return x.reshape([size for place, size in enumerate(x.shape) if place not in dropped])


@define("flatten2d")
def flatten2d(x: Array, axis: Any = 1) -> Array:
    x = np.asarray(x)
    if not -x.ndim <= int(axis) <= x.ndim:
        raise ModelError(f"axis {axis} is out of range for x {list(x.shape)}")
    return x.reshape(math.prod(x.shape[: int(axis)]), math.prod(x.shape[int(axis) :]))


@define("transpose")
def transpose(x: Array, perm: Array) -> Array:
    x = np.asarray(x)
    order = axes_of(perm, x.ndim, "perm")
    if len(order) != x.ndim:
        raise ModelError(f"perm {list(order)} needs every axis of x {list(x.shape)}")
    return x.transpose(order)


@define("reverse")
def reverse(x: Array, axes: Array | None = None) -> Array:
    return np.flip(x, axes_of(axes, np.ndim(x)))


@define("reverse_sequence")
def reverse_sequence(x: Array, lengths: Array, seq_axis: Any = 0, batch_axis: Any = 0) -> Array:
    """For each entry of the batch axis, its first lengths[i] elements in reverse order."""
    x = np.asarray(x)
    along, batch = axis_of(seq_axis, x.ndim, "seq_axis"), axis_of(batch_axis, x.ndim, "batch_axis")
    counts = np.asarray(integers(lengths, "lengths", x.shape[batch]), dtype=np.int64)
    if along == batch:
        raise ModelError(f"seq_axis and batch_axis are both {along}: they must differ")
    if counts.size and (counts.min() < 0 or counts.max() > x.shape[along]):
        raise ModelError(f"lengths must lie between 0 and the {x.shape[along]} elements of x")
    place = np.arange(x.shape[along])
    source = np.where(place < counts[:, None], counts[:, None] - 1 - place, place)
    source = source if batch < along else source.T
    sizes = [x.shape[one] if one in (along, batch) else 1 for one in range(x.ndim)]
    return np.take_along_axis(x, np.broadcast_to(source.reshape(sizes), x.shape), along)


def _require_divisible(size: int, block: int, name: str, what: str) -> None:
    if block < 1 or size % block:
        raise ModelError(f"{name} must divide the {size} {what} of x, and {block} does not")


@define("depth_to_space")
def depth_to_space(x: Array, block_size: Any) -> Array:
    """Channels are (row of the block, column of the block, channel), as in TensorFlow."""
    require_rank(x, "x", 4)
    block, (n, c, h, w) = int(block_size), x.shape
    _require_divisible(c, block * block, "the square of block_size", "channels")
    parts = x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


@define("space_to_depth")
def space_to_depth(x: Array, block_size: Any) -> Array:
    """The inverse of depth_to_space."""
    require_rank(x, "x", 4)
    block, (n, c, h, w) = int(block_size), x.shape
    _require_divisible(h, block, "block_size", "rows")
    _require_divisible(w, block, "block_size", "columns")
    parts = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


@define("pixel_shuffle")
def pixel_shuffle(x: Array, upscale_factor: Any) -> Array:
    """Channels are (channel, row of the block, column of the block), as in PyTorch."""
    require_rank(x, "x", 4)
    block, (n, c, h, w) = int(upscale_factor), x.shape
    _require_divisible(c, block * block, "the square of upscale_factor", "channels")
    parts = x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // block**2, h * block, w * block)


@define("pixel_unshuffle", "ios16")
def pixel_unshuffle(x: Array, downscale_factor: Any) -> Array:
    """The inverse of pixel_shuffle."""
    require_rank(x, "x", 4)
    block, (n, c, h, w) = int(downscale_factor), x.shape
    _require_divisible(h, block, "downscale_factor", "rows")
    _require_divisible(w, block, "downscale_factor", "columns")
    parts = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def _borders(values: Array, name: str) -> list[tuple[int, int]]:
    borders = np.asarray(values)
    if borders.shape != (2, 2) or borders.min() < 0:
        raise ModelError(f"{name} must be a 2 by 2 tensor of sizes, not {borders.tolist()}")
    return [(int(before), int(after)) for before, after in borders]


@define("space_to_batch")
def space_to_batch(x: Array, block_shape: Array, paddings: Array) -> Array:
    """The batch becomes (row of the block, column of the block, batch)."""
    require_rank(x, "x", 4)
    rows, columns = positive(integers(block_shape, "block_shape", 2), "block_shape")
    (top, bottom), (left, right) = _borders(paddings, "paddings")
    n, c = x.shape[:2]
    h, w = x.shape[2] + top + bottom, x.shape[3] + left + right
    require_size((n, c, h, w), "paddings")
    _require_divisible(h, rows, "block_shape", "padded rows")
    _require_divisible(w, columns, "block_shape", "padded columns")
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    parts = padded.reshape(n, c, h // rows, rows, w // columns, columns)
    return parts.transpose(3, 5, 0, 1, 2, 4).reshape(-1, c, h // rows, w // columns)


@define("batch_to_space")
def batch_to_space(x: Array, block_shape: Array, crops: Array) -> Array:
    """The inverse of space_to_batch, whose paddings are cropped off."""
    require_rank(x, "x", 4)
    rows, columns = positive(integers(block_shape, "block_shape", 2), "block_shape")
    (top, bottom), (left, right) = _borders(crops, "crops")
    n, c, h, w = x.shape
    _require_divisible(n, rows * columns, "block_shape", "batches")
    require_size((h * rows - top - bottom, w * columns - left - right), "crops")
    parts = x.reshape(rows, columns, n // (rows * columns), c, h, w).transpose(2, 3, 4, 0, 5, 1)
    whole = parts.reshape(n // (rows * columns), c, h * rows, w * columns)
    return whole[:, :, top : h * rows - bottom, left : w * columns - right]
