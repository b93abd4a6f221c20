"""Where elements are, which there are, and whether tensors are equal, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from function_cases import Case, check
from op_oracle import FLOATS, NUMBERS, chosen, close, pair, sample, to_bool, to_index

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

FEW = {"low": -2, "high": 2}
CASES = {
    "nonzero": Case(fn.nonzero, np.nonzero, result=to_index, low=-1, high=1),
    "nonzero of nothing": Case(fn.nonzero, np.nonzero, ((3, 0),), result=to_index),
    "argwhere": Case(fn.argwhere, np.argwhere, result=to_index, low=-1, high=1),
    "argwhere of a scalar": Case(fn.argwhere, np.argwhere, ((),), result=to_index, low=1),
    "isin": Case(fn.isin, np.isin, ((4, 5), (2, 3)), result=to_bool, **FEW),
    "isin none": Case(
        lambda x, y: fn.isin(x, y, invert=True),
        lambda x, y: np.isin(x, y, invert=True),
        ((4, 5), (3,)),
        result=to_bool,
        **FEW,
    ),
    "isin nothing": Case(fn.isin, np.isin, ((4,), (0,)), result=to_bool),
    "unique_values": Case(fn.unique_values, np.unique, **FEW),
    "unique of nothing": Case(fn.unique, np.unique, ((0, 2),)),
    "isclose": Case(fn.isclose, np.isclose, ((4, 5), (5,)), result=to_bool, **FEW),
    "array_equal": Case(fn.array_equal, np.array_equal, ((2,), (2,)), result=to_bool, high=-3),
    "array_equal of shapes": Case(fn.array_equal, np.array_equal, ((2,), (1,)), result=to_bool),
}


@pytest.mark.parametrize("name", CASES)
def test_like_numpy(name, place, rng):
    check(CASES[name], name, place, rng)


def test_unique_all(place, rng):
    for dtype in chosen(dt.ALL, place, "unique"):
        a, x = pair(rng, (4, 5), dtype, place, "transposed", -2, 2)
        values, indices, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        found = fn.unique_all(a)
        close(found.values, values, dtype)
        close(found.indices, indices, dt.int64)
        close(found.inverse_indices, inverse.reshape(x.shape), dt.int64)
        close(found.counts, counts, dt.int64)
        close(fn.unique_counts(a).counts, counts, dt.int64)
        close(fn.unique_inverse(a).inverse_indices, inverse.reshape(x.shape), dt.int64)
    nan = lbrx.tensor([math.nan, 1, math.nan], device=place)
    assert fn.unique_counts(nan).counts.tolist() == [1, 1, 1]


def test_take(place, rng):
    for dtype in chosen(dt.ALL, place, "take"):
        a, x = pair(rng, (3, 4), dtype, place, "transposed")
        places = rng.integers(-12, 12, (2, 5))
        close(fn.take(a, places, axis=None), np.take(x, places), dtype)
        close(a.take(places, None), np.take(x, places), dtype)
        close(fn.take(a, places % 4, axis=1), np.take(x, places % 4, 1), dtype)
        close(fn.take(a, 2), x[2], dtype)
        beyond = fn.take(a, [11, 12], axis=None, beyond="zeros")
        close(beyond, np.array([x[2, 3], 0]), dtype)
    with pytest.raises(IndexError, match="12"):
        fn.take(lbrx.ones((3, 4), device=place), 12, axis=None).numpy()


def test_take_along_axis(place, rng):
    for dtype in chosen(NUMBERS, place, "take_along_axis"):
        a, x = pair(rng, (3, 4), dtype, place)
        places = rng.integers(-3, 3, (2, 4))
        close(fn.take_along_axis(a, places, axis=0), np.take_along_axis(x, places, 0), dtype)
        row = rng.integers(0, 4, (1, 5))
        close(fn.take_along_axis(a, row), np.take_along_axis(x, row, 1), dtype)
        close(fn.take_along_axis(a[:1], [[0], [3]]), x[0, [[0], [3]]], dtype)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 100])
def test_searchsorted(side, count, place, rng):
    for dtype in chosen((*FLOATS, dt.uint8, dt.int64), place, f"searchsorted {count}"):
        ordered = np.sort(sample(rng, (count,), dtype, 0, 50))
        values = sample(rng, (3, 5), dtype, 0, 55)
        a, b = lbrx.tensor(ordered, device=place), lbrx.tensor(values, device=place)
        expected = np.searchsorted(ordered.astype(float), values.astype(float), side)
        close(fn.searchsorted(a, b, side=side), expected, dt.int64)


def test_searchsorted_with_nan_and_sorter(place):
    ordered, values = np.array([1, 2, math.nan, math.nan]), np.array([math.nan, 0, 2, 5])
    for side in ("left", "right"):
        result = fn.searchsorted(lbrx.tensor(ordered, device=place), values, side=side)
        close(result, np.searchsorted(ordered, values, side), dt.int64)
    mixed = lbrx.tensor([3, 1, 2], device=place)
    close(fn.searchsorted(mixed, [2, 4], sorter=[1, 2, 0]), [1, 3], dt.int64)


def test_isclose_at_the_limits(place):
    inf, nan = math.inf, math.nan
    x, y = np.array([inf, inf, -inf, nan, nan, 1, 1]), np.array([inf, 1, inf, nan, 1, 1.1, inf])
    a, b = (lbrx.tensor(v, dt.float32, place) for v in (x, y))
    for more in ({}, {"equal_nan": True}, {"rtol": 0.2}, {"atol": 0.2, "rtol": 0}):
        close(fn.isclose(a, b, **more), np.isclose(x, y, **more), dt.bool_)
    assert fn.allclose(a, a, equal_nan=True)
    assert not fn.allclose(a, a)
    assert not fn.array_equal(a, a)
    assert fn.array_equal(a, a, equal_nan=True)
    small = lbrx.tensor(np.uint8([1, 200]), device=place)
    assert not fn.allclose(small, small - 1)  # unsigned differences do not wrap
    assert fn.isclose(small, [2, 1], atol=1).tolist() == [True, False]


def test_nextafter(place):
    x = np.array([0, -0.0, 1, 1, -1, -1, math.inf, -math.inf, 3, math.nan, 1e-45], np.float32)
    y = np.array([1, -1, 2, 0, -2, 0, 0, 0, 3, 1, -1], np.float32)
    for dtype in chosen((dt.float32, dt.float64), place):
        given = x.astype(dtype.numpy), y.astype(dtype.numpy)
        result = lbrx.tensor(given[0], device=place).nextafter(lbrx.tensor(given[1], device=place))
        np.testing.assert_array_equal(result.numpy(), np.nextafter(*given))
    with pytest.raises(lbrx.DtypeError, match="float16 is computed in float32: cast to float32"):
        lbrx.ones(2, "float16", device=place).nextafter(1)


def test_floats_at_their_limits(place):
    inf, nan = math.inf, math.nan
    x, y = np.array(
        [
            (a, b)
            for a in (0, -0.0, 1e30, -1e-30, inf, -inf, nan)
            for b in (0, -0.0, -1e30, inf, -inf, nan)
        ],
        np.float32,
    ).T
    a, b = (lbrx.tensor(np.ascontiguousarray(v), device=place) for v in (x, y))
    with np.errstate(all="ignore"):
        for name in ("copysign", "hypot", "logaddexp"):
            expected = getattr(np, name)(x, y)
            np.testing.assert_allclose(
                getattr(a, name)(b).numpy(), expected, rtol=1e-6, err_msg=name
            )
    np.testing.assert_array_equal(a.signbit().numpy(), np.signbit(x))


@pytest.mark.parametrize("limits", [(-1, 2), (None, 1), (0, None), (None, None), (2, -1)], ids=str)
def test_clip(limits, place, rng):
    for dtype in chosen(NUMBERS, place, "clip"):
        a, x = pair(rng, (4, 5), dtype, place, "transposed")
        low, high = (
            n if n is None or dtype.kind is not dt.Kind.UINT else max(n, 0) for n in limits
        )
        expected = x if low is None else np.maximum(x, low)
        expected = expected if high is None else np.minimum(expected, high)
        close(fn.clip(a, low, high), expected, dtype)
    row = lbrx.tensor([0.5, 1, 1.5], device=place)
    close(
        fn.clip(lbrx.tensor([[0, 1, 2]], device=place).astype("float16"), max=row),
        [[0, 1, 1.5]],
        dt.float16,
    )
    close(fn.positive(row), [0.5, 1, 1.5], dt.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fn.nonzero(lbrx.tensor(1)), lbrx.ShapeError, "reshape it to"),
        (lambda: fn.searchsorted([[1]], [1]), lbrx.ShapeError, "give a sorted vector"),
        (lambda: fn.searchsorted([1], [1], side="up"), ValueError, "side='up': give 'left' or"),
        (lambda: fn.take_along_axis([[1]], [0]), lbrx.ShapeError, "give as many axes"),
        (
            lambda: fn.clip(lbrx.ones(2, "int8"), 0.5),
            lbrx.DtypeError,
            "limit 0.5 for int8: give an",
        ),
        (lambda: fn.positive(lbrx.ones(2, "bool")), lbrx.DtypeError, "cast it to a number"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
