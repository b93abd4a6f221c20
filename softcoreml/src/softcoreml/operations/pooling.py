"""Poolings, one spatial axis after the other. Sums are taken in float32."""

from __future__ import annotations

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    define,
    integers,
    require_rank,
    require_size,
    widen,
)
from softcoreml.operations.windows import Windows, windows_of

_UNROLLED = 64
"""Windows up to this size are combined place by place over whole tensors, longer ones singly."""


def _pooled(x: Array, windows: Windows, padding: float, combine: np.ufunc) -> Array:
    """Every window of x (batch, channels, spatial...) combined to one value."""
    result = windows.padded(x, padding)
    for axis, (size, stride, count) in enumerate(
        zip(windows.sizes, windows.strides, windows.outputs, strict=True), start=2
    ):
        ahead = (slice(None),) * axis
        end = (count - 1) * stride + 1
        if size > _UNROLLED:
            view = np.lib.stride_tricks.sliding_window_view(result, size, axis=axis)
            result = combine.reduce(view[(*ahead, slice(0, end, stride))], axis=-1)
            continue
        total = result[(*ahead, slice(0, end, stride))].copy()
        for place in range(1, size):
            combine(total, result[(*ahead, slice(place, place + end, stride))], out=total)
        result = total
    return result


def _counts(windows: Windows, spatial: tuple[int, ...], only_inside: bool) -> Array:
    """The elements of x, or of x and its padding, that each window covers."""
    counts: Array = np.ones((), dtype=np.float32)
    for size, stride, pads, number, length in zip(
        windows.sizes, windows.strides, windows.pads, windows.outputs, spatial, strict=True
    ):
        first = np.arange(number) * stride - pads[0]
        last = np.minimum(first + size, length if only_inside else length + pads[1])
        covered = last - (np.maximum(first, 0) if only_inside else first)
        counts = counts[..., None] * covered.astype(np.float32)
    return counts


def _windows(
    x: Array,
    kernel_sizes: Array,
    strides: Array | None,
    pad_type: str,
    pad: Array | None,
    ceil_mode: bool,
) -> Windows:
    require_rank(x, "x", 3, 4, 5)
    kernel = integers(kernel_sizes, "kernel_sizes", x.ndim - 2)
    if ceil_mode and str(pad_type).lower() in ("same", "same_lower"):
        raise ModelError(f"ceil_mode must be false with pad_type {pad_type!r}")
    windows = windows_of(x.shape[2:], kernel, strides, None, pad_type, pad, bool(ceil_mode))
    require_size((*x.shape[:2], *windows.outputs), "x")
    return windows


@define("max_pool")
def max_pool(
    x: Array,
    kernel_sizes: Array,
    pad_type: str,
    strides: Array | None = None,
    pad: Array | None = None,
    ceil_mode: bool = False,
) -> Array:
    """The largest value of each window; padding counts as minus infinity."""
    x = widen(x)
    windows = _windows(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
    return _pooled(x, windows, -np.inf, np.maximum)


@define("avg_pool")
def avg_pool(
    x: Array,
    kernel_sizes: Array,
    pad_type: str,
    strides: Array | None = None,
    pad: Array | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Array:
    """The mean of each window, with or without its padding in the count.

    What a window of ceil_mode covers beyond the padding is never counted.
    """
    x = widen(x)
    windows = _windows(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
    counts = _counts(windows, x.shape[2:], bool(exclude_padding_from_average))
    return np.asarray(_pooled(x, windows, 0, np.add) / counts)


@define("l2_pool")
def l2_pool(
    x: Array,
    kernel_sizes: Array,
    pad_type: str,
    strides: Array | None = None,
    pad: Array | None = None,
    ceil_mode: bool = False,
) -> Array:
    """The square root of the sum of squares of each window."""
    x = widen(x)
    windows = _windows(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
    return np.sqrt(_pooled(np.square(x), windows, 0, np.add))
