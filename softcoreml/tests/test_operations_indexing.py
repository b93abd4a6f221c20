"""Gathering and scattering against single elements, with indices of every type and out of range."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

from softcoreml.errors import ModelError

Array = np.ndarray
MODES = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "mul": lambda old, new: old * new,
    "div": lambda old, new: old / new,
    "max": max,
    "min": min,
}
INDEX_TYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32]
X = generator(30).standard_normal((3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("opset", ["ios15", "ios16", "ios17", "ios18"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_gather(opset: str, axis: int, index_type: type) -> None:
    indices = np.array([[2, 0], [1, 2]], index_type)
    actual = call("gather", opset, x=X, indices=indices, axis=np.int32(axis))
    moved = np.moveaxis(X, axis, 0)
    parts = np.stack([np.stack([moved[one] for one in row]) for row in indices.tolist()])
    expected = np.moveaxis(parts, (0, 1), (axis % 3, axis % 3 + 1))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint16, np.int32, np.bool_])
def test_gather_keeps_types(dtype: type) -> None:
    x = generator(31).integers(0, 2, (3, 4)).astype(dtype)
    assert call("gather", x=x, indices=np.int32(1), axis=1).dtype == dtype


def test_gather_nd_within_a_batch() -> None:
    indices = generator(32).integers(0, 4, (3, 2, 6, 1)).astype(np.int32)
    actual = call("gather_nd", x=X, indices=indices, batch_dims=np.int32(1))
    expected = np.zeros((3, 2, 6, 5), np.float32)
    for batch, i, j in itertools.product(range(3), range(2), range(6)):
        expected[batch, i, j] = X[batch, indices[batch, i, j, 0]]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("batch", [1, 2])
def test_gather_within_a_batch(batch: int) -> None:
    indices = generator(33).integers(0, 5, (3, 4, 7)[: batch + 1]).astype(np.int32)
    actual = call("gather", x=X, indices=indices, axis=2, batch_dims=np.int32(batch))
    for place in itertools.product(*map(range, X.shape[:batch])):
        np.testing.assert_array_equal(actual[place], X[place][..., indices[place]])


def scattered(data: Array, places: list[tuple[Any, ...]], values: list[Array], mode: str) -> Array:
    """Updates one after the other."""
    result = data.astype(np.float64)
    for place, value in zip(places, values, strict=True):
        function = np.vectorize(MODES[mode], otypes=[np.float64])
        result[place] = function(result[place], np.asarray(value, np.float64))
    return result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("opset", ["ios15", "ios17"])
def test_scatter(mode: str, dtype: type, opset: str) -> None:
    """Repeated indices all count; for update the last one does."""
    rng = generator(34)
    data = rng.uniform(0.5, 2, (3, 4)).astype(dtype)
    rows, updates = np.array([1, 3, 1], np.int32), rng.uniform(0.5, 2, (3, 3)).astype(dtype)
    actual = call("scatter", opset, data=data, indices=rows, updates=updates, axis=1, mode=mode)
    places = [(slice(None), one) for one in rows]
    close(actual, scattered(data, places, list(updates.T), mode), 1e-6)

    columns = np.array([[0, 2], [1, 1], [3, 0]], np.int32)
    updates = rng.uniform(0.5, 2, (3, 2)).astype(dtype)
    actual = call(
        "scatter_along_axis", opset, data=data, indices=columns, updates=updates, axis=-1, mode=mode
    )
    cells = list(itertools.product(range(3), range(2)))
    expected = scattered(
        data, [(i, columns[i, j]) for i, j in cells], [updates[one] for one in cells], mode
    )
    close(actual, expected, 1e-6)

    pairs = np.array([[0, 1], [2, 3], [0, 1]], np.int32)
    values = rng.uniform(0.5, 2, 3).astype(dtype)
    actual = call("scatter_nd", opset, data=data, indices=pairs, updates=values, mode=mode)
    close(actual, scattered(data, [tuple(one) for one in pairs], list(values), mode), 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_scatter_integers(mode: str) -> None:
    data, indices = np.array([9, -7, 5], np.int32), np.array([2, 0], np.int32)
    updates = np.array([2, 4], np.int32)
    actual = call("scatter", data=data, indices=indices, updates=updates, mode=mode)
    assert actual.dtype == np.int32
    expected = [MODES[mode](9, 4), -7, MODES[mode](5, 2)]
    assert actual.tolist() == [int(one) for one in expected]


def test_the_default_mode_adds() -> None:
    """MIL's example, whose default mode is add."""
    data = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    updates = np.array([[5, 6, 7], [8, 9, 10]], np.float32)
    actual = call("scatter", data=data, indices=np.array([1, 0]), updates=updates)
    assert actual.tolist() == [[9, 11, 13], [9, 11, 13]]
    assert data[0, 0] == 1  # the input is left alone


@pytest.mark.parametrize("name", ["gather", "gather_along_axis", "gather_nd"])
def test_indices_out_of_range(name: str) -> None:
    """Negative ones count from the end; others are refused until iOS 16, or with validation."""
    row = np.array([10.0, 20.0, 30.0], np.float32)
    negative, beyond = np.array([-1, 0], np.int32), np.array([0, 7], np.int32)
    if name == "gather_nd":
        negative, beyond = negative[:, None], beyond[:, None]
    assert call(name, "ios16", x=row, indices=negative).tolist() == [30, 10]
    assert call(name, "ios17", x=row, indices=negative).tolist() == [30, 10]
    assert call(name, "ios17", x=row, indices=beyond).tolist() == [10, 30]
    for opset, indices, how in (
        ("ios15", beyond, {}),
        ("ios16", beyond, {}),
        ("ios17", beyond, {"validate_indices": True}),
        ("ios17", negative, {"validate_indices": True}),
    ):
        with pytest.raises(ModelError, match="indices are out of range"):
            call(name, opset, x=row, indices=indices, **how)


def test_scatter_out_of_range_is_refused_with_validation() -> None:
    data, updates = np.zeros(3, np.float32), np.ones(1, np.float32)
    given = {"data": data, "indices": np.array([5]), "updates": updates}
    with pytest.raises(ModelError, match="indices"):
        call("scatter", "ios17", validate_indices=True, **given)
    with pytest.raises(ModelError, match="indices"):
        call("scatter", "ios16", **given)
    assert call("scatter", "ios17", **given).tolist() == [0, 0, 1]


def test_no_indices() -> None:
    none = np.zeros((0,), np.int32)
    assert call("gather", x=X, indices=none, axis=1).shape == (3, 0, 5)
    found = call("scatter", data=X, indices=none, updates=np.zeros((0, 4, 5), np.float32))
    close(found, X, 0)
