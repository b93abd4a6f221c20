"""Convolutions and pooling, whose gradients are convolutions and shifted copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.arrays.shape import Shape
from lbrx.ops.convolution import Window, pooling, window
from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import ones


def _conv2d(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Mapping[str, Tensor | None]:
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    place = window(x.shape, (weight.shape[2], weight.shape[3]), given)
    return {
        "x": _of_images(g, weight, x.shape, place, groups),
        "weight": _of_filters(g, x, weight.shape, place, groups),
        "bias": None if bias is None else g.sum(axis=(0, 2, 3)),
    }


def _of_images(g: Tensor, weight: Tensor, shape: Shape, place: Window, groups: int) -> Tensor:
    """The gradient, with zeros between its places, under the filters turned by half a circle."""
    filters, channels, height, width = weight.shape
    turned = weight.flip((2, 3)).reshape(groups, filters // groups, channels, height, width)
    turned = turned.swapaxes(1, 2).reshape(groups * channels, filters // groups, height, width)
    wide = with_gaps(g, place.stride)
    widths = []
    for axis in (0, 1):
        reach = (place.size[axis] - 1) * place.dilation[axis]
        before = reach - place.before[axis]
        after = shape[2 + axis] + reach - before - wide.shape[2 + axis]
        widths.append((before, after))
    return call("conv2d", widened(wide, widths), turned, dilation=place.dilation, groups=groups)


def _of_filters(g: Tensor, x: Tensor, shape: Shape, place: Window, groups: int) -> Tensor:
    """One product: the gradient of each filter times what each of its elements has met, which are
    shifted copies of the images."""
    filters, channels, *size = shape
    around = _padded(x, _around(place)).swapaxes(0, 1)
    met = [part.reshape(groups, 1, channels, -1) for part, _ in _shifts(around, place)]
    columns = call("concat", *met, axis=1).reshape(groups, len(met) * channels, -1)
    own = g.swapaxes(0, 1).reshape(groups, filters // groups, -1)
    products = (own @ columns.mT).reshape(filters, *size, channels)
    return products.permute(0, 3, 1, 2)


def with_gaps(g: Tensor, stride: tuple[int, int]) -> Tensor:
    """Zeros between the elements of the last two axes, for windows that moved by more than one."""
    if stride == (1, 1):
        return g
    images, channels, height, width = g.shape
    down, right = stride
    spread = g.reshape(images, channels, height, 1, width, 1)
    spread = _padded(spread, ((0, 0), (0, 0), (0, 0), (0, down - 1), (0, 0), (0, right - 1)))
    whole = spread.reshape(images, channels, height * down, width * right)
    return whole[:, :, : (height - 1) * down + 1, : (width - 1) * right + 1]


def widened(x: Tensor, widths: list[tuple[int, int]]) -> Tensor:
    """Zeros around the last two axes; a negative width leaves elements out."""
    slices = [
        slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape[2:], strict=True)
    ]
    kept = x[(..., *slices)]
    return _padded(kept, ((0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in widths)))


def _padded(x: Tensor, widths: Any, value: float = 0.0) -> Tensor:
    if not any(itertools.chain(*widths)):
        return x
    return call("pad", x, widths=tuple(widths), value=value)


# ---- pooling ----


def _max_pool2d(
    g: Tensor, x: Tensor, output: Tensor, kernel_size: Any, stride: Any, padding: Any
) -> Tensor:
    """The gradient of each window at its first largest element, as it is found row by row."""
    place = _place(x.shape, kernel_size, stride, padding)
    around = _padded(x, _around(place), -math.inf)
    parts = [part for part, _ in _shifts(around, place)]
    first: Tensor | int = -1  # where a window has NaN alone
    for i in reversed(range(len(parts))):
        first = call("where", call("equal", parts[i], output), i, first)
    shares = [call("where", call("equal", first, i), g, 0) for i in range(len(parts))]
    return _inside(_put_all(shares, around.shape, place), place, x.shape)


def _avg_pool2d(
    g: Tensor,
    shapes: list[Shape],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    count_include_pad: bool,
) -> Tensor:
    place = _place(shapes[0], kernel_size, stride, padding)
    own = g / float(math.prod(place.size))
    if not count_include_pad:
        rule = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
        # The share of each window that is not padding.
        own = own / call("avg_pool2d", ones((1, 1, *shapes[0][2:]), g.dtype, g.device), **rule)
    padded = [n + a + b for n, a, b in zip(shapes[0][2:], place.before, place.after, strict=True)]
    whole = _put_all([own] * math.prod(place.size), (*shapes[0][:2], *padded), place)
    return _inside(whole, place, shapes[0])


def _place(shape: Shape, kernel_size: Any, stride: Any, padding: Any) -> Window:
    given = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
    return pooling(shape, given)


def _around(place: Window) -> tuple[tuple[int, int], ...]:
    return ((0, 0), (0, 0), *zip(place.before, place.after, strict=True))


def _slices(place: Window) -> Iterator[tuple[slice, slice]]:
    """For each element of the window, where it is at all places."""
    axes = tuple(zip(place.size, place.dilation, place.stride, place.results, strict=True))
    yield from itertools.product(
        *(
            [slice(i * gap, i * gap + (count - 1) * step + 1, step) for i in range(size)]
            for size, gap, step, count in axes
        )
    )


def _shifts(x: Tensor, place: Window) -> Iterator[tuple[Tensor, tuple[slice, slice]]]:
    for slices in _slices(place):
        yield x[(..., *slices)], slices


def _put_all(shares: list[Tensor], shape: Shape, place: Window) -> Tensor:
    """The sum of what each element of the window gives to all places."""
    if place.stride == place.size:
        return _side_by_side(shares, shape, place)
    total: Tensor | None = None
    for share, slices in zip(shares, _slices(place), strict=True):
        total = _sum(total, _put(share, shape, slices))
    assert total is not None
    return total


def _side_by_side(shares: list[Tensor], shape: Shape, place: Window) -> Tensor:
    """The same where windows do not overlap: rows of neighbouring elements, one below another."""
    rows, columns = place.size
    images, channels, height, width = shares[0].shape
    ends = [share.unsqueeze(-1) for share in shares]
    lines = [
        call("concat", *ends[i : i + columns], axis=-1).reshape(images, channels, height, 1, -1)
        for i in range(0, rows * columns, columns)
    ]
    whole = call("concat", *lines, axis=3)
    whole = whole.reshape(images, channels, height * rows, width * columns)
    left = [(0, shape[2] - whole.shape[2]), (0, shape[3] - whole.shape[3])]
    return widened(whole, left)


def _put(values: Tensor, shape: Shape, slices: tuple[slice, slice]) -> Tensor:
    """Values at slices of the last two axes of zeros."""
    wide = with_gaps(values, (slices[0].step, slices[1].step))
    widths = [(part.start, n - part.stop) for part, n in zip(slices, shape[2:], strict=True)]
    return widened(wide, widths)


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def _inside(padded: Tensor, place: Window, shape: Shape) -> Tensor:
    (top, left), (height, width) = place.before, shape[2:]
    return padded[:, :, top : top + height, left : left + width]


differentiable("conv2d", _conv2d)
differentiable("max_pool2d", x=_max_pool2d)
differentiable("avg_pool2d", x=_avg_pool2d)
