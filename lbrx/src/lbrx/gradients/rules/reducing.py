"""Reductions, and sums and products along an axis."""

from __future__ import annotations

import math
from typing import Any

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Axes, Shape
from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor, call


def kept(reduced: Tensor, shape: Shape, axis: Axes) -> Tensor:
    """A result of a reduction with its reduced axes as axes of size 1."""
    return reduced.reshape(sh.reduced(shape, axis, keepdims=True))


def _spread(g: Tensor, shape: Shape, axis: Axes) -> Tensor:
    return kept(g, shape, axis).expand(shape)


def _count(shape: Shape, axis: Axes) -> int:
    return math.prod(shape[i] for i in sh.normalize_axes(axis, len(shape)))


def _sum(g: Tensor, shapes: list[Shape], axis: Axes) -> Tensor:
    return _spread(g, shapes[0], axis)


def _mean(g: Tensor, shapes: list[Shape], axis: Axes) -> Tensor:
    return _spread(g / max(_count(shapes[0], axis), 1), shapes[0], axis)


def _var(g: Tensor, x: Tensor, axis: Axes, correction: float) -> Tensor:
    centred = x - x.mean(axis=axis, keepdims=True)
    return kept(g, x.shape, axis) * centred * (2 / max(_count(x.shape, axis) - correction, 0))


def _norm(g: Tensor, x: Tensor, output: Tensor, axis: Axes, ord: float) -> Tensor:
    own, size = kept(g, x.shape, axis), kept(output, x.shape, axis)
    if ord == math.inf:
        return _extreme(g * 1, x.abs(), output, axis) * x.sign()
    divisor = call("where", size == 0, 1, size)  # the gradient at the origin is taken as 0
    if ord == 2:
        return own * (x / divisor)
    return own * x.sign() * (x.abs() / divisor) ** (ord - 1)


def _extreme(g: Tensor, x: Tensor, output: Tensor, axis: Axes) -> Tensor:
    """The gradient of a maximum or minimum, shared by equal elements."""
    chosen = (x == kept(output, x.shape, axis)).astype(g.dtype)
    return kept(g, x.shape, axis) * chosen / chosen.sum(axis=axis, keepdims=True)


def _prod(g: Tensor, x: Tensor, axis: Axes) -> Tensor:
    """The product of all other elements: of those before and those after, so that zeros need no
    division."""
    axes = sh.normalize_axes(axis, x.ndim)
    order = [*(i for i in range(x.ndim) if i not in axes), *axes]
    moved = x.permute(order)
    flat = moved.reshape(*moved.shape[: x.ndim - len(axes)], _count(x.shape, axis))
    others = _before(flat) * _before(flat.flip(-1)).flip(-1)
    back = sorted(range(x.ndim), key=order.__getitem__)
    return kept(g, x.shape, axis) * others.reshape(moved.shape).permute(back)


def _before(x: Tensor) -> Tensor:
    """The products of the elements before each along the last axis."""
    if not x.shape[-1]:
        return x
    one = call("pad", x[..., :-1], widths=(*[(0, 0)] * (x.ndim - 1), (1, 0)), value=1)
    return call("cumprod", one, axis=-1)


def _cumsum(g: Tensor, axis: int) -> Tensor:
    return call("cumsum", g.flip(axis), axis=axis).flip(axis)


def _cumprod(g: Tensor, x: Tensor, axis: int) -> Tensor:
    """The sum over all later results of the products without this element. Products of ranges are
    needed, since a division by the element is not possible where it is 0."""
    from lbrx.tensors.creation import ones

    moved = x.moveaxis(axis, -1)
    count = moved.shape[-1]
    square = ones((count, count), device=x.device)
    later = call("not_equal", square.triu(1), 0)
    ranges = call("where", later, moved[..., None, :], 1)
    products = call("cumprod", ranges, axis=-1) * square.triu().astype(x.dtype)
    sums = (products * g.moveaxis(axis, -1)[..., None, :]).sum(axis=-1)
    return (sums * _before(moved)).moveaxis(-1, axis)


def _declare() -> None:
    rules: dict[str, Any] = {
        "sum": _sum,
        "mean": _mean,
        "var": _var,
        "norm": _norm,
        "max": _extreme,
        "min": _extreme,
        "prod": _prod,
        "cumsum": _cumsum,
        "cumprod": _cumprod,
    }
    for name, rule in rules.items():
        differentiable(name, x=rule)


_declare()
