"""Products of tensors along named axes, and diagonals."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from lbrx.arrays.dtype import DtypeLike
from lbrx.arrays.shape import Layout, normalize_axis
from lbrx.errors import ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.functions.arguments import as_tensor, as_tensors
from lbrx.tensors.tensor_like import TensorLike

ContractedAxes = int | tuple[Sequence[int], Sequence[int]]


def tensordot(x1: TensorLike, x2: TensorLike, /, axes: ContractedAxes = 2) -> Tensor:
    """Sums of products over axes of both: the last n of x1 with the first n of x2, or the named.

    The result has the remaining axes of x1, then those of x2, in the promoted dtype.
    """
    a, b = as_tensors(x1, x2)
    left, right = _contracted(axes, a.ndim, b.ndim)
    sizes = [a.shape[i] for i in left]
    if sizes != [b.shape[i] for i in right]:
        raise ShapeError(
            f"tensordot of shapes {a.shape} and {b.shape} over axes {left} and {right}: "
            "these must have equal sizes"
        )
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    shape = [a.shape[i] for i in rows] + [b.shape[i] for i in columns]
    inner = math.prod(sizes)
    first = a.permute(*rows, *left).reshape(math.prod(a.shape[i] for i in rows), inner)
    second = b.permute(*right, *columns).reshape(inner, math.prod(b.shape[i] for i in columns))
    return call("matmul", first, second).reshape(*shape)


def _contracted(axes: ContractedAxes, m: int, n: int) -> tuple[list[int], list[int]]:
    """The axes of both operands that are summed over, from 0."""
    if not isinstance(axes, Sequence):
        count = operator.index(axes)
        if not 0 <= count <= min(m, n):
            raise ShapeError(
                f"tensordot over axes={count} of operands with {m} and {n} axes: "
                f"give 0 to {min(m, n)}, or a pair of sequences"
            )
        return list(range(m - count, m)), list(range(count))
    left = [normalize_axis(axis, m) for axis in axes[0]]
    right = [normalize_axis(axis, n) for axis in axes[1]]
    distinct = len(set(left)) == len(left) and len(set(right)) == len(right)
    if len(left) != len(right) or not distinct:
        raise ShapeError(f"tensordot over axes={axes}: name as many of both operands, each once")
    return left, right


def vecdot(x1: TensorLike, x2: TensorLike, /, axis: int = -1) -> Tensor:
    """Sums of products along one axis, from -1 down, that both have; the others broadcast."""
    a, b = as_tensors(x1, x2)
    least = min(a.ndim, b.ndim)
    if not -least <= axis <= -1:
        raise ShapeError(f"vecdot along axis {axis}: give one from {-least} to -1")
    if a.shape[axis] != b.shape[axis]:
        raise ShapeError(
            f"vecdot of shapes {a.shape} and {b.shape}: axis {axis} must have one size"
        )
    last = [each.permute(*_last(axis, each.ndim)) for each in (a, b)]
    row, column = last[0].unsqueeze(-2), last[1].unsqueeze(-1)
    return call("matmul", row, column).squeeze((-2, -1))


def _last(axis: int, ndim: int) -> list[int]:
    """The order of axes that puts one of them last."""
    place = normalize_axis(axis, ndim)
    return [*(i for i in range(ndim) if i != place), place]


def outer(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Every element of x1 times every element of x2, both flattened."""
    a, b = as_tensors(x1, x2)
    return a.reshape(-1, 1) * b.reshape(1, -1)


def inner(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Sums of products over the last axes of both; of a scalar, the product."""
    a, b = as_tensors(x1, x2)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, axes=((-1,), (-1,)))


def dot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """numpy.dot: over the last axis of x1 and the second last of x2, or its only one."""
    a, b = as_tensors(x1, x2)
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, axes=((-1,), (max(b.ndim - 2, 0) - b.ndim,)))


def diagonal(x: TensorLike, /, offset: int = 0) -> Tensor:
    """Diagonals of the matrices of the last two axes, as a view; offset > 0 lies above the main."""
    matrices = as_tensor(x)
    if matrices.ndim < 2:
        raise ShapeError(f"diagonal of shape {matrices.shape}: it needs two axes or more")
    layout = matrices.array.layout
    (*batch, rows, columns), (*strides, down, across) = layout.shape, layout.strides
    start = max(offset, 0) * across + max(-offset, 0) * down
    size = max(min(rows - max(-offset, 0), columns - max(offset, 0)), 0)
    first = layout.offset + start if size and math.prod(batch) else layout.offset
    return matrices.view(Layout((*batch, size), (*strides, down + across), first))


def trace(x: TensorLike, /, offset: int = 0, *, dtype: DtypeLike | None = None) -> Tensor:
    """Sums of the diagonals of the matrices of the last two axes; of integers in 64 bits."""
    values = diagonal(x, offset=offset)
    return call("sum", values if dtype is None else values.astype(dtype), axis=-1)
