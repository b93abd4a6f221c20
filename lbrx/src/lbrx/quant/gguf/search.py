"""Finding the scales of small groups: weighted least squares over a few candidate grids.

Rounding values to a grid and fitting the grid to the rounded values is a problem with many local
minima. So a number of step sizes around the obvious one are tried: values are rounded, the best
scale (and minimum) for those integers is solved for, and the candidate of the least error wins.
That is the method of llama.cpp's K types, and so are the candidates.

Groups are *columns* here, [elements, groups]: sums over a group are then additions of long rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lbrx.quant.gguf.blocks import extreme, inverse
from lbrx.quant.scheme import FloatArray


class Candidates(NamedTuple):
    """The numbers of steps in a group's range to try, relative to the largest code."""

    first: float
    step: float
    tries: int
    absolute: bool = False
    """Whether absolute errors are summed instead of squares."""

    def steps(self, top: int) -> list[np.float32]:
        return [np.float32(top + self.first + self.step * i) for i in range(self.tries)]


FINE = Candidates(-0.9, 0.05, 37)
"""The candidates where importance is given."""


def total(*factors: FloatArray) -> FloatArray:
    """The sum of a product over each group."""
    terms = ",".join(["ij"] * len(factors))
    return np.asarray(np.einsum(f"{terms}->j", *factors))


def offset(
    values: FloatArray, weights: FloatArray, top: int, candidates: Candidates
) -> tuple[FloatArray, FloatArray]:
    """(scale, minimum) for value = scale * code - minimum, codes 0 to top, minimum not negative."""
    low = np.minimum(values.min(axis=0), 0)
    # Values relative to the minimum are not negative, so their sums do not cancel.
    above = values - low
    span = above.max(axis=0)
    sums = total(weights), total(weights, above)
    scale, shift = span / np.float32(top), np.zeros_like(span)
    error = np.full_like(span, np.inf)
    codes, difference = np.empty_like(above), np.empty_like(above)
    for i, steps in enumerate([np.float32(top), *candidates.steps(top)]):
        np.subtract(above, shift, out=codes)
        codes *= _ratio(steps, span - shift)
        np.rint(codes, out=codes)
        np.clip(codes, 0, top, out=codes)
        trial = (scale, shift) if i == 0 else _solve(above, weights, codes, low, *sums)
        np.multiply(codes, trial[0], out=difference)
        difference += trial[1]
        difference -= above
        if candidates.absolute:
            trial_error = total(weights, np.abs(difference))
        else:
            trial_error = total(weights, difference, difference)
        better = trial_error < error
        error = np.where(better, trial_error, error)
        scale = np.where(better, trial[0], scale)
        shift = np.where(better, trial[1], shift)
    return scale, -(low + shift)


def _ratio(steps: np.float32, span: FloatArray) -> FloatArray:
    """Codes for each unit of value, rounded once: otherwise the largest value may become a tie."""
    return np.where(span > 0, steps / span, np.float32(0))


def _solve(
    above: FloatArray,
    weights: FloatArray,
    codes: FloatArray,
    low: FloatArray,
    w: FloatArray,
    v: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Scale and shift of the least squared error; NaN where the codes do not determine them.

    Letters are weighted sums: w of ones, v of values, q of codes, qq and qv of their products.
    """
    weighted = weights * codes
    q, qq, qv = total(weighted), total(weighted, codes), total(weighted, above)
    determinant = w * qq - q * q
    determinant[determinant <= 0] = np.nan
    scale: FloatArray = np.divide(w * qv - v * q, determinant)
    shift: FloatArray = np.divide(qq * v - q * qv, determinant)
    # Minima are not negative: where zero would be below all codes, it becomes code 0.
    outside = low + shift > 0
    scale = np.where(outside, (qv + low * q) / qq, scale)
    return scale, np.where(outside, -low, shift)


def centred(values: FloatArray, weights: FloatArray, half: int) -> FloatArray:
    """The scale for value = scale * code, codes -half to half - 1."""
    peak: FloatArray = extreme(values, 0)[0]
    scale: FloatArray = peak / np.float32(-half)
    best = np.zeros_like(scale)
    for tenths in sorted(range(-9, 10), key=abs):
        codes = values * (np.float32(-half - 0.1 * tenths) * inverse(peak))
        np.rint(codes, out=codes)
        np.clip(codes, -half, half - 1, out=codes)
        weighted = weights * codes
        products, squares = total(weighted, values), total(weighted, codes)
        # The part of the values' squares that the best scale for these codes explains.
        explained = products * products / squares
        better = explained > best
        best = np.where(better, explained, best)
        scale = np.where(better, products / squares, scale)
    return scale


def descended(
    values: FloatArray, weights: FloatArray, codes: FloatArray, low: int, high: int
) -> FloatArray:
    """The scale after moving single codes in all groups as long as the error falls."""
    products, squares = total(weights, values, codes), total(weights, codes, codes)
    for _ in range(5):
        moved = False
        for value, weight, code in zip(values, weights, codes, strict=True):
            others = products - weight * value * code
            other_squares = squares - weight * code * code
            new = np.clip(np.rint(value * other_squares / others), low, high)
            new_products = others + weight * value * new
            new_squares = other_squares + weight * new * new
            # What the new codes explain of the values, as in `centred`.
            better = new_products**2 / new_squares > products**2 / squares
            better &= (others > 0) & (new != code)
            code[better] = new[better]
            products = np.where(better, new_products, products)
            squares = np.where(better, new_squares, squares)
            moved = moved or bool(better.any())
        if not moved:
            break
    return np.where(squares > 0, products / squares, np.float32(0))


def positive(values: FloatArray, weights: FloatArray, top: int) -> FloatArray:
    """The scale for value = scale * code of non-negative values, codes 0 to top."""
    peak = inverse(values.max(axis=0))
    best = np.full_like(peak, np.inf)
    codes = np.zeros_like(values)
    for tenths in sorted(range(-4, 5), key=abs):
        steps: FloatArray = np.float32(top + 0.1 * tenths) * peak
        trial: FloatArray = np.clip(np.rint(values * steps), 0, top)
        difference = values - trial * inverse(steps)
        error = total(weights, difference, difference)
        better = error < best
        best = np.where(better, error, best)
        codes = np.where(better, trial, codes)
    return descended(values, weights, codes, 0, top)
