"""Tensors made like others, evenly spaced, triangular or diagonal."""

from __future__ import annotations

import operator

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.arrays.shape import Sizes
from lbrx.errors import DtypeError, ShapeError
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import arange, full, tensor, zeros
from lbrx.tensors.functions.arguments import as_tensor, as_tensors
from lbrx.tensors.functions.linear_algebra import diagonal
from lbrx.tensors.tensor_like import TensorLike


def empty(shape: Sizes, *, dtype: DtypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor whose elements are unspecified. Tensors are immutable, so they are zeros."""
    return zeros(shape, dtype or dt.float32, device)


def zeros_like(
    x: TensorLike, /, *, dtype: DtypeLike | None = None, device: str | None = None
) -> Tensor:
    """Zeros in the shape of x; its dtype and device unless others are given."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(
    x: TensorLike, /, *, dtype: DtypeLike | None = None, device: str | None = None
) -> Tensor:
    """Ones in the shape of x; its dtype and device unless others are given."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(
    x: TensorLike, /, *, dtype: DtypeLike | None = None, device: str | None = None
) -> Tensor:
    """Unspecified elements in the shape of x; its dtype and device unless others are given."""
    return full_like(x, 0, dtype=dtype, device=device)


def full_like(
    x: TensorLike,
    /,
    fill_value: float,
    *,
    dtype: DtypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """One value in the shape of x; its dtype and device unless others are given."""
    model = as_tensor(x)
    return full(model.shape, fill_value, dtype or model.dtype, device or model.device)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DtypeLike | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop, which is left out if not `endpoint`.

    They are computed in float64 and rounded once to the dtype, float32 if none is given.
    """
    count = operator.index(num)
    if count < 0:
        raise ShapeError(f"linspace of num={count} elements: give 0 or more")
    values = np.linspace(float(start), float(stop), count, endpoint=endpoint)
    return tensor(values, dt.float32 if dtype is None else dtype, device)


def tril(x: TensorLike, /, k: int = 0) -> Tensor:
    """The matrices of the last two axes with zeros above diagonal k (k > 0 lies above the main)."""
    matrices, distance = _matrices(x, "tril")
    return call("where", distance <= k, matrices, False)


def triu(x: TensorLike, /, k: int = 0) -> Tensor:
    """The matrices of the last two axes with zeros below diagonal k (k > 0 lies above the main)."""
    matrices, distance = _matrices(x, "triu")
    return call("where", distance >= k, matrices, False)


def _matrices(x: TensorLike, name: str) -> tuple[Tensor, Tensor]:
    """The tensor, and how many columns right of the main diagonal each element lies."""
    matrices = as_tensor(x)
    if matrices.ndim < 2:
        raise ShapeError(f"{name} of shape {matrices.shape}: it needs two axes or more")
    rows, columns = (arange(n, dtype=dt.int32, device=matrices.device) for n in matrices.shape[-2:])
    return matrices, columns - rows.unsqueeze(1)


def diag(x: TensorLike, /, k: int = 0) -> Tensor:
    """Of a vector, the matrix with it on diagonal k; of matrices, their diagonal k."""
    values = as_tensor(x)
    if values.ndim == 0:
        raise ShapeError("diag of a scalar: give a vector or a matrix")
    if values.ndim > 1:
        return diagonal(values, offset=k)
    n = values.shape[0]
    # In rows of n + 1 elements that start with x, n * n elements in rows of n are the diagonal.
    rows = call("pad", values.unsqueeze(1), widths=((0, 0), (0, n)))
    square = rows.reshape(-1)[: n * n].reshape(n, n)
    below, right = max(-k, 0), max(k, 0)
    return call("pad", square, widths=((below, right), (right, below))) if k else square


def one_hot(x: TensorLike, /, num_classes: int, *, dtype: DtypeLike | None = None) -> Tensor:
    """For each integer of x a new last axis of `num_classes` elements: one at its index, else zero.

    A number outside 0 to num_classes - 1 gives zeros only. The dtype is float32 unless given.

    >>> lbrx.one_hot([2, 0], 3, dtype="int32").tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    labels, count = as_tensor(x), operator.index(num_classes)
    if not labels.dtype.is_integer:
        raise DtypeError(f"one_hot of {labels.dtype}: cast it to an integer dtype")
    if count < 0:
        raise ShapeError(f"one_hot of num_classes={count}: give 0 or more")
    classes = arange(count, dtype=dt.int32, device=labels.device)
    return (labels.unsqueeze(-1) == classes).astype(dt.float32 if dtype is None else dtype)


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid: one tensor for each vector, all in the grid's shape.

    With indexing="ij" axis i is that of vector i; with "xy" the first two axes are swapped.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing={indexing!r} is not a way to index: give 'xy' or 'ij'")
    vectors = as_tensors(*arrays)
    if wrong := [vector.shape for vector in vectors if vector.ndim > 1]:
        raise ShapeError(f"meshgrid of shape {wrong[0]}: give vectors")
    shape = [vector.size for vector in vectors]
    grids = []
    for axis, vector in enumerate(vectors):
        sizes = [vector.size if i == axis else 1 for i in range(len(vectors))]
        grid = vector.reshape(*sizes).expand(*shape)
        grids.append(grid.transpose(0, 1) if indexing == "xy" and len(vectors) > 1 else grid)
    return grids
