"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.activation import softmax_of
from softcoreml.operations.arguments import Array, define, require_size, widen


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
    scores = np.matmul(q * np.float32(1 / math.sqrt(q.shape[-1])), k.swapaxes(-1, -2))
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        if np.broadcast_shapes(mask.shape, shape) != shape:
            raise ModelError(f"attn_mask {list(mask.shape)} does not broadcast to {list(shape)}")
        if mask.dtype == np.bool_:
            scores = np.where(mask, scores, np.float32(-np.inf))
        else:
            scores += widen(mask)
    return np.asarray(np.matmul(softmax_of(scores, -1), v))
