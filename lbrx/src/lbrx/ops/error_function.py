"""The error function, which numpy does not have, by rational approximation.

The coefficients are from W. J. Cody, "Rational Chebyshev approximations for the error function"
(1969).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lbrx.ops.table import NumpyArray

# Up to this |x|, erf(x) / x is a rational function of x**2; above it, exp(x**2) * (1 - erf(x))
# is a rational function of x.
_NEAR_LIMIT = 0.46875
# 1 - erf(6) is 2e-17, less than the spacing of float64 below 1.
_END = 6.0

# Coefficients of (numerator, denominator), highest power first.
_NEAR = (
    (1.85777706184603153e-1, 1.0),
    (3.16112374387056560e0, 2.36012909523441209e1),
    (1.13864154151050156e2, 2.44024637934444173e2),
    (3.77485237685302021e2, 1.28261652607737228e3),
    (3.20937758913846947e3, 2.84423683343917062e3),
)
_FAR = (
    (2.15311535474403846e-8, 1.0),
    (5.64188496988670089e-1, 1.57449261107098347e1),
    (8.88314979438837594e0, 1.17693950891312499e2),
    (6.61191906371416295e1, 5.37181101862009858e2),
    (2.98635138197400131e2, 1.62138957456669019e3),
    (8.81952221241769090e2, 3.29079923573345963e3),
    (1.71204761263407058e3, 4.36261909014324716e3),
    (2.05107837782607147e3, 3.43936767414372164e3),
    (1.23033935479799725e3, 1.23033935480374942e3),
)


def _quotient(coefficients: Sequence[tuple[float, float]], x: NumpyArray) -> NumpyArray:
    above, below = np.zeros_like(x), np.zeros_like(x)
    for numerator, denominator in coefficients:
        above *= x
        above += numerator
        below *= x
        below += denominator
    return np.asarray(above / below)


def erf(x: NumpyArray) -> NumpyArray:
    """erf of each element in float64, with an error of at most 4 units in the last place."""
    size = np.minimum(np.abs(x.astype(np.float64)), _END)
    square = size * size
    near = size * _quotient(_NEAR, square)
    far = 1 - np.exp(-square) * _quotient(_FAR, size)
    return np.asarray(np.copysign(np.where(size <= _NEAR_LIMIT, near, far), x))
