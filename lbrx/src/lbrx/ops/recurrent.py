"""Recurrent layers: what they keep of earlier tokens has one size, however long the text.

Their first operand is that state, in memory that is written in place like a cache's. A token at
position 0 begins a text, with a state of zeros. Positions below zero are padding, which changes
nothing and gives zeros.
"""

from __future__ import annotations

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op


def _types(promoted: Dtype, _: Attributes) -> tuple[Dtype, Dtype]:
    if promoted.name != "float32":
        raise DtypeError(f"states are float32, not {promoted}: make a cache of float32")
    return promoted, promoted


def _fit(name: str, given: Shape, wanted: Shape) -> None:
    if given != wanted:
        raise ShapeError(f"{name} of shape {given} do not fit: give {wanted}")


def _convolution_shapes(shapes: rules.Shapes, _: Attributes) -> list[Shape]:
    state, x, weight, positions = (rules.first(shapes[i:]) for i in range(4))
    if len(x) != 3 or len(weight) != 2 or not weight[1]:
        raise ShapeError(f"x {x} and weight {weight}: give (batch, tokens, channels) and taps")
    batch, tokens, channels = x
    _fit("the state", state, (batch, channels, weight[1] - 1))
    _fit("the weights", weight, (channels, weight[1]))
    _fit("the positions", positions, (batch, tokens))
    if len(shapes) > 4 and shapes[4] is not None:
        _fit("the bias", shapes[4], (channels,))
    return [state, x]


@op(OpFamily.ATTENTION, _convolution_shapes, _types)
def short_convolution(
    cache: NumpyArray,
    x: NumpyArray,
    weight: NumpyArray,
    positions: NumpyArray,
    bias: NumpyArray | None = None,
) -> tuple[NumpyArray, NumpyArray]:
    """A causal convolution of each channel with its own few taps: the new state, and the result.

    x is (batch, tokens, channels), weight (channels, taps), positions (batch, tokens) and bias
    (channels,). The state is (batch, channels, taps - 1): the last inputs, the oldest first.
    """
    state, result = cache.copy(), np.zeros_like(x)
    for b, t in np.ndindex(*positions.shape):
        if positions[b, t] < 0:
            continue
        if positions[b, t] == 0:
            state[b] = 0
        window = np.concatenate([state[b], x[b, t, :, None]], axis=-1)
        result[b, t] = (window * weight).sum(axis=-1) + (0 if bias is None else bias)
        state[b] = window[:, 1:]
    return state, result


def _recurrence_shapes(shapes: rules.Shapes, _: Attributes) -> list[Shape]:
    state, values, keys, queries, decay, gate, positions = (
        rules.first(shapes[i:]) for i in range(7)
    )
    if len(values) != 4 or len(keys) != 4:
        raise ShapeError(f"values {values} and keys {keys}: give (batch, tokens, heads, size)")
    batch, tokens, heads, width = values
    if not keys[2] or heads % keys[2]:
        raise ShapeError(f"{heads} heads do not divide among {keys[2]} of keys: give a multiple")
    _fit("the state", state, (batch, heads, width, keys[-1]))
    _fit("the keys", keys, (batch, tokens, *keys[2:]))
    _fit("the queries", queries, keys)
    _fit("the decays", decay, (batch, tokens, heads))
    _fit("the gates", gate, (batch, tokens, heads))
    _fit("the positions", positions, (batch, tokens))
    return [state, values]


@op(OpFamily.ATTENTION, _recurrence_shapes, _types)
def recurrence(
    cache: NumpyArray,
    values: NumpyArray,
    keys: NumpyArray,
    queries: NumpyArray,
    decay: NumpyArray,
    gate: NumpyArray,
    positions: NumpyArray,
    *,
    delta: bool = False,
) -> tuple[NumpyArray, NumpyArray]:
    """A linear recurrence of matrices, token by token: the new state, and what queries read of it.

    The state of a head, (width, size), is multiplied by the token's decay; then gate * value times
    key is added to it; the result is the state times the query. With delta=True what the decayed
    state has for the key is subtracted from the value first (the gated delta rule).

    values are (batch, tokens, heads, width), keys and queries (batch, tokens, key heads, size),
    decay and gate (batch, tokens, heads), positions (batch, tokens), and the state is (batch,
    heads, width, size). Consecutive heads share a key head.
    """
    state, result = cache.copy(), np.zeros_like(values)
    share = values.shape[2] // keys.shape[2]
    for b, t in np.ndindex(*positions.shape):
        if positions[b, t] < 0:
            continue
        if positions[b, t] == 0:
            state[b] = 0
        key, query = (np.repeat(x[b, t], share, axis=0)[:, None] for x in (keys, queries))
        state[b] *= decay[b, t, :, None, None]
        value = values[b, t]
        if delta:
            value = value - (state[b] * key).sum(axis=-1)
        state[b] += (value * gate[b, t, :, None])[..., None] * key
        result[b, t] = (state[b] * query).sum(axis=-1)
    return state, result
