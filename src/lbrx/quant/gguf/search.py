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
from lbrx.quant.scheme import Values


class Candidates(NamedTuple):
    """Into how many steps to divide a group's range, relative to the largest code."""

    first: float
    step: float
    tries: int
    absolute: bool = False
    """Whether errors are summed as they are, not squared."""

    def steps(self, top: int) -> list[np.float32]:
        return [np.float32(top + self.first + self.step * i) for i in range(self.tries)]


FINE = Candidates(-0.9, 0.05, 37)
"""What is tried where importance is known."""


def total(*factors: Values) -> Values:
    """The sum of a product over each group."""
    terms = ",".join(["ij"] * len(factors))
    return np.asarray(np.einsum(f"{terms}->j", *factors))


class _Sums(NamedTuple):
    """Of weights times values v and codes q: all that a squared error depends on."""

    w: Values
    v: Values
    vv: Values
    q: Values
    qq: Values
    qv: Values

    def error(self, scale: Values, shift: Values) -> Values:
        """Of scale * q + shift against v, squared and summed."""
        squares: Values = scale * scale * self.qq + shift * shift * self.w + self.vv
        products: Values = scale * shift * self.q - scale * self.qv - shift * self.v
        return squares + products + products


def offset(
    values: Values, weights: Values, top: int, candidates: Candidates
) -> tuple[Values, Values]:
    """(scale, minimum) for value = scale * code - minimum, codes 0 to top, minimum not negative."""
    low = np.minimum(values.min(axis=0), 0)
    # Above the lowest a group has numbers of one size, so that their sums do not cancel.
    above = values - low
    span = above.max(axis=0)
    known = total(weights), total(weights, above), total(weights, above, above)
    scale, shift = span / np.float32(top), np.zeros_like(span)
    error = np.full_like(span, np.inf)
    codes = np.empty_like(above)
    for i, steps in enumerate([np.float32(top), *candidates.steps(top)]):
        np.subtract(above, shift, out=codes)
        codes *= steps * inverse(span - shift)
        np.rint(codes, out=codes)
        np.clip(codes, 0, top, out=codes)
        weighted = weights * codes
        sums = _Sums(*known, total(weighted), total(weighted, codes), total(weighted, above))
        trial = (scale, shift) if i == 0 else _solve(sums, low)
        if candidates.absolute:
            trial_error = total(weights, np.abs(trial[0] * codes + (trial[1] - above)))
        else:
            trial_error = sums.error(*trial)
        better = trial_error < error
        error = np.where(better, trial_error, error)
        scale = np.where(better, trial[0], scale)
        shift = np.where(better, trial[1], shift)
    return scale, -(low + shift)


def _solve(sums: _Sums, low: Values) -> tuple[Values, Values]:
    """The scale and shift of least squared error; NaN where the codes do not determine them."""
    determinant = sums.w * sums.qq - sums.q * sums.q
    determinant[determinant <= 0] = np.nan
    scale: Values = np.divide(sums.w * sums.qv - sums.v * sums.q, determinant)
    shift: Values = np.divide(sums.qq * sums.v - sums.q * sums.qv, determinant)
    # Minima have no sign: where zero would lie below all codes, it becomes code 0.
    outside = low + shift > 0
    scale = np.where(outside, (sums.qv + low * sums.q) / sums.qq, scale)
    return scale, np.where(outside, -low, shift)


def centred(values: Values, weights: Values, half: int) -> Values:
    """The scale for value = scale * code, codes -half to half - 1."""
    peak: Values = extreme(values, 0)[0]
    scale: Values = peak / np.float32(-half)
    best = np.zeros_like(scale)
    for tenths in sorted(range(-9, 10), key=abs):
        codes = values * (np.float32(-half - 0.1 * tenths) * inverse(peak))
        np.rint(codes, out=codes)
        np.clip(codes, -half, half - 1, out=codes)
        weighted = weights * codes
        products, squares = total(weighted, values), total(weighted, codes)
        # With the best scale for these codes, this much of the values' squares is explained.
        explained = products * products / squares
        better = explained > best
        best = np.where(better, explained, best)
        scale = np.where(better, products / squares, scale)
    return scale


def descended(values: Values, weights: Values, codes: Values, low: int, high: int) -> Values:
    """The scale after single codes were moved, in all groups at once, while that helps."""
    products, squares = total(weights, values, codes), total(weights, codes, codes)
    for _ in range(5):
        moved = False
        for value, weight, code in zip(values, weights, codes, strict=True):
            others = products - weight * value * code
            other_squares = squares - weight * code * code
            new = np.clip(np.rint(value * other_squares / others), low, high)
            new_products = others + weight * value * new
            new_squares = other_squares + weight * new * new
            better = (others > 0) & (new_squares > 0) & (new != code)
            better &= new_products**2 * squares > products**2 * new_squares
            code[better] = new[better]
            products = np.where(better, new_products, products)
            squares = np.where(better, new_squares, squares)
            moved = moved or bool(better.any())
        if not moved:
            break
    return np.where(squares > 0, products / squares, np.float32(0))


def positive(values: Values, weights: Values, top: int) -> Values:
    """The scale for value = scale * code of numbers that are not negative, codes 0 to top."""
    peak = inverse(values.max(axis=0))
    best = np.full_like(peak, np.inf)
    codes = np.zeros_like(values)
    for tenths in sorted(range(-4, 5), key=abs):
        steps: Values = np.float32(top + 0.1 * tenths) * peak
        trial: Values = np.clip(np.rint(values * steps), 0, top)
        difference = values - trial * inverse(steps)
        error = total(weights, difference, difference)
        better = error < best
        best = np.where(better, error, best)
        codes = np.where(better, trial, codes)
    return descended(values, weights, codes, 0, top)
