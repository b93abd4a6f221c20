"""Masks of task vectors: which differences between a model and its base a merge keeps.

Operands are x and, optionally, a base of the same shape; a mask looks at abs(x - base) in float32.
Magnitudes are compared by their bits, so NaN is larger than infinity and the order is total.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.random import WORDS, philox
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op
from lbrx.shape import Shape

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
