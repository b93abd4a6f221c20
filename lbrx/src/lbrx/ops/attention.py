"""Attention, and the rotary position embedding that is applied before it."""

from __future__ import annotations

import math
import operator

import numpy as np

from lbrx import quant
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Shape
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.overwrite import CACHE_SCHEME, cached_shape
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op


def attention_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    query, key, value = (rules.first(shapes[i:]) for i in range(3))
    mask, lengths, sinks = [*shapes[3:], None, None, None][:3]
    if min(map(len, (query, key, value))) < 3:
        raise ShapeError("query, key and value need axes (..., heads, length, depth): reshape them")
    *batch, heads, count, depth = query
    *key_batch, key_heads, keys, key_depth = key
    if key_batch != batch or [*value[:-1]] != [*key[:-1]]:
        raise ShapeError(
            f"query, key and value of shapes {query}, {key} and {value} must agree in their batch "
            "axes, key and value also in heads and length: expand or slice them"
        )
    if key_depth != depth:
        raise ShapeError(f"query is {depth} deep and key {key_depth}: make their last axes equal")
    if heads and (not key_heads or heads % key_heads):
        raise ShapeError(
            f"{heads} heads do not divide among {key_heads} of key and value: give a multiple"
        )
    scores = (*batch, heads, count, keys)
    if mask is not None and sh.broadcast(scores, mask) != scores:
        raise ShapeError(f"the mask of shape {mask} is larger than the scores, {scores}: slice it")
    if lengths is not None and [*lengths] != batch:
        raise ShapeError(f"lengths have shape {lengths}: give one for each batch, {tuple(batch)}")
    if sinks is not None and sinks != (heads,):
        raise ShapeError(f"sinks have shape {sinks}: give one for each head, ({heads},)")
    window = operator.index(attributes["window"])
    if window < 0 or (window and not attributes["causal"]):
        raise ValueError(f"window={window}: give 0 for none, or above 0 together with causal=True")
    if not 0 <= attributes["cap"] < math.inf:
        raise ValueError(f"cap={attributes['cap']}: give 0 for none, or a number above it")
    return (*batch, heads, count, value[-1])


def _seen(
    count: int, keys: int, lengths: NumpyArray | None, causal: bool, window: int
) -> NumpyArray:
    """Which keys each query may attend to, as bool of shape (..., 1, count, keys).

    The last query is at the position of the last valid key.
    """
    end = np.asarray(keys) if lengths is None else lengths.astype(np.int64)
    end = end[..., None, None, None]
    key = np.arange(keys)
    query = np.arange(count)[:, None] + end - count
    seen = key < end
    if causal:
        seen = seen & (key <= query)
    if window:
        seen = seen & (key > query - window)
    return np.asarray(seen)


def check_lengths(lengths: NumpyArray, keys: int) -> None:
    """Raise IndexError if there are not so many keys."""
    wrong = (lengths < 0) | (lengths > keys)
    if wrong.any():
        raise IndexError(f"length {lengths[wrong][0]} is beyond {keys} keys: give 0 to {keys}")


def _valid(value: NumpyArray, lengths: NumpyArray) -> NumpyArray:
    """The values with zeros beyond the lengths: that memory may hold NaN, and 0 * NaN is NaN."""
    keys = value.shape[-2]
    check_lengths(lengths, keys)
    valid = np.arange(keys)[:, None] < lengths[..., None, None, None]
    return np.where(valid, value, value.dtype.type(0))


def _weights(scores: NumpyArray, sinks: NumpyArray | None) -> NumpyArray:
    """softmax over the last axis and a head's sink; a row whose scores are all -inf gives zeros,
    not NaN."""
    peak = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    base = np.where(peak == -np.inf, 0, peak)
    powers = np.exp(scores - base)
    total = np.sum(powers, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(scores.dtype)[:, None, None] - base)
    return np.asarray(powers / np.where(total == 0, 1, total))


@op(OpFamily.ATTENTION, attention_shape, rules.floating)
def attention(
    query: NumpyArray,
    key: NumpyArray,
    value: NumpyArray,
    mask: NumpyArray | None = None,
    lengths: NumpyArray | None = None,
    sinks: NumpyArray | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    cap: float = 0.0,
) -> NumpyArray:
    """softmax(query @ key.T * scale + mask) @ value, for each head.

    query is (..., heads, L, D), key (..., key heads, S, D) and value (..., key heads, S, Dv); the
    result is (..., heads, L, Dv) in the promoted dtype, float32 for integers. The number of heads
    is a multiple of the number of key heads: consecutive query heads share a key head.

    mask broadcasts to (..., heads, L, S). A bool mask is True where a query sees a key; a floating
    one is added to the scores, so -inf hides a key. lengths are integers of the batch shape: the
    number of valid keys; keys and values beyond it are not read. The last query has the position
    of the last valid key; causal=True hides the keys after a query's position, and window=n (with
    causal) all but the last n keys up to it. scale is 1 / sqrt(D) unless given. cap > 0 limits the
    scores to cap * tanh(score / cap) before the mask is added. sinks are a score for each head
    that takes part in the softmax and has no value. A query that sees no key gives zeros.

    Shapes that do not fit raise ShapeError, a mask of integers DtypeError, and a window
    without causal ValueError. A length outside 0 to S raises IndexError where the host knows it,
    when the result is computed; lengths that a Metal device computed, and those of traced
    functions, are clamped to that range.
    """
    count, depth = query.shape[-2:]
    keys = key.shape[-2]
    if lengths is not None:
        value = _valid(value, lengths)
    if scale is None:
        scale = 1 / math.sqrt(max(depth, 1))
    group = query.shape[-3] // max(key.shape[-3], 1)
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * scale
    if cap:
        scores = cap * np.tanh(scores / cap)
    if mask is not None:
        scores = scores + mask
    scores = np.where(_seen(count, keys, lengths, causal, window), scores, -np.inf)
    return np.asarray(_weights(scores, sinks) @ value)


def quantized_attention_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    query, key, value, *others = shapes
    values = (cached_shape(rules.first([codes]), attributes["scheme"]) for codes in (key, value))
    return attention_shape([query, *values, *others], attributes)


@op(OpFamily.ATTENTION, quantized_attention_shape, rules.floating)
def quantized_attention(
    query: NumpyArray,
    key_codes: NumpyArray,
    value_codes: NumpyArray,
    mask: NumpyArray | None = None,
    lengths: NumpyArray | None = None,
    sinks: NumpyArray | None = None,
    *,
    scheme: str = CACHE_SCHEME,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    cap: float = 0.0,
) -> NumpyArray:
    """`attention` whose keys and values are blocks of a quantization scheme.

    key_codes and value_codes are uint8 of shape (..., key heads, S, bytes of a row), as
    `overwrite_blocks` writes them. Everything else is as in `attention`. A scheme other than q8_0
    raises QuantizationError.
    """
    key, value = (quant.dequantize(codes, scheme) for codes in (key_codes, value_codes))
    rule = {"causal": causal, "window": window, "scale": scale, "cap": cap}
    return np.asarray(attention(query, key, value, mask, lengths, sinks, **rule))


def rope_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    shape, positions = rules.first(shapes), rules.first(shapes[1:])
    factors = shapes[2] if len(shapes) > 2 else None
    if not shape:
        raise ShapeError("a scalar has no features to rotate: give x the shape (..., L, D)")
    dims = shape[-1] if attributes["dims"] is None else operator.index(attributes["dims"])
    if dims % 2 or not 0 <= dims <= shape[-1]:
        raise ShapeError(
            f"dims={dims} of {shape[-1]} features: give an even number up to {shape[-1]}"
        )
    if sh.broadcast(shape[:-1], positions) != shape[:-1]:
        raise ShapeError(f"positions of shape {positions} are larger than {shape[:-1]}: slice them")
    if factors is not None and factors != (dims // 2,):
        raise ShapeError(f"factors have shape {factors}: give one for each pair, ({dims // 2},)")
    return shape


@op(OpFamily.ROPE, rope_shape, rules.floating)
def rope(
    x: NumpyArray,
    positions: NumpyArray,
    factors: NumpyArray | None = None,
    *,
    dims: int | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    scale: float = 1.0,
) -> NumpyArray:
    """Rotary position embedding: rotates pairs of features by angles that grow with the position.

    x is (..., L, D); positions are integers that broadcast to (..., L). The result has the shape
    and dtype of x; integers become float32.

    Pair i of the first `dims` features (all by default) is rotated by the angle
    position * scale * base**(-2 * i / dims) / factors[i]. The pair is features i and i + dims / 2,
    or 2 * i and 2 * i + 1 if interleaved. The other features do not change. factors, of shape
    (dims / 2,), are ones unless given. An odd dims, or one above D, raises ShapeError.
    """
    pairs = (x.shape[-1] if dims is None else dims) // 2
    if pairs == 0:
        return x
    frequencies = scale * base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    angles = positions[..., None].astype(np.float64) * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    neighbours = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    halves = slice(0, pairs), slice(pairs, 2 * pairs)
    first, second = neighbours if interleaved else halves
    result = x.astype(np.float64)
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result
