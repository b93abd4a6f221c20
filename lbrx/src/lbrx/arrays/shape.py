"""Shapes, and views as pure functions on (shape, strides, offset) records.

Strides and offsets count elements, not bytes: that is what a kernel indexes with.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from types import EllipsisType
from typing import Any

from lbrx.errors import ShapeError

Shape = tuple[int, ...]
Axes = int | Sequence[int] | None
KNOWN = 4096  # entries of the caches of layouts
Sizes = int | Sequence[int]
MOST_ELEMENTS = (1 << 63) // 8 - 1  # with 8 bytes each, numpy's and Metal's sizes hold them
BasicIndex = int | slice | EllipsisType | None


@dataclass(frozen=True)
class Layout:
    """Which elements of a storage a tensor shows, and in which order."""

    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in row-major order."""
        if self.size == 0:
            return True
        expected = contiguous_strides(self.shape)
        if self.strides == expected:
            return True
        dims = zip(self.shape, self.strides, expected, strict=True)
        return all(n == 1 or stride == wanted for n, stride, wanted in dims)

    def bounds(self) -> tuple[int, int]:
        """The half-open range of elements that the view can touch."""
        if self.size == 0:
            return self.offset, self.offset
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(r for r in reach if r < 0)
        return low, self.offset + sum(r for r in reach if r > 0) + 1


def as_shape(given: Sizes) -> Shape:
    """A shape from one size or several."""
    each: Any = given
    if not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        each = (given,)  # a scalar array or tensor can be iterated over only in name
    sizes = tuple(map(operator.index, each))
    if any(n < 0 for n in sizes):
        raise ShapeError(f"shape {sizes} has a negative size: sizes are 0 or more")
    return representable(sizes)


def representable(shape: Shape) -> Shape:
    """The shape itself. Raises ShapeError if strides or sizes in bytes would exceed 64 bits."""
    if math.prod(shape) <= MOST_ELEMENTS and 0 not in shape:
        return shape
    if math.prod(n for n in shape if n) > MOST_ELEMENTS:
        raise ShapeError(f"shape {shape} is too large: sizes may multiply to {MOST_ELEMENTS}")
    return shape


@lru_cache(KNOWN)
def contiguous_strides(shape: Shape) -> Shape:
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(int(n), 1)
    return tuple(reversed(strides))


@lru_cache(KNOWN)
def contiguous(shape: Shape, offset: int = 0) -> Layout:
    # numpy integers equal Python's as cache keys, so the cached layout must have Python's.
    return Layout(tuple(map(int, shape)), contiguous_strides(shape), offset)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of these expand to."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    result: list[int] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise ShapeError(
                f"shapes {list_of(shapes)} do not broadcast: axis {-len(result) - 1} has "
                f"{list_of(sizes)}; reshape one so that sizes agree or are 1"
            )
        result.append(wide.pop() if wide else 1)
    return tuple(reversed(result))


def list_of(items: Iterable[object]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def normalize_axis(axis: int, ndim: int) -> int:
    """The axis counted from 0. Raises ShapeError if there is none, TypeError for another type."""
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis={axis!r} is not an axis: give one integer") from None
    if not -ndim <= axis < ndim:
        valid = f"give one from {-ndim} to {ndim - 1}" if ndim else "a scalar has no axes"
        raise ShapeError(f"axis {axis} does not exist in {ndim} dimensions: {valid}")
    return axis % ndim


def normalize_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Axes from 0 in ascending order; None is all of them."""
    if axes is None:
        return tuple(range(ndim))
    several = axes if isinstance(axes, Sequence) else (axes,)
    result = tuple(sorted(normalize_axis(axis, ndim) for axis in several))
    if len(set(result)) != len(result):
        raise ShapeError(f"axes {tuple(several)} name an axis twice: give each once")
    return result


def reduced(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """The shape after a reduction over these axes."""
    gone = normalize_axes(axes, len(shape))
    if keepdims:
        return tuple(1 if i in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def resolve(shape: Sequence[int], size: int) -> Shape:
    """Fill in the one -1 of a requested shape, and check that it holds `size` elements."""
    wanted = tuple(shape)
    known = math.prod(n for n in wanted if n != -1)
    if wanted.count(-1) == 1 and known and size % known == 0:
        wanted = tuple(size // known if n == -1 else n for n in wanted)
    if any(n < 0 for n in wanted) or math.prod(wanted) != size:
        raise ShapeError(
            f"{size} elements cannot take the shape {tuple(shape)}: "
            "sizes must multiply to that number, with at most one -1"
        )
    return representable(wanted)


def reshape(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The same elements in another shape, or None where that needs a copy."""
    wanted = resolve(shape, layout.size)
    if layout.size == 0:
        return contiguous(wanted, layout.offset)
    runs = _runs(layout)
    left, step = 1, 1
    strides = []
    for n in reversed(wanted):
        if n > 1 and left == 1:
            left, step = runs.pop()
        if left % n:
            return None
        strides.append(step)
        left, step = left // n, step * n
    return Layout(wanted, tuple(reversed(strides)), layout.offset)


def _runs(layout: Layout) -> list[tuple[int, int]]:
    """(size, stride) of the fewest axes that visit the elements in the same order."""
    runs: list[tuple[int, int]] = []
    for n, stride in zip(layout.shape, layout.strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * stride:
            runs[-1] = (runs[-1][0] * n, stride)
        else:
            runs.append((n, stride))
    return runs


def permute(layout: Layout, axes: Sequence[int]) -> Layout:
    order = tuple(normalize_axis(axis, layout.ndim) for axis in axes)
    if sorted(order) != list(range(layout.ndim)):
        raise ShapeError(
            f"axes {tuple(axes)} do not permute shape {layout.shape}: "
            f"name each of its {layout.ndim} axes once"
        )
    shape = tuple(layout.shape[axis] for axis in order)
    return Layout(shape, tuple(layout.strides[axis] for axis in order), layout.offset)


def transpose(layout: Layout, first: int, second: int) -> Layout:
    """Swap two axes."""
    order = list(range(layout.ndim))
    a, b = normalize_axis(first, layout.ndim), normalize_axis(second, layout.ndim)
    order[a], order[b] = b, a
    return permute(layout, order)


def expand(layout: Layout, shape: Sequence[int]) -> Layout:
    """Broadcast to a shape: repeated axes get stride 0. A size of -1 stays as it is."""
    if layout.shape == shape:
        return layout
    extra = len(shape) - layout.ndim
    old = (1,) * extra + layout.shape
    wanted = tuple(o if n == -1 else n for o, n in zip(old, shape, strict=False))
    fits = all(o in (n, 1) for o, n in zip(old, wanted, strict=False))
    if extra < 0 or not fits or min(wanted, default=0) < 0:
        raise ShapeError(
            f"shape {layout.shape} does not expand to {tuple(shape)}: "
            "only axes of size 1 and new leading axes can grow"
        )
    representable(wanted)
    strides = (0,) * extra + layout.strides
    kept = zip(old, wanted, strides, strict=True)
    return Layout(wanted, tuple(s if o == n else 0 for o, n, s in kept), layout.offset)


def squeeze(layout: Layout, axes: Axes = None) -> Layout:
    """Drop axes of size 1: those named, or all."""
    if axes is None:
        axes = [i for i, n in enumerate(layout.shape) if n == 1]
    gone = normalize_axes(axes, layout.ndim)
    if wide := [axis for axis in gone if layout.shape[axis] != 1]:
        raise ShapeError(
            f"axis {wide[0]} of shape {layout.shape} cannot be squeezed: its size is not 1"
        )
    kept = [i for i in range(layout.ndim) if i not in gone]
    shape = tuple(layout.shape[i] for i in kept)
    return Layout(shape, tuple(layout.strides[i] for i in kept), layout.offset)


def unsqueeze(layout: Layout, axis: int) -> Layout:
    """Insert an axis of size 1 so that it becomes `axis` of the result."""
    at = normalize_axis(axis, layout.ndim + 1)
    shape = (*layout.shape[:at], 1, *layout.shape[at:])
    return Layout(shape, (*layout.strides[:at], 0, *layout.strides[at:]), layout.offset)


def expand_ellipsis(key: Sequence[object], ndim: int, used: int) -> list[object]:
    """The key with `...` written out, for a shape of `ndim` axes of which the key names `used`."""
    if used > ndim:
        raise IndexError(f"{used} indices for {ndim} dimensions: leave {used - ndim} out")
    at = [i for i, item in enumerate(key) if item is Ellipsis]
    if len(at) > 1:
        raise IndexError("an index can have only one ellipsis ('...')")
    start = at[0] if at else len(key)
    rest = key[start + 1 :] if at else ()
    return [*key[:start], *[slice(None)] * (ndim - used), *rest]


def index(layout: Layout, key: Sequence[BasicIndex]) -> Layout:
    """Integers drop an axis, slices narrow it, None inserts one, `...` is all other axes."""
    used = sum(item is not None and item is not Ellipsis for item in key)
    shape: list[int] = []
    strides: list[int] = []
    offset = layout.offset
    axis = 0
    for item in expand_ellipsis(key, layout.ndim, used):
        if item is None:
            shape.append(1)
            strides.append(0)
            continue
        n, stride = layout.shape[axis], layout.strides[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(n)
            count = len(range(start, stop, step))
            offset += start * stride if count else 0
            shape.append(count)
            strides.append(step * stride)
        else:
            assert isinstance(item, int)
            if not -n <= item < n:
                raise IndexError(f"index {item} is beyond axis {axis} of shape {layout.shape}")
            offset += item % n * stride
        axis += 1
    # An empty view keeps its offset: the other axes could move it out of the storage.
    return Layout(tuple(shape), tuple(strides), layout.offset if 0 in shape else offset)
