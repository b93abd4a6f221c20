"""Axes moved, tensors cut and joined, elements repeated."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Axes, Shape, Sizes, as_shape, normalize_axes, normalize_axis
from lbrx.errors import DtypeError, ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import concat
from lbrx.tensors.functions.arguments import as_tensor, as_tensors
from lbrx.tensors.tensor_like import TensorLike

# ---- shapes and axes ----


def reshape(x: TensorLike, /, shape: Sizes, *, copy: bool | None = None) -> Tensor:
    """Another shape, in which one size may be -1: a view where the strides permit, else a copy.

    copy=True always copies; copy=False raises ValueError where a copy would be needed.
    """
    operand = as_tensor(x)
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if copy is False and sh.reshape(operand.array.layout, sizes) is None:
        raise ValueError(f"strides {operand.array.layout.strides} need a copy: leave copy=None")
    result = operand.reshape(sizes)
    return call("copy", result) if copy else result


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that tensors of these shapes broadcast to; ShapeError if they do not."""
    return sh.broadcast(*map(as_shape, shapes))


def permute_dims(x: TensorLike, /, axes: Sequence[int]) -> Tensor:
    """The axes in the given order, as a view."""
    return as_tensor(x).permute(*axes)


def transpose(
    x: TensorLike, /, *order: int | Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    """A view with the axes in another order; all of them reversed if none are given.

    `axes`, or one sequence, is a permutation of all axes, as in numpy. Two integers swap these two
    axes, as in torch.

    >>> x = lbrx.zeros((2, 3, 4))
    >>> lbrx.transpose(x).shape, lbrx.transpose(x, (1, 2, 0)).shape, lbrx.transpose(x, 0, 1).shape
    ((4, 3, 2), (3, 4, 2), (3, 2, 4))
    """
    if axes is not None and order:
        raise TypeError(f"transpose by {order} and axes={axes}: give one of them")
    return as_tensor(x).transpose(*(order if axes is None else (tuple(axes),)))


def matrix_transpose(x: TensorLike, /) -> Tensor:
    """The last two axes swapped, as a view."""
    matrices = as_tensor(x)
    if matrices.ndim < 2:
        raise ShapeError(f"matrix_transpose of shape {matrices.shape}: it needs two axes or more")
    return swapaxes(matrices, -2, -1)


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Two axes swapped, as a view."""
    operand = as_tensor(x)
    return operand.view(sh.transpose(operand.array.layout, axis1, axis2))


def moveaxis(x: TensorLike, source: Sizes, destination: Sizes, /) -> Tensor:
    """Axes moved to other places, as a view; the rest keep their order."""
    operand = as_tensor(x)
    sources, targets = (_listed(axes, operand.ndim) for axes in (source, destination))
    if len(sources) != len(targets):
        raise ShapeError(
            f"moveaxis from {tuple(sources)} to {tuple(targets)}: give as many places as axes"
        )
    order = [axis for axis in range(operand.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return operand.permute(*order)


def _listed(axes: Sizes, ndim: int) -> list[int]:
    """Axes from 0, in the order given."""
    several = axes if isinstance(axes, Sequence) else (axes,)
    normalize_axes(tuple(several), ndim)  # none twice
    return [normalize_axis(axis, ndim) for axis in several]


def expand_dims(x: TensorLike, /, axis: Sizes = 0) -> Tensor:
    """New axes of size 1 at these places of the result, as a view."""
    result = as_tensor(x)
    places = axis if isinstance(axis, Sequence) else (axis,)
    for place in normalize_axes(tuple(places), result.ndim + len(places)):
        result = result.unsqueeze(place)
    return result


def squeeze(x: TensorLike, /, axis: Axes = None) -> Tensor:
    """The named axes of size 1 dropped, or all of them, as a view."""
    return as_tensor(x).squeeze(axis)


def broadcast_to(x: TensorLike, /, shape: Sizes) -> Tensor:
    """Expanded to a shape, as a view."""
    return as_tensor(x).expand(*as_shape(shape))


def broadcast_arrays(*arrays: TensorLike) -> list[Tensor]:
    """All expanded to the shape that they broadcast to, as views."""
    tensors = as_tensors(*arrays)
    shape = sh.broadcast(*(each.shape for each in tensors))
    return [each.expand(*shape) for each in tensors]


def flip(x: TensorLike, /, axis: Axes = None) -> Tensor:
    """The elements in reverse order along axes, or along all of them, as a view."""
    operand = as_tensor(x)
    axes = normalize_axes(axis, operand.ndim)
    return operand[tuple(slice(None, None, -1 if i in axes else 1) for i in range(operand.ndim))]


def roll(x: TensorLike, /, shift: Sizes, axis: Axes = None) -> Tensor:
    """Elements moved by `shift` places along axes; those beyond the end come first.

    Without axes, the elements in row-major order are moved.
    """
    operand = as_tensor(x)
    if axis is None:
        if isinstance(shift, Sequence):
            raise ShapeError(f"roll by {tuple(shift)} without axes: give one shift, or the axes")
        return roll(operand.reshape(-1), shift, axis=0).reshape(operand.shape)
    axes = axis if isinstance(axis, Sequence) else (axis,)
    shifts = shift if isinstance(shift, Sequence) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll by {tuple(shifts)} along axes {tuple(axes)}: give one for each")
    for place, by in zip((normalize_axis(a, operand.ndim) for a in axes), shifts, strict=True):
        size = operand.shape[place]
        cut = -operator.index(by) % size if size else 0
        if cut:
            parts = _between(operand, place, cut, size), _between(operand, place, 0, cut)
            operand = concat(parts, axis=place)
    return operand


def _between(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return x[(*[slice(None)] * axis, slice(start, stop))]


# ---- cut ----


def split(x: TensorLike, indices_or_sections: Sizes, axis: int = 0) -> list[Tensor]:
    """Views along an axis: equal sections, or the parts between the given indices.

    Raises ShapeError if the axis does not divide into that many sections; see `array_split`.
    """
    operand = as_tensor(x)
    if not isinstance(indices_or_sections, Sequence):
        size = operand.shape[normalize_axis(axis, operand.ndim)]
        sections = operator.index(indices_or_sections)
        if sections < 1 or size % sections:
            raise ShapeError(
                f"axis {axis} of {size} elements does not divide into {sections} equal sections: "
                "use array_split, or give the indices to cut at"
            )
    return array_split(operand, indices_or_sections, axis)


def array_split(x: TensorLike, indices_or_sections: Sizes, axis: int = 0) -> list[Tensor]:
    """As `split`, but where sections cannot be equal the first ones are one element longer."""
    operand = as_tensor(x)
    place = normalize_axis(axis, operand.ndim)
    size = operand.shape[place]
    if isinstance(indices_or_sections, Sequence):
        cuts = [operator.index(cut) for cut in indices_or_sections]
    else:
        sections = operator.index(indices_or_sections)
        if sections < 1:
            raise ShapeError(f"{sections} sections of axis {axis}: give 1 or more")
        short, longer = divmod(size, sections)
        cuts = [i * short + min(i, longer) for i in range(1, sections)]
    bounds = [0, *cuts, size]
    return [_between(operand, place, a, b) for a, b in itertools.pairwise(bounds)]


def chunk(x: TensorLike, chunks: int, axis: int = 0) -> list[Tensor]:
    """Views along an axis, each as long as the first but for a shorter last one.

    There may be fewer than `chunks`, as in torch.
    """
    operand = as_tensor(x)
    place = normalize_axis(axis, operand.ndim)
    if chunks < 1:
        raise ShapeError(f"{chunks} chunks of axis {axis}: give 1 or more")
    size = operand.shape[place]
    length = max(-(-size // chunks), 1)
    return array_split(operand, list(range(length, size, length)), place)


def unstack(x: TensorLike, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they lose, as views."""
    operand = moveaxis(as_tensor(x), axis, 0)
    return tuple(operand[i] for i in range(operand.shape[0]))


# ---- joined ----


def concatenate(arrays: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """`concat` under numpy's name."""
    return concat(arrays, axis)


def hstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors side by side: along the second axis, or the first of vectors and scalars."""
    tensors = [each.reshape(1) if each.ndim == 0 else each for each in as_tensors(*arrays)]
    return concat(tensors, axis=0 if tensors and tensors[0].ndim == 1 else 1)


def vstack(arrays: Sequence[TensorLike]) -> Tensor:
    """Tensors one above the other: along the first axis, vectors and scalars as rows."""
    return concat([each.reshape(1, -1) if each.ndim < 2 else each for each in as_tensors(*arrays)])


# ---- repeated ----


def repeat(
    x: TensorLike, repeats: int | Sequence[int] | Tensor, /, axis: int | None = None
) -> Tensor:
    """Each element, or each slice along an axis, so many times in a row.

    Without an axis, x is flattened. With several repeats there is one for each slice; the result's
    shape depends on them, so a tensor of repeats is evaluated.
    """
    operand = as_tensor(x)
    if axis is None:
        operand, axis = operand.reshape(-1), 0
    place = normalize_axis(axis, operand.ndim)
    size = operand.shape[place]
    if isinstance(repeats, int):
        if repeats < 0:
            raise ShapeError(f"repeats={repeats}: give 0 or more")
        wider = operand.unsqueeze(place + 1)
        shape = [repeats if i == place + 1 else n for i, n in enumerate(wider.shape)]
        flat = [*operand.shape[:place], size * repeats, *operand.shape[place + 1 :]]
        return wider.expand(*shape).reshape(*flat)
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu":
        raise DtypeError(f"repeats are {counts.dtype}: give integers")
    if counts.size not in (1, size) or counts.ndim > 1 or counts.min(initial=0) < 0:
        raise ShapeError(f"repeats {counts.tolist()} of {size} slices: give one each, 0 or more")
    order = np.repeat(np.arange(size), np.broadcast_to(counts, size))
    return call("take", operand, order, axis=place)


def tile(x: TensorLike, repetitions: Sizes, /) -> Tensor:
    """The whole tensor repeated along each axis; the shorter of shape and repetitions is
    filled up with ones in front."""
    operand = as_tensor(x)
    times = as_shape(repetitions)
    times = (1,) * (operand.ndim - len(times)) + times
    shape = (1,) * (len(times) - operand.ndim) + operand.shape
    pairs = list(zip(times, shape, strict=True))
    spread = operand.reshape(*(size for _, n in pairs for size in (1, n)))
    return spread.expand(*(size for pair in pairs for size in pair)).reshape(
        *(count * n for count, n in pairs)
    )


# ---- padded ----

Widths = int | Sequence[int] | Sequence[Sequence[int]]


def pad(
    x: TensorLike, /, pad_width: Widths, mode: str = "constant", *, constant_values: float = 0
) -> Tensor:
    """The tensor with elements around it.

    `pad_width` is one number, (before, after) for all axes, or a pair for each axis. Modes are
    numpy's: "constant", "edge" (the outermost element), "reflect" (mirrored, without repeating the
    outermost), "symmetric" (mirrored, repeating it) and "wrap" (from the other end).
    """
    operand = as_tensor(x)
    widths = _widths(pad_width, operand.ndim)
    if mode == "constant":
        return call("pad", operand, widths=widths, value=constant_values)
    if mode not in _PLACES:
        known = ", ".join(["'constant'", *map(repr, _PLACES)])
        raise ValueError(f"mode={mode!r} is not a way to pad: give one of {known}")
    for axis, (before, after) in enumerate(widths):
        if before or after:
            places = _padded_places(operand.shape[axis], before, after, mode)
            operand = call("take", operand, places, axis=axis)
    return operand


def _widths(given: Widths, ndim: int) -> tuple[tuple[int, int], ...]:
    widths = np.asarray(given)
    if widths.dtype.kind not in "iu" or widths.ndim > 2 or widths.min(initial=0) < 0:
        raise ShapeError(f"pad_width={given}: give integers from 0 on, a pair for each axis")
    try:
        pairs = np.broadcast_to(widths, (ndim, 2))
    except ValueError:
        raise ShapeError(
            f"pad_width={given} does not fit {ndim} axes: give (before, after) for each axis"
        ) from None
    return tuple((int(before), int(after)) for before, after in pairs)


Places = NDArray[Any]


def _mirrored(place: Places, period: int, n: int) -> Places:
    within = place % period
    last = period - 1 if period == 2 * n else period
    return np.where(within < n, within, last - within)


_PLACES: dict[str, Callable[[Places, int], Places]] = {
    "edge": lambda place, n: np.clip(place, 0, n - 1),
    "wrap": lambda place, n: place % n,
    "symmetric": lambda place, n: _mirrored(place, 2 * n, n),
    "reflect": lambda place, n: _mirrored(place, max(2 * n - 2, 1), n),
}


def _padded_places(n: int, before: int, after: int, mode: str) -> Places:
    """The element of an axis that each place of the padded axis shows."""
    if n == 0:
        raise ShapeError(f"an empty axis has no elements to pad with in mode {mode!r}")
    return _PLACES[mode](np.arange(-before, n + after), n)
