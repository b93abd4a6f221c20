"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.activation import softmax_of
from softcoreml.operations.arguments import Array, define, require_size, widen

SCORE_BYTES = 1 << 27
"""Bytes of scores that are computed at once: larger ones go head by head."""


def _attended(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    scores = np.matmul(q * np.float32(1 / math.sqrt(q.shape[-1])), k.swapaxes(-1, -2))
    if mask is not None and mask.dtype == np.bool_:
        scores = np.where(mask, scores, np.float32(-np.inf))
    elif mask is not None:
        scores += widen(mask)
    return np.asarray(np.matmul(softmax_of(scores, -1), v))


@define("scaled_dot_product_attention", "ios18")
def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(query key^T / sqrt(size) + mask) value, in float32 throughout.

    query (..., targets, size), key (..., sources, size), value (..., sources, values). A mask of
    booleans says which sources take part; one of numbers is added. It broadcasts to
    (..., targets, sources).
    """
    q, k, v = widen(query), widen(key), widen(value)
    if not q.ndim == k.ndim == v.ndim >= 3:
        raise ModelError("query, key and value must have the same rank, at least 3")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ModelError(
            f"query {list(q.shape)}, key {list(k.shape)} and value {list(v.shape)} do not fit"
        )
    shape = (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    require_size(shape, "query and key")
    mask = None if attn_mask is None else np.asarray(attn_mask)
    if mask is not None and np.broadcast_shapes(mask.shape, shape) != shape:
        raise ModelError(f"attn_mask {list(mask.shape)} does not broadcast to {list(shape)}")
    batch = shape[:-2]
    if v.shape[:-2] != batch:
        raise ModelError(f"value {list(v.shape)} needs the batch {list(batch)} of query and key")
    if 4 * math.prod(shape) <= SCORE_BYTES:
        return _attended(q, k, v, mask)
    q, k = np.broadcast_to(q, (*batch, *q.shape[-2:])), np.broadcast_to(k, (*batch, *k.shape[-2:]))
    result = np.empty((*batch, q.shape[-2], v.shape[-1]), dtype=np.float32)
    for head in np.ndindex(*batch):
        part = None if mask is None else np.broadcast_to(mask, shape)[head]
        result[head] = _attended(q[head], k[head], v[head], part)
    return result
