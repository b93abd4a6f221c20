"""Convolutions and pooling over the last two axes of (images, channels, height, width)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

Pair = tuple[int, int]
Sizes2 = int | Sequence[int]
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
"""One number, (height, width), ((top, bottom), (left, right)), "valid" for none, or "same" for as
many results as the input divided by the stride, rounded up."""


@dataclass(frozen=True)
class Window:
    """What a window covers and how it moves: height first, then width."""

    size: Pair
    stride: Pair
    dilation: Pair
    before: Pair
    """Padding above and left."""
    after: Pair
    """Padding below and right."""
    results: Pair
    """How many places it has."""


def window(images: Shape, size: Pair, attributes: Attributes) -> Window:
    """The window that attributes describe, over images of shape (..., height, width)."""
    stride = _pair("stride", attributes["stride"], 1)
    dilation = _pair("dilation", attributes.get("dilation", 1), 1)
    lengths = images[-2:]
    reach = tuple((n - 1) * d + 1 for n, d in zip(size, dilation, strict=True))
    pads = _padding(attributes["padding"], lengths, reach, stride)
    padded = [n + sum(pad) for n, pad in zip(lengths, pads, strict=True)]
    if any(n < r for n, r in zip(padded, reach, strict=True)):
        raise ShapeError(
            f"a window of {size} with dilation {dilation} does not fit padded images of "
            f"{tuple(padded)}: give more padding or a smaller window"
        )
    height, width = ((n - r) // step + 1 for n, r, step in zip(padded, reach, stride, strict=True))
    (top, bottom), (left, right) = pads
    return Window(size, stride, dilation, (top, left), (bottom, right), (height, width))


def _pair(name: str, given: Any, least: int) -> Pair:
    both = given if isinstance(given, Sequence) and not isinstance(given, str) else (given, given)
    pair = tuple(map(operator.index, both))
    if len(pair) != 2 or min(pair) < least:
        raise ShapeError(f"{name}={given!r}: give one integer from {least} on, or two")
    return pair[0], pair[1]


def _padding(given: Any, lengths: Shape, reach: Shape, stride: Pair) -> list[Pair]:
    """(before, after) of both axes."""
    if given == "valid":
        return [(0, 0), (0, 0)]
    if given == "same":
        extra = [
            max((-(-n // step) - 1) * step + r - n, 0)
            for n, r, step in zip(lengths, reach, stride, strict=True)
        ]
        return [(n // 2, n - n // 2) for n in extra]
    if isinstance(given, str):
        raise ValueError(f"padding={given!r}: give 'same', 'valid' or integers")
    if isinstance(given, Sequence) and any(isinstance(part, Sequence) for part in given):
        return [_pair("padding", part, 0) for part in given]
    return [(n, n) for n in _pair("padding", given, 0)]


def _four_axes(shape: Shape, name: str, axes: str) -> None:
    if len(shape) != 4:
        raise ShapeError(f"{name} has shape {shape}: give {axes}")


def convolution_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    x, weight = rules.first(shapes), rules.first(shapes[1:])
    _four_axes(x, "x", "(images, channels, height, width)")
    _four_axes(weight, "the weight", "(filters, channels / groups, height, width)")
    if 0 in weight[2:]:
        raise ShapeError(f"the weight {weight} covers nothing: give sizes from 1 on")
    groups = operator.index(attributes["groups"])
    if groups < 1 or x[1] % groups or weight[0] % groups:
        raise ShapeError(
            f"groups={groups} do not divide {x[1]} channels and {weight[0]} filters: "
            "give a divisor of both"
        )
    if weight[1] != x[1] // groups:
        raise ShapeError(
            f"the weight {weight} has {weight[1]} channels: give {x[1] // groups}, which is "
            f"{x[1]} channels in {groups} groups"
        )
    bias = shapes[2] if len(shapes) > 2 else None
    if bias is not None and bias != weight[:1]:
        raise ShapeError(f"the bias has shape {bias}: give one for each filter, {weight[:1]}")
    return (x[0], weight[0], *window(x, (weight[2], weight[3]), attributes).results)


def floating_only(promoted: Dtype, _: Attributes) -> Dtype:
    if not promoted.is_float:
        raise DtypeError(f"{promoted} values: cast to a floating type")
    return promoted


def _windows(x: NumpyArray, place: Window, fill: float) -> NumpyArray:
    """What the window covers at each place: (images, channels, results, window), as a view."""
    widths = [(0, 0), (0, 0), *zip(place.before, place.after, strict=True)]
    padded = np.pad(x, widths, constant_values=fill)
    reach = tuple((n - 1) * d + 1 for n, d in zip(place.size, place.dilation, strict=True))
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    (down, right), (rows, columns) = place.stride, place.dilation
    return seen[:, :, ::down, ::right, ::rows, ::columns]


@op(OpFamily.CONVOLUTION, convolution_shape, floating_only)
def conv2d(
    x: NumpyArray,
    weight: NumpyArray,
    bias: NumpyArray | None = None,
    *,
    stride: Sizes2 = 1,
    padding: Padding = 0,
    dilation: Sizes2 = 1,
    groups: int = 1,
) -> NumpyArray:
    """Cross-correlation of images (N, C, H, W) with filters (O, C / groups, h, w), plus a bias (O).

    Stride and dilation are one integer or (height, width). Padding is one integer, (height, width),
    ((top, bottom), (left, right)), "valid" (none) or "same" (ceil(size / stride) results). Products
    are summed in float32 and the result is rounded once.
    """
    place = window(x.shape, (weight.shape[2], weight.shape[3]), _given(stride, padding, dilation))
    seen = _windows(x.astype(np.float64), place, 0)
    filters = weight.astype(np.float64)
    channels, each = weight.shape[1], weight.shape[0] // groups
    parts = [
        np.tensordot(
            seen[:, g * channels : (g + 1) * channels],
            filters[g * each : (g + 1) * each],
            ((1, 4, 5), (1, 2, 3)),
        )
        for g in range(groups)
    ]
    result = np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)
    return result if bias is None else result + bias.astype(np.float64)[:, None, None]


def _given(stride: Any, padding: Any, dilation: Any = 1) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation}


# ---- pooling ----


def pooling(images: Shape, attributes: Attributes) -> Window:
    """The window of a pooling; its stride is its size unless given."""
    _four_axes(images, "x", "(images, channels, height, width)")
    size = _pair("kernel_size", attributes["kernel_size"], 1)
    stride = size if attributes["stride"] is None else attributes["stride"]
    return window(images, size, {**attributes, "stride": stride})


def pooled_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    x = rules.first(shapes)
    place = pooling(x, attributes)
    if any(pad >= n for pad, n in zip(place.before, place.size, strict=True)) or any(
        pad >= n for pad, n in zip(place.after, place.size, strict=True)
    ):
        raise ShapeError(
            f"padding={attributes['padding']!r} of a window of {place.size}: give less than the "
            "window, or some of its places would cover nothing"
        )
    return (*x[:2], *place.results)


@op(OpFamily.POOLING, pooled_shape, floating_only)
def max_pool2d(
    x: NumpyArray, *, kernel_size: Sizes2, stride: Sizes2 | None = None, padding: Padding = 0
) -> NumpyArray:
    """The largest element under a window over images (N, C, H, W); NaN if there is one.

    Padding does not count as an element. The stride is the window's size unless given.
    """
    attributes = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
    return np.asarray(_windows(x, pooling(x.shape, attributes), -np.inf).max(axis=(4, 5)))


@op(OpFamily.POOLING, pooled_shape, floating_only)
def avg_pool2d(
    x: NumpyArray,
    *,
    kernel_size: Sizes2,
    stride: Sizes2 | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
) -> NumpyArray:
    """The mean under a window over images (N, C, H, W), summed in float32.

    Padding counts as zeros, or not at all with count_include_pad=False. The stride is the window's
    size unless given.
    """
    attributes = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
    place = pooling(x.shape, attributes)
    total = _windows(x.astype(np.float64), place, 0).sum(axis=(4, 5))
    if count_include_pad:
        return np.asarray(total / (place.size[0] * place.size[1]))
    ones = np.ones((1, 1, *x.shape[2:]))
    return np.asarray(total / _windows(ones, place, 0).sum(axis=(4, 5)))
