"""Rows of a cache that attention reads, replaced as a text grows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, Family, op
from lbrx.shape import Shape

Array = NDArray[Any]


def overwrite_shape(shapes: rules.Shapes, _: Attributes) -> Shape:
    cache, rows, positions = (rules.first(shapes[i:]) for i in range(3))
    if len(cache) < 2 or len(rows) != len(cache):
        raise ShapeError("cache and rows need axes (..., length, depth): reshape them")
    if rows[:-2] != cache[:-2] or rows[-1] != cache[-1]:
        raise ShapeError(f"rows {rows} may differ from the cache {cache} in their second-last axis")
    if sh.broadcast(rows[:-1], positions) != rows[:-1]:
        raise ShapeError(f"positions of shape {positions} are larger than {rows[:-1]}: slice them")
    return cache


def overwrite_dtype(cache: Dtype, _: Attributes) -> Dtype:
    if not cache.is_float:
        raise DtypeError(f"a cache of {cache} has no rows of floating numbers: cast it")
    return cache


@op(Family.INDEXING, overwrite_shape, overwrite_dtype)
def overwrite(cache: Array, rows: Array, positions: Array) -> Array:
    """The cache with rows put at their positions, cast to its type; the cache is used up.

    Shapes are (..., S, D) and (..., L, D); positions broadcast to (..., L). On metal the rows are
    written into the cache's own memory, which the result shares: do not use the old tensor again.
    A position that is not from 0 to S - 1 puts nothing; of rows at one position, one is kept.
    """
    result = cache.copy()
    length, depth = cache.shape[-2:]
    places = np.broadcast_to(positions, rows.shape[:-1]).reshape(-1, rows.shape[-2])
    flat, new = result.reshape(-1, length, depth), rows.reshape(-1, *rows.shape[-2:])
    batch, row = np.nonzero((places >= 0) & (places < length))
    flat[batch, places[batch, row].astype(np.intp)] = new[batch, row]
    return result
