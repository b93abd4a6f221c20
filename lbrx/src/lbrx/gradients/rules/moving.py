"""Operations that move elements, pick them by index, or sort them."""

from __future__ import annotations

import math
from typing import Any

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Shape
from lbrx.errors import GradientError
from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import zeros


def _zeros(shape: Shape, like: Tensor) -> Tensor:
    return zeros(shape, like.dtype, like.device)


def _pad(g: Tensor, shapes: list[Shape], widths: Any) -> Tensor:
    inner = zip(shapes[0], widths, strict=True)
    return g[tuple(slice(before, before + n) for n, (before, _) in inner)]


def _concat(g: Tensor, shapes: list[Shape], axis: int, at: int) -> Tensor:
    axis = sh.normalize_axis(axis, g.ndim)
    start = sum(shape[axis] for shape in shapes[:at])
    return g[(*[slice(None)] * axis, slice(start, start + shapes[at][axis]))]


def _take(g: Tensor, indices: Tensor, shapes: list[Shape], axis: int, beyond: str) -> Tensor:
    """Rows of the gradient added to those that were taken, with the axis first."""
    shape = shapes[0]
    axis = sh.normalize_axis(axis, len(shape))
    size, rest = shape[axis], (*shape[:axis], *shape[axis + 1 :])
    picked = range(axis, axis + indices.ndim)
    order = [*picked, *(i for i in range(g.ndim) if i not in picked)]
    rows = g.permute(order).reshape(math.prod(indices.shape), math.prod(rest))
    places = indices.reshape(-1, 1)
    if beyond == "zeros":
        inside = (places >= -size) & (places < size)
        places = call("where", inside, places, 0)
        rows = call("where", inside, rows, 0)
    if not size:
        return _zeros(shape, g)
    target = _zeros((size, rows.shape[1]), g)
    added = call("scatter", target, places.expand(*rows.shape), rows, axis=0, reduce="add")
    return added.reshape(size, *rest).moveaxis(0, axis)


def _gather(g: Tensor, indices: Tensor, shapes: list[Shape], axis: int) -> Tensor:
    return call("scatter", _zeros(shapes[0], g), indices, g, axis=axis, reduce="add")


def _scatter_into(
    g: Tensor, x: Tensor, indices: Tensor, updates: Tensor, output: Tensor, axis: int, reduce: str
) -> Tensor:
    if reduce == "add":
        return g
    if reduce == "set":
        return call("scatter", g, indices, updates * 0, axis=axis)
    if reduce == "multiply":
        factors = call("scatter", x * 0 + 1, indices, updates, axis=axis, reduce=reduce)
        return g * factors
    return call("where", x == output, g / _equals(x, indices, updates, output, axis), 0)


def _scattered(
    g: Tensor, x: Tensor, indices: Tensor, updates: Tensor, output: Tensor, axis: int, reduce: str
) -> Tensor:
    own = call("gather", g, indices, axis=axis)
    if reduce == "add":
        return own
    if reduce == "set":
        return call("where", _is_last(x, indices, axis), own, 0)
    if reduce == "multiply":
        raise GradientError(
            'the updates of scatter(reduce="multiply") have no gradient: '
            "multiply by a tensor of factors, or use stop_gradient"
        )
    share = call("gather", g / _equals(x, indices, updates, output, axis), indices, axis=axis)
    return call("where", updates == call("gather", output, indices, axis=axis), share, 0)


def _is_last(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Whether an update is the one that `set` keeps of those of the same element."""
    from lbrx.tensors.creation import arange

    order = arange(indices.size, device=x.device).reshape(indices.shape)
    kept = call("scatter", (x * 0).astype(order.dtype), indices, order, axis=axis)
    return call("equal", call("gather", kept, indices, axis=axis), order)


def _equals(x: Tensor, indices: Tensor, updates: Tensor, output: Tensor, axis: int) -> Tensor:
    """How many of an element and its updates are equal to the result."""
    same = updates == call("gather", output, indices, axis=axis)
    first = (x == output).astype(output.dtype)
    counted = call("scatter", first, indices, same.astype(output.dtype), axis=axis, reduce="add")
    return call("where", counted == 0, 1, counted)


def _sort(g: Tensor, x: Tensor, axis: int, descending: bool) -> Tensor:
    order = call("argsort", x, axis=axis, descending=descending)
    return call("scatter", _zeros(x.shape, g), order, g, axis=axis)


def _topk(g: tuple[Tensor, None], output: Any, shapes: list[Shape], axis: int) -> Tensor:
    return call("scatter", _zeros(shapes[0], g[0]), output[1], g[0], axis=axis)


differentiable("pad", x=_pad)
differentiable("concat", tensors=_concat)
differentiable("take", x=_take)
differentiable("gather", x=_gather)
differentiable("scatter", x=_scatter_into, updates=_scattered)
differentiable("sort", x=_sort)
differentiable("topk", x=_topk)
