"""Resizing, cropping and resampling of images (..., height, width), in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    define,
    integers,
    like,
    require_size,
    widen,
)


def _strict(first: float, last: float, count: int) -> Array:
    return np.linspace(first, last, count)


def _aligned(first: float, last: float, count: int) -> Array:
    return np.array([(first + last) / 2]) if count == 1 else np.linspace(first, last, count)


def _default(first: float, last: float, count: int) -> Array:
    return first + np.arange(count) * ((last - first + 1) / count)


def _offset(first: float, last: float, count: int) -> Array:
    return first + (np.arange(count) + 0.5) * (max(1.0, last - first) / count)


def _unaligned(first: float, last: float, count: int) -> Array:
    return first + (np.arange(count) + 0.5) * ((last - first + 1) / count) - 0.5


_SAMPLING: dict[str, Callable[[float, float, int], Array]] = {
    "STRICT_ALIGN_CORNERS": _strict,
    "ALIGN_CORNERS": _aligned,
    "DEFAULT": _default,
    "OFFSET_CORNERS": _offset,
    "UNALIGN_CORNERS": _unaligned,
}
"""Where `count` points lie in the interval from the first to the last element."""


def sampling_of(mode: str) -> Callable[[float, float, int], Array]:
    found = _SAMPLING.get(str(mode))
    if found is None:
        raise ModelError(f"sampling_mode {mode!r} is unknown: give one of {', '.join(_SAMPLING)}")
    return found


def _points(length: int, count: int, mode: str) -> Array:
    """The points of a resized axis, within its elements."""
    return np.clip(sampling_of(mode)(0, length - 1, count), 0, length - 1)


def _interpolated(x: Array, axis: int, points: Array) -> Array:
    """Linear interpolation along one axis at points within it."""
    low = np.minimum(np.floor(points).astype(np.intp), x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    part = (points - low).astype(np.float32)
    shape = [-1 if one == axis else 1 for one in range(x.ndim)]
    left, right = np.take(x, low, axis), np.take(x, high, axis)
    return np.asarray(left + (right - left) * part.reshape(shape))


def _require_image(x: Array, least: int = 3) -> Array:
    x = widen(x)
    if x.ndim < least or 0 in x.shape[-2:]:
        raise ModelError(f"x {list(x.shape)} must have rank {least} or more, and pixels")
    return x


def _require_target(x: Array, sizes: dict[int, int]) -> None:
    """Refuse new sizes of some axes that are not positive or too large."""
    final = [sizes.get(axis, length) for axis, length in enumerate(x.shape)]
    if any(count < 1 for count in sizes.values()):
        raise ModelError(f"the target size {final} must be at least 1 everywhere")
    require_size(final, "the target size", x.itemsize)


def _resize(x: Array, sizes: dict[int, int], points: Callable[[int, int], Array]) -> Array:
    """x interpolated along axes, smallest results first."""
    _require_target(x, sizes)
    for axis in sorted(sizes, key=lambda one: sizes[one] / x.shape[one]):
        x = _interpolated(x, axis, points(x.shape[axis], sizes[axis]))
    return x


def _nearest(x: Array, sizes: dict[int, int], index: Callable[[int, int], Array]) -> Array:
    _require_target(x, sizes)
    for axis, count in sizes.items():
        x = np.take(x, index(x.shape[axis], count), axis)
    return x


def _floor_index(length: int, count: int) -> Array:
    return np.arange(count) * length // count


def _centre_index(length: int, count: int) -> Array:
    """The element in which the centre of each target element lies."""
    return (2 * np.arange(count) + 1) * length // (2 * count)


def _scaled_sizes(x: Array, height: Any, width: Any) -> dict[int, int]:
    """The last two axes by factors, rounded down; factors are integers or float32."""
    sizes = {}
    for axis, factor in ((x.ndim - 2, height), (x.ndim - 1, width)):
        exact = np.asarray(factor)
        whole = exact.dtype.kind in "iu"
        size = (exact.astype(np.int64) if whole else np.float32(exact)) * x.shape[axis]
        if not np.isfinite(size) or not 1 <= size < 2**31:
            raise ModelError(f"a scale factor of {factor} does not fit x {list(x.shape)}")
        sizes[axis] = int(size)
    return sizes


@define("upsample_nearest_neighbor")
def upsample_nearest_neighbor(
    x: Array, scale_factor_height: Any = 1, scale_factor_width: Any = 1
) -> Array:
    """Element i of the result is element floor(i * old size / new size), as in PyTorch."""
    x = _require_image(x)
    return _nearest(x, _scaled_sizes(x, scale_factor_height, scale_factor_width), _floor_index)


@define("resize_nearest_neighbor")
def resize_nearest_neighbor(x: Array, target_size_height: Any, target_size_width: Any) -> Array:
    """The element nearest to each target element's centre, as TensorFlow's half-pixel centres."""
    x = _require_image(x)
    sizes = {x.ndim - 2: int(target_size_height), x.ndim - 1: int(target_size_width)}
    return _nearest(x, sizes, _centre_index)


def _upsample(x: Array, height: Any, width: Any, mode: str) -> Array:
    x = _require_image(x)
    sizes = _scaled_sizes(x, height, width)
    return _resize(x, sizes, lambda length, count: _points(length, count, mode))


@define("upsample_bilinear")
def upsample_bilinear(
    x: Array,
    scale_factor_height: Any = 1,
    scale_factor_width: Any = 1,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Array:
    """The factor is computed again from the sizes; half_pixel_centers is there from iOS 16 on."""
    half = not align_corners if half_pixel_centers is None else bool(half_pixel_centers)
    if align_corners and half:
        raise ModelError("align_corners and half_pixel_centers cannot both be true")
    mode = "STRICT_ALIGN_CORNERS" if align_corners else "UNALIGN_CORNERS" if half else "DEFAULT"
    return _upsample(x, scale_factor_height, scale_factor_width, mode)


@define("resize_bilinear")
def resize_bilinear(
    x: Array,
    target_size_height: Any = 1,
    target_size_width: Any = 1,
    sampling_mode: str = "DEFAULT",
) -> Array:
    x = _require_image(x)
    sizes = {x.ndim - 2: int(target_size_height), x.ndim - 1: int(target_size_width)}
    return _resize(x, sizes, lambda length, count: _points(length, count, sampling_mode))


@define("resize", "ios17")
def resize(
    x: Array,
    shape: Array,
    resized_dims: Any,
    interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Array:
    """The last resized_dims axes get the last sizes of shape, where 0 keeps the size of x."""
    wanted, count = integers(shape, "shape"), int(resized_dims)
    x = np.asarray(x)
    if not 0 <= count <= len(wanted) <= x.ndim or 0 in x.shape:
        raise ModelError(f"shape {list(wanted)} does not give {count} axes of x {list(x.shape)}")
    sizes = {axis: wanted[axis - x.ndim] or x.shape[axis] for axis in range(x.ndim - count, x.ndim)}
    if interpolation_mode == "LINEAR":
        resized = _resize(widen(x), sizes, lambda old, new: _points(old, new, sampling_mode))
        return like(resized, x)
    if interpolation_mode != "NEAREST_NEIGHBOR":
        raise ModelError(
            f"interpolation_mode {interpolation_mode!r} is not LINEAR or NEAREST_NEIGHBOR"
        )
    sampling_of(sampling_mode)
    if sampling_mode in ("DEFAULT", "UNALIGN_CORNERS"):
        return _nearest(x, sizes, _centre_index)

    def rounded(old: int, new: int) -> Array:
        return np.floor(_points(old, new, sampling_mode) + 0.5).astype(np.intp)

    return _nearest(x, sizes, rounded)


@define("crop")
def crop(x: Array, crop_height: Array, crop_width: Array) -> Array:
    """Without the given rows at the top and bottom, and columns at the left and right."""
    x = np.asarray(x)
    if x.ndim < 3:
        raise ModelError(f"x must have rank 3 or more, not shape {list(x.shape)}")
    index: list[Any] = []
    for axis, sides, name in ((-2, crop_height, "crop_height"), (-1, crop_width, "crop_width")):
        before, after = integers(np.asarray(sides).reshape(-1), name, 2)
        if before < 0 or after < 0 or before + after > x.shape[axis]:
            raise ModelError(f"{name} {[before, after]} exceeds the {x.shape[axis]} pixels of x")
        index.append(slice(before, x.shape[axis] - after))
    return x[(..., *index)]
