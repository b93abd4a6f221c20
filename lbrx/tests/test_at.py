"""Functional item assignment against numpy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from op_oracle import NUMBERS, chosen, close, pair

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors.at import At

RNG = np.random.default_rng(5)
MASK = RNG.random((4, 5, 6)) < 0.4
KEYS = {
    "int": 2,
    "negative": (-1, -2),
    "all ints": (1, 2, 3),
    "slice": slice(1, 3),
    "steps": (slice(None, None, 2), slice(None, None, -1), slice(4, 0, -2)),
    "empty slice": slice(3, 1),
    "ellipsis": (..., 0),
    "everything": ...,
    "newaxis": (None, slice(0, 2), None, 3),
    "array": np.array([3, 0, 3]),
    "list": [0, -1],
    "matrix": np.array([[0, 1], [1, 2]]),
    "two arrays": (np.array([0, 3, 0]), np.array([1, 4, 1])),
    "arrays apart": (np.array([0, 1]), slice(1, 4), np.array([5, 5])),
    "arrays broadcast": (np.array([[0], [2]]), np.array([1, 4])),
    "array and int": (2, slice(None), np.array([1, 1, 2])),
    "array and steps": (slice(None, None, 2), np.array([4, 0, 4])),
    "array and newaxis": (None, np.array([1, 2]), slice(2, 4)),
    "no indices": np.zeros(0, int),
    "mask": MASK,
    "mask of rows": MASK[:, 0, 0],
    "mask in the middle": (slice(1, 3), MASK[0, :, 0]),
    "mask of two axes": MASK[..., 0],
}
UPDATES = {
    "set": None,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def updated(x, key, values, name):
    result = x.copy()
    if UPDATES[name] is None:
        result[key] = values
    else:
        UPDATES[name].at(result, key, values)
    return result


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_updates(key, place, rng):
    every = place == "cpu" or place.every
    for dtype in chosen(NUMBERS, place, str(key)):
        a, x = pair(rng, (4, 5, 6), dtype, place, "transposed", -2, 2)
        shape = x[key].shape
        close(At(a)[key].get(), x[key], dtype)
        for name in UPDATES if every or dtype is dt.float32 else ("set", "add"):
            if (
                name == "set"
                and isinstance(key, tuple)
                and len(np.unique(np.asarray(key[0]))) != np.size(key[0])
            ):
                continue  # numpy does not say which of several values it sets
            b, y = pair(rng, shape, dtype, place, low=-2, high=2)
            expected = updated(x, key, y, name).astype(dtype.numpy)
            close(getattr(At(a)[key], name)(b), expected, dtype, scale=4)
        close(a, x, dtype)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (5, 1), (2, 5, 1)], ids=str)
@pytest.mark.parametrize(
    "key", [slice(1, 3), np.array([3, 0]), MASK], ids=["slice", "array", "mask"]
)
def test_values_broadcast(key, shape, place, rng):
    if key is MASK and shape not in ((), (1,)):
        return
    a, x = pair(rng, (4, 5, 6), dt.float32, place)
    b, y = pair(rng, shape, dt.float32, place)
    close(At(a)[key].add(b), updated(x, key, y, "add"), dt.float32)
    close(At(a)[key].set(b), updated(x, key, y, "set"), dt.float32)


def test_the_last_of_several_values_is_set(place):
    x = lbrx.zeros((4, 2), device=place)
    result = At(x)[[1, 1, 3, 1]].set([[1, 1], [2, 2], [3, 3], [4, 4]])
    assert result.tolist() == [[0, 0], [4, 4], [0, 0], [3, 3]]


def test_duplicates_accumulate(place):
    x = lbrx.tensor(np.float16([1, 2, 3]), device=place)
    assert At(x)[[0, 0, 2]].add(10).tolist() == [21, 2, 13]
    assert At(x)[[0, 0, 2]].multiply(10).tolist() == [100, 2, 30]
    assert At(x)[[1, 1]].min([5, 1]).tolist() == [1, 1, 3]
    assert At(x)[[1, 1]].max([5, math.nan]).tolist()[0] == 1
    # Halves are combined in float32: 2048 + 1 + 1 in float16 would stay 2048.
    big = lbrx.full((1,), 2048, "float16", place)
    assert At(big)[[0, 0]].add(1).tolist() == [2050]


def test_values_take_the_type_of_the_tensor(place):
    x = lbrx.zeros(3, "int32", place)
    assert At(x)[1].set(lbrx.tensor(2.7, device=place)).tolist() == [0, 2, 0]
    assert At(x)[1].set(np.float32([2.7])).dtype is dt.int32
    flags = lbrx.tensor([True, False, False], device=place)
    assert At(flags)[:2].add(True).tolist() == [True, True, False]
    assert At(flags)[[0, 1]].multiply(False).tolist() == [False] * 3
    with pytest.raises(lbrx.DtypeError, match="300 does not fit int8"):
        At(lbrx.zeros(3, "int8", place))[0].set(300)


def test_a_mask_on_the_device_is_not_evaluated(metal_default):
    x = lbrx.arange(6, dtype="float32").reshape(2, 3)
    mask = x > 2
    result = At(x)[mask].set(-1)
    assert type(mask.array.storage).__name__ == type(result.array.storage).__name__ == "Pending"
    assert result.tolist() == [[0, 1, 2], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda at: at[3].set(0), IndexError, "index 3 is beyond"),
        (lambda at: at[[0, 3]].set(0), IndexError, "index 3 is beyond an axis of 3"),
        (lambda at: at[0, 0, 0].set(0), IndexError, "3 indices for 2 dimensions"),
        (lambda at: at["a"].set(0), TypeError, "str is not an index"),
        (lambda at: at[[0.5]].set(0), lbrx.DtypeError, "indices are float64"),
        (lambda at: at[:2].set([1, 2, 3]), lbrx.ShapeError, "does not expand"),
        (lambda at: at[[0, 1]].add([1, 2, 3]), lbrx.ShapeError, "does not expand"),
        (lambda at: at[np.ones(2, bool)].set(0), lbrx.ShapeError, "a mask of shape"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(At(lbrx.ones((3, 2), device="cpu")))
