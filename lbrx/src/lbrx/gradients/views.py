"""The gradient of what a view shows, as the gradient of all elements: one rule for all views."""

from __future__ import annotations

import math

import numpy as np

from lbrx.arrays.shape import Layout, Shape, contiguous_strides
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import tensor, zeros


def summed(g: Tensor, shape: Shape) -> Tensor:
    """A gradient summed over the axes along which an operand of this shape was broadcast."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if extra > 0:
        g = g.sum(axis=tuple(range(extra)))
    axes = tuple(i for i, (n, m) in enumerate(zip(shape, g.shape, strict=True)) if n == 1 != m)
    if axes:
        g = g.sum(axis=axes, keepdims=True)
    return g if g.shape == shape else g.expand(shape)


def whole(g: Tensor, layout: Layout, base: Shape) -> Tensor:
    """The gradient of contiguous elements of shape `base`, given that of a view of them, whose
    layout counts from the first element."""
    if layout.shape == base and layout.strides == contiguous_strides(base):
        return g
    size = math.prod(base)
    if not g.size:
        return zeros(base, g.dtype, g.device)
    # Axes along which elements repeat are summed; the others in the order of memory, forwards.
    repeated = tuple(
        i
        for i, (n, s) in enumerate(zip(layout.shape, layout.strides, strict=True))
        if n > 1 and not s
    )
    if repeated:
        g = g.sum(axis=repeated, keepdims=True)
    axes = [
        (abs(s), i, s < 0)
        for i, (n, s) in enumerate(zip(g.shape, layout.strides, strict=True))
        if n > 1
    ]
    backwards = tuple(i for _, i, negative in axes if negative)
    if backwards:
        g = g.flip(backwards)
    order = [i for _, i, _ in sorted(axes, reverse=True)]
    steps = [abs(layout.strides[i]) for i in order]
    offset = layout.offset + sum((g.shape[i] - 1) * layout.strides[i] for i in backwards)
    sizes = [g.shape[i] for i in order]
    ones = [i for i in range(g.ndim) if i not in order]
    own = g.permute(*order, *ones).reshape(sizes)
    if _overlap(sizes, steps):
        return _added(own, steps, offset, size).reshape(base)
    return _spread(own, steps, offset, size).reshape(base)


def _overlap(sizes: list[int], steps: list[int]) -> bool:
    """Whether the rows of an axis reach beyond its step."""
    reach = 0
    for n, step in zip(reversed(sizes), reversed(steps), strict=True):
        if reach >= step:
            return True
        reach += (n - 1) * step
    return False


def _spread(g: Tensor, steps: list[int], offset: int, size: int) -> Tensor:
    """Elements at steps of each axis, from an offset on, as a vector with zeros between them.

    Each axis, from the last one, is widened to the step of the one before it. A part of the offset
    goes to each, so that a slice of one axis is one padding.
    """
    g, used = g[..., None], 1
    if not steps:
        return _fitted(g, size, offset)
    for step, above in zip(reversed(steps), [*reversed(steps[:-1]), size], strict=True):
        g = _fitted(g, step, 0)  # (..., n, step)
        used += (g.shape[-2] - 1) * step
        g = g.reshape(*g.shape[:-2], g.shape[-2] * step)
        before = offset if above == size else offset % above
        if before + used > above:
            before = 0
        offset, used = offset - before, used + before
        g = _fitted(g, above, before)  # one row of the axis above
    return g


def _fitted(g: Tensor, width: int, before: int) -> Tensor:
    """The last axis with zeros before it, cut or filled up with zeros to a width."""
    kept = g[..., : max(width - before, 0)] if g.shape[-1] + before > width else g
    after = width - before - kept.shape[-1]
    if not before and not after:
        return kept
    return call("pad", kept, widths=(*[(0, 0)] * (g.ndim - 1), (before, after)), value=0)


def _added(g: Tensor, steps: list[int], offset: int, size: int) -> Tensor:
    """Elements added where they overlap, as those of windows do."""
    places = np.full(g.shape, offset, np.int64)
    for i, step in enumerate(steps):
        places += (np.arange(g.shape[i]) * step).reshape(-1, *[1] * (g.ndim - i - 1))
    indices = tensor(places.reshape(-1), device=g.device)
    target = zeros((size,), g.dtype, g.device)
    return call("scatter", target, indices, g.reshape(-1), axis=0, reduce="add")
