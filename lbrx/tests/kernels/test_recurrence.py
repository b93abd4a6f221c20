"""Recurrent operations against float64 loops: states in place, beginnings, padding, pieces."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
import softmetal
from lbrx.arrays import dtype as dt
from lbrx.tensors.core import calls
from lbrx.tensors.long_lived import new_cache, write

DEVICES = ("metal", "cpu")
# A text that goes on, one that begins after padding, one that begins within, and all padding.
POSITIONS = np.array([[3, 4, 5, 6, 7], [-2, -1, 0, 1, 2], [8, 9, 0, 1, 2], [-5, -4, -3, -2, -1]])


def state_of(values, device):
    state = new_cache(values.shape, dt.float32, device)
    write(state, lbrx.tensor(values.astype(np.float32), device=device))
    return state


def convolved(state, x, weight, positions, bias):
    """One token after the other: the new state, and the result."""
    state, result = state.copy(), np.zeros_like(x)
    for b, t in np.ndindex(*positions.shape):
        if positions[b, t] < 0:
            continue
        before = np.zeros_like(state[b]) if positions[b, t] == 0 else state[b]
        window = np.column_stack([before, x[b, t]])
        result[b, t] = np.einsum("ct,ct->c", window, weight) + bias
        state[b] = window[:, 1:]
    return state, result


def recurred(state, values, keys, queries, decay, gate, positions, delta):
    state, result = state.copy(), np.zeros_like(values)
    heads = values.shape[2]
    for b, t in np.ndindex(*positions.shape):
        for h in range(heads) if positions[b, t] >= 0 else ():
            key, query = (x[b, t, h * keys.shape[2] // heads] for x in (keys, queries))
            old = state[b, h] * decay[b, t, h] if positions[b, t] else np.zeros_like(state[b, h])
            value = values[b, t, h] - (old @ key if delta else 0)
            state[b, h] = old + np.outer(value * gate[b, t, h], key)
            result[b, t, h] = state[b, h] @ query
    return state, result


def check(operation, device, state, operands, positions, wanted, pieces, **rule):
    """At once or in pieces: the result, and the state in its own memory."""
    kept, results = state_of(state, device), []
    for part in pieces:
        own = [lbrx.tensor(x[:, part].astype(np.float32), device=device) for x in operands[0]]
        whole = [lbrx.tensor(x.astype(np.float32), device=device) for x in operands[1]]
        places = lbrx.tensor(positions[:, part], device=device)
        given = (
            [*own, places] if operation == "recurrence" else [own[0], whole[0], places, *whole[1:]]
        )
        _, result = calls(operation, kept, *given, **rule)
        results.append(result.numpy())
    np.testing.assert_allclose(np.concatenate(results, 1), wanted[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(kept.numpy(), wanted[0], rtol=1e-4, atol=1e-4)


WHOLE, IN_PIECES = [slice(0, 5)], [slice(0, 2), slice(2, 3), slice(3, 5)]


@pytest.mark.parametrize("pieces", [WHOLE, IN_PIECES], ids=["whole", "pieces"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("taps", [1, 3, 4])
def test_short_convolution(taps, device, pieces, rng):
    state, x = rng.normal(size=(4, 7, taps - 1)), rng.normal(size=(4, 5, 7))
    weight, bias = rng.normal(size=(7, taps)), rng.normal(size=7)
    wanted = convolved(state, x, weight, POSITIONS, bias)
    check("short_convolution", device, state, ([x], [weight, bias]), POSITIONS, wanted, pieces)


@pytest.mark.parametrize("pieces", [WHOLE, IN_PIECES], ids=["whole", "pieces"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("delta", [False, True])
def test_recurrence(delta, device, pieces, rng):
    state, values = rng.normal(size=(4, 6, 3, 20)), rng.normal(size=(4, 5, 6, 3))
    keys, queries = rng.normal(size=(2, 4, 5, 2, 20)) * 0.3
    decay, gate = rng.uniform(0.2, 1, (2, 4, 5, 6))
    wanted = recurred(state, values, keys, queries, decay, gate, POSITIONS, delta)
    given = ([values, keys, queries, decay, gate], [])
    check("recurrence", device, state, given, POSITIONS, wanted, pieces, delta=delta)


def test_under_bounds_and_race(rng):
    with softmetal.checking("bounds", "race"):
        test_short_convolution(4, "metal", WHOLE, rng)
        test_recurrence(True, "metal", WHOLE, rng)


@pytest.mark.parametrize("chip", ["m1", "m5"])
def test_on_an_apple_chip(chip, on_chip, rng):
    with on_chip(chip):
        test_short_convolution(4, "metal", IN_PIECES, rng)
        test_recurrence(False, "metal", IN_PIECES, rng)


@pytest.mark.parametrize(
    ("operation", "shapes", "told"),
    [
        ("short_convolution", [(1, 4, 2), (1, 3, 5), (4, 3), (1, 3)], "the state of shape"),
        ("short_convolution", [(1, 4, 2), (1, 3, 4), (4, 3), (1, 2)], "the positions of shape"),
        ("recurrence", [(1, 4, 2, 6), (1, 3, 4, 2), (1, 3, 3, 6), (1, 3, 3, 6), (1, 3, 4), (1, 3, 4), (1, 3)], "do not divide"),
        ("recurrence", [(1, 4, 2, 6), (1, 3, 4, 2), (1, 3, 2, 6), (1, 3, 2, 6), (1, 3, 4), (1, 3), (1, 3)], "the gates of shape"),
        ("recurrence", [(1, 4, 2, 300), (1, 3, 4, 2), (1, 3, 2, 300), (1, 3, 2, 300), (1, 3, 4), (1, 3, 4), (1, 3)], "more than kernels"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(operation, shapes, told):
    *operands, positions = shapes
    if operation == "short_convolution":
        operands, positions = shapes[:3], shapes[3]
    given = [lbrx.zeros(shape, device="metal") for shape in operands]
    places = lbrx.zeros(positions, dtype="int32", device="metal")
    with pytest.raises(lbrx.ShapeError, match=told):
        lbrx.eval(*calls(operation, *given, places))
