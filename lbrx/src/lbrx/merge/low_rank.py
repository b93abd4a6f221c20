"""The best approximation of a matrix by a product of two thin ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.tensor import Tensor
from lbrx.tensor.creation import from_numpy

OVERSAMPLING = 16
POWER_STEPS = 4
SMALL = 256
"""Matrices with a side of at most this many elements are always decomposed exactly."""
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
        u, s, v = np.linalg.svd(values.numpy(), full_matrices=False)
    else:
        u, s, v = _randomized(values, rank + OVERSAMPLING)
    root = np.sqrt(s[:rank])
    squares = float((values * values).sum().numpy())
    kept = float(np.sum(s[:rank].astype(np.float64) ** 2)) / squares if squares else 1.0
    return Factors(
        np.ascontiguousarray(root[:, None] * v[:rank]), u[:, :rank] * root, min(kept, 1.0)
    )


def _randomized(matrix: Tensor, count: int) -> tuple[Matrix, Matrix, Matrix]:
    """The first `count` singular vectors and values, approximately. The products run on the
    matrix' device; the seed is constant, so results repeat."""
    random = np.random.default_rng(0).standard_normal((matrix.shape[1], count), np.float32)
    basis = _orthogonal(_product(matrix, random))
    for _ in range(POWER_STEPS):
        basis = _orthogonal(_product(matrix.T, basis))
        basis = _orthogonal(_product(matrix, basis))
    inner = _product(matrix.T, basis).T
    u, s, v = np.linalg.svd(inner, full_matrices=False)
    return basis @ u, s, v


def _product(matrix: Tensor, thin: Matrix) -> Matrix:
    return (matrix @ from_numpy(np.ascontiguousarray(thin), matrix.device)).numpy()


def _orthogonal(thin: Matrix) -> Matrix:
    return np.linalg.qr(thin)[0]
