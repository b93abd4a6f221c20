"""Steps of merges: masks of the differences between a model and its base, and weighted sums.

Operands of masks are x and, optionally, a base of the same shape; a mask looks at abs(x - base) in
float32. Magnitudes are compared by their bits, so NaN is larger than infinity and the order is
total. The elementwise steps give float32. Each is one function of a fused kernel, where the same in
single operations would be several times as many nodes of a graph for every tensor of a model.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.random import WORDS, philox
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

LANES = 16
"""Counters whose words are made together."""


def _alike(shapes: rules.Shapes, _: Attributes) -> Shape:
    first, *rest = (shape for shape in shapes if shape is not None)
    if len(rest) > 1:
        raise ShapeError(f"{len(shapes)} operands: give x, or x and its base")
    if rest and rest[0] != first:
        raise ShapeError(f"the base has shape {rest[0]} instead of {first}: reshape it")
    return first


def _kept_of_all(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    first, last = attributes["first"], attributes["last"]
    if not 0 <= first <= last:
        raise ShapeError(f"ranks from {first} to {last}: give 0 <= first <= last")
    return _alike(shapes, attributes)


def magnitudes(values: tuple[NumpyArray, ...]) -> NDArray[np.uint32]:
    """The bits of abs(x - base) as float32: their order is that of the magnitudes."""
    x, *base = (value.astype(np.float32) for value in values)
    return np.abs(x - base[0] if base else x).view(np.uint32)


@op(OpFamily.SORTING, _kept_of_all, rules.boolean)
def magnitude_mask(*values: NumpyArray, first: int, last: int) -> NumpyArray:
    """bool: whether an element's rank by magnitude is from `first` to below `last`.

    The largest of all elements has rank 0; of equal ones, the first has the lower rank.
    """
    keys = magnitudes(values).reshape(-1)
    mask = np.zeros(keys.size, np.bool_)
    mask[np.argsort(~keys, kind="stable")[first:last]] = True
    return mask.reshape(values[0].shape)


def _mask_and_norms(shapes: rules.Shapes, attributes: Attributes) -> list[Shape]:
    shape = _alike(shapes, attributes)
    return [shape, (math.prod(shape[:-1]), 2)]


@op(OpFamily.RANDOM, _mask_and_norms, lambda *_: (dt.bool_, dt.float32))
def rank_bernoulli(
    *values: NumpyArray, seed: int, low: float, high: float
) -> tuple[NumpyArray, NumpyArray]:
    """bool: True with a probability that rises with the rank of the magnitude in its row.

    The smallest magnitude of a row has the probability `low` and the largest one `high`; of equal
    ones, the last has the higher rank. A row of one element has the mean of both.
    Probabilities are rounded to multiples of 2**-16. The second result, (rows, 2), holds the sums
    of all magnitudes of each row and of the kept ones.
    """
    shape = values[0].shape
    length = shape[-1] if shape else 1
    keys = magnitudes(values).reshape(math.prod(shape[:-1]), length)
    ranks = np.argsort(np.argsort(keys, axis=-1, kind="stable"), axis=-1, kind="stable")
    start, step = rank_probabilities(low, high, length)
    draws = _row_draws(seed, *keys.shape).astype(np.float32)
    mask = draws < start + ranks.astype(np.float32) * step
    sizes = keys.view(np.float32).astype(np.float64)
    norms = np.stack([sizes.sum(-1), (sizes * mask).sum(-1)], -1)
    return mask.reshape(shape), norms


def rank_probabilities(low: float, high: float, length: int) -> tuple[np.float32, np.float32]:
    """2**16 times the probability of a row's smallest magnitude, and the step from rank to rank."""
    if length < 2:
        return np.float32((low + high) / 2 * 2**16), np.float32(0)
    return np.float32(low * 2**16), np.float32((high - low) / (length - 1) * 2**16)


def _row_draws(seed: int, rows: int, length: int) -> NDArray[np.uint16]:
    """Sixteen random bits for each element. Each row starts at a counter of its own. Sixteen
    counters serve 128 elements: the lower halves of their first words the first sixteen, the upper
    halves the next sixteen, and so on."""
    groups = -(-length // (LANES * 2 * WORDS))
    words = philox(seed, 0, rows * groups * LANES).astype("<u4").view("<u2")
    draws = words.reshape(rows * groups, LANES, 2 * WORDS).swapaxes(1, 2)
    return draws.reshape(rows, groups * LANES * 2 * WORDS)[:, :length]


def _products_of_rows(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    first, *rest = (shape for shape in shapes if shape is not None)
    if len(rest) not in (1, 2) or any(shape != first for shape in rest):
        raise ShapeError(
            f"{len(shapes)} operands: give x, y and a base of the same shape, or x and y"
        )
    return (math.prod(first[:-1]), 3)


@op(OpFamily.REDUCTION, _products_of_rows, lambda *_: dt.float32)
def row_products(*values: NumpyArray) -> NumpyArray:
    """float32 (rows, 3): the sums of x x, x y and y y over each row, of differences from a base if
    that is the third operand."""
    x, y, *base = (value.astype(np.float64) for value in values)
    a, b = (x - base[0], y - base[0]) if base else (x, y)
    sums = [
        (p * q).reshape(math.prod(x.shape[:-1]), -1).sum(-1) for p, q in ((a, a), (a, b), (b, b))
    ]
    return np.stack(sums, -1)


# ---- elementwise steps ----


def _single(_: Dtype, __: Attributes) -> Dtype:
    return dt.float32


MOST_WEIGHTED = 4
_WEIGHTED = """
inline float weighted_sum(float a, float b, float u, float v) { return a * u + b * v; }
inline float weighted_sum(float a, float b, float c, float u, float v, float w) {
  return a * u + b * v + c * w;
}
inline float weighted_sum(float a, float b, float c, float d, float u, float v, float w, float x) {
  return a * u + b * v + c * w + d * x;
}
inline float weighted_within(float sum, float low, float high) {
  return metal::select(metal::select(sum, low, sum < low), high, sum > high);
}
inline float weighted_mean(float a, float b, float u, float v) {
  return weighted_within(weighted_sum(a, b, u, v), metal::fmin(a, b), metal::fmax(a, b));
}
inline float weighted_mean(float a, float b, float c, float u, float v, float w) {
  return weighted_within(weighted_sum(a, b, c, u, v, w), metal::fmin(metal::fmin(a, b), c),
                         metal::fmax(metal::fmax(a, b), c));
}
inline float weighted_mean(float a, float b, float c, float d, float u, float v, float w, float x) {
  return weighted_within(weighted_sum(a, b, c, d, u, v, w, x),
                         metal::fmin(metal::fmin(a, b), metal::fmin(c, d)),
                         metal::fmax(metal::fmax(a, b), metal::fmax(c, d)));
}
"""


@op(OpFamily.TERNARY, rules.broadcast, _single, _WEIGHTED)
def weighted(
    *values: NumpyArray,
    kind: str,
    first: float,
    second: float,
    third: float | None = None,
    fourth: float | None = None,
) -> NumpyArray:
    """float32: the sum of two to four operands times their weights, added in order.

    A `kind` of "mean" instead of "sum" holds the result between the smallest and the largest
    operand.
    """
    weights = [w for w in (first, second, third, fourth) if w is not None]
    parts = [x.astype(np.float32) * np.float32(w) for x, w in zip(values, weights, strict=True)]
    total = sum(parts[1:], start=parts[0])
    if kind == "sum":
        return np.asarray(total)
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    return np.where(total < low, low, np.where(total > high, high, total))


_KEPT = """
inline float kept_change(float x, float base, float weight) { return (x - base) * weight; }
inline float kept_change(float x, float base, float mask, float weight) {
  return metal::select(0.0f, (x - base) * weight, mask != 0);
}
"""


@op(OpFamily.TERNARY, rules.broadcast, _single, _KEPT)
def kept_change(*values: NumpyArray, weight: float) -> NumpyArray:
    """float32: (x - base) times a weight, or 0 where a third operand is 0."""
    x, base, *mask = values
    change = (x.astype(np.float32) - base.astype(np.float32)) * np.float32(weight)
    return np.where(mask[0] != 0, change, np.float32(0)) if mask else change


_AGREEING = """
inline bool agrees(float part, float total) {
  return metal::select(-part, part, total >= 0) > 0;
}
inline float agreeing(float part, float total) {
  return metal::select(0.0f, part, agrees(part, total));
}
inline float agreeing(float part, float total, float weight) {
  return metal::select(0.0f, weight, agrees(part, total));
}
"""


@op(OpFamily.TERNARY, rules.broadcast, _single, _AGREEING)
def agreeing(*values: NumpyArray, weight: float | None = None) -> NumpyArray:
    """float32: a part, or its weight, where its sign is that of a total; 0 elsewhere.

    A total of 0 counts as positive, and parts of 0 never agree.
    """
    part, total = values
    agrees = np.where(total >= 0, part > 0, part < 0)
    return np.where(agrees, part if weight is None else np.float32(weight), np.float32(0))


# Adding -0 keeps the bits of every number. (A choice between the sum and the base would become one
# of 16-bit numbers, which compilers do not make vectors of.)
_CHANGED = """
inline float changed(float base, float change, float factor) {
  return base + metal::select(change * factor, -0.0f, change == 0);
}
inline float changed(float base, float change, float divisor, float factor) {
  return changed(base, change / metal::select(divisor, 1.0f, divisor == 0), factor);
}
"""


@op(OpFamily.TERNARY, rules.broadcast, _single, _CHANGED)
def changed(*values: NumpyArray, factor: float = 1.0) -> NumpyArray:
    """float32: base + change times a factor, where a third operand divides the change if it is not
    0. A change of 0 keeps the base's bits, also those of -0."""
    base, change, *rest = (value.astype(np.float32) for value in values)
    if rest:
        change = np.where(rest[0] == 0, change, change / np.where(rest[0] == 0, 1, rest[0]))
    return np.where(change == 0, base, base + change * np.float32(factor))
