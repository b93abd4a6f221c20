"""The best approximation of a matrix by a product of two thin ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.tensors import Tensor
from lbrx.tensors.creation import from_numpy

OVERSAMPLING = 16
POWER_STEPS = 4
SMALL = 256
"""Matrices with a side of at most this many elements are always decomposed exactly."""
_SMALLEST = 1e-14  # of a squared singular value, relative to the largest: below it is rounding
Matrix = NDArray[np.float32]


class Factors(NamedTuple):
    """b @ a approximates the matrix: a is (rank, columns), b is (rows, rank)."""

    a: Matrix
    b: Matrix
    kept: float
    """The share of the matrix' squared norm that the product has; 1 for a matrix of zeros."""


def low_rank(matrix: Tensor, rank: int, *, exact: bool = False) -> Factors:
    """Factors A = sqrt(S) V^T and B = U sqrt(S) of the first `rank` singular values, in float32.

    Large matrices get a randomized decomposition (Halko, Martinsson and Tropp, 2011) with
    4 power steps, unless `exact`: it is many times faster, exact for a matrix whose rank is at
    most `rank`, and otherwise within a fraction of a per cent of the best approximation.
    """
    values = matrix.astype(dt.float32)
    least = min(values.shape)
    if exact or least <= max(SMALL, 2 * (rank + OVERSAMPLING)):
        u, s, v = _decomposed(values.numpy())
    else:
        u, s, v = _randomized(values, rank + OVERSAMPLING)
    squares = float((values * values).sum().numpy())
    kept = float(np.sum(s[:rank].astype(np.float64) ** 2)) / squares if squares else 1.0
    return Factors(*_factors(u, s, v, rank), min(kept, 1.0))


def _factors(u: Matrix, s: Matrix, v: Matrix, rank: int) -> tuple[Matrix, Matrix]:
    """Both factors, with zeros where the matrix has a smaller rank."""
    root = np.sqrt(s[:rank])
    a = np.zeros((rank, v.shape[1]), np.float32)
    b = np.zeros((u.shape[0], rank), np.float32)
    a[: len(root)] = root[:, None] * v[:rank]
    b[:, : len(root)] = u[:, :rank] * root
    return a, b


def _decomposed(matrix: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """U, S and V^T of the singular values that are not 0, in descending order.

    They come from the smaller of the products with the transpose in float64, which is exact enough
    for float32 and many times faster than LAPACK's decomposition of a thin matrix.
    """
    rows, columns = matrix.shape
    if rows > columns:
        v, s, u = _decomposed(matrix.T)
        return u.T, s, v.T
    wide = matrix.astype(np.float64)
    values, vectors = np.linalg.eigh(wide @ wide.T)
    kept = values > max(values.max(initial=0.0) * _SMALLEST, 0.0)
    u, s = vectors[:, kept][:, ::-1], np.sqrt(values[kept][::-1])
    v = (u.T @ wide) / s[:, None]
    return u.astype(np.float32), s.astype(np.float32), v.astype(np.float32)


def _randomized(matrix: Tensor, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """The first `count` singular vectors and values, approximately. The products run on the
    matrix' device; the seed is constant, so results repeat."""
    random = np.random.default_rng(0).standard_normal((matrix.shape[1], count), np.float32)
    basis = _orthogonal(_product(matrix, random))
    for _ in range(POWER_STEPS):
        basis = _orthogonal(_product(matrix.T, basis))
        basis = _orthogonal(_product(matrix, basis))
    u, s, v = _decomposed(_product(matrix.T, basis).T)
    return basis @ u, s, v


def _product(matrix: Tensor, thin: Matrix) -> Matrix:
    if not thin.shape[1]:
        return np.zeros((matrix.shape[0], 0), np.float32)
    return (matrix @ from_numpy(np.ascontiguousarray(thin), matrix.device)).numpy()


def _orthogonal(thin: Matrix) -> Matrix:
    """An orthonormal basis of the columns, of as many as their rank. The second pass removes the
    rounding errors of the first."""
    return _decomposed(_decomposed(thin)[0])[0]
