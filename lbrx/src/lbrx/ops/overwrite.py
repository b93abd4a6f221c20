"""Rows of a key or value cache replaced as a text grows."""

from __future__ import annotations

import math

import numpy as np

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, QuantizationError, ShapeError
from lbrx.ops import rules
from lbrx.ops.quantized import values_shape
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

CACHE_SCHEME = "q8_0"
"""The scheme of caches that are quantized as they are written."""


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
        raise DtypeError(f"a cache of {cache} does not hold floating-point rows: cast it")
    return cache


@op(OpFamily.INDEXING, overwrite_shape, overwrite_dtype)
def overwrite(cache: NumpyArray, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
    """The cache with rows at the given positions, cast to the cache's type.

    Shapes are (..., S, D) for the cache and (..., L, D) for the rows; positions broadcast to
    (..., L). A row whose position is not from 0 to S - 1 is dropped; of several rows at one
    position, one is kept. The operand keeps its value, unless it was made by
    `lbrx.tensors.long_lived.new_cache`: that memory is written in place, and the result shares it.
    """
    return _put(cache, rows, positions)


def _put(cache: NumpyArray, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
    result = cache.copy()
    *leading, length, depth = cache.shape
    planes, count = math.prod(leading), rows.shape[-2]
    places = np.broadcast_to(positions, rows.shape[:-1]).reshape(planes, count)
    flat, new = result.reshape(planes, length, depth), rows.reshape(planes, count, depth)
    batch, row = np.nonzero((places >= 0) & (places < length))
    flat[batch, places[batch, row].astype(np.intp)] = new[batch, row]
    return result


def cached_shape(codes: Shape, scheme: str) -> Shape:
    """The shape of the values in a quantized cache."""
    if scheme != CACHE_SCHEME:
        raise QuantizationError(f"a cache of {scheme} is not possible: take {CACHE_SCHEME}")
    return values_shape(quant.find(scheme), codes)


def _overwrite_blocks_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    codes = rules.first(shapes)
    overwrite_shape([cached_shape(codes, attributes["scheme"]), *shapes[1:]], attributes)
    return codes


@op(OpFamily.INDEXING, _overwrite_blocks_shape, lambda *_: dt.uint8)
def overwrite_blocks(
    cache_codes: NumpyArray, rows: NumpyArray, positions: NumpyArray, *, scheme: str = CACHE_SCHEME
) -> NumpyArray:
    """`overwrite` of a cache of quantized blocks, (..., S, bytes), by rows that it quantizes.

    A block with a value that is not finite, or too large for the scale, becomes NaN as a whole.
    """
    return _put(cache_codes, _encoded(rows.astype(np.float32)), positions)


def _encoded(rows: NumpyArray) -> NumpyArray:
    """Rows as q8_0."""
    scheme = quant.find(CACHE_SCHEME)
    *leading, depth = rows.shape
    groups = rows.reshape(*leading, depth // scheme.elements, scheme.elements)
    largest = np.abs(groups).max(axis=-1, initial=0)
    good = largest / np.float32(127) <= np.finfo(np.float16).max
    kept = np.where(good[..., None], groups, np.float32(0)).reshape(rows.shape)
    blocks = quant.quantize(kept, scheme)[0].reshape(*good.shape, scheme.block_bytes)
    blocks[..., :2].view(np.float16)[~good] = np.nan
    return blocks.reshape(*leading, depth // scheme.elements * scheme.block_bytes)
