"""Deviations, quantiles, counts, differences and cumulative functions, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from function_cases import Case, check
from op_oracle import NUMBERS, close, to_float, to_index, to_wide

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

FLOATING = {"result": to_float, "scale": 4}


def logsumexp(x, axis=None, keepdims=False):
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def quantile_case(q, axis=None, **more):
    return Case(
        lambda x: fn.quantile(x, q, axis, **more),
        lambda x: np.quantile(x, q, axis, **more),
        ((3, 4, 5),),
        **FLOATING,
    )


CASES = {
    "std": Case(fn.std, np.std, **FLOATING),
    "std of rows": Case(
        lambda x: fn.std(x, axis=1, correction=1, keepdims=True),
        lambda x: np.std(x, axis=1, ddof=1, keepdims=True),
        **FLOATING,
    ),
    "logsumexp": Case(fn.logsumexp, logsumexp, **FLOATING),
    "logsumexp of axes": Case(
        lambda x: fn.logsumexp(x, axis=(0, -1), keepdims=True),
        lambda x: logsumexp(x, (0, -1), True),
        ((3, 4, 5),),
        **FLOATING,
    ),
    "logsumexp of columns": Case(
        lambda x: fn.logsumexp(x, axis=0), lambda x: logsumexp(x, 0), **FLOATING
    ),
    "logsumexp of nothing": Case(
        lambda x: fn.logsumexp(x, axis=1),
        lambda x: np.full(2, -math.inf),
        ((2, 0),),
        result=to_float,
    ),
    "count_nonzero": Case(fn.count_nonzero, np.count_nonzero, result=to_index, low=-1, high=1),
    "count_nonzero of rows": Case(
        lambda x: fn.count_nonzero(x, axis=1, keepdims=True),
        lambda x: np.count_nonzero(x, axis=1, keepdims=True),
        result=to_index,
        low=-1,
        high=1,
    ),
    "median": Case(fn.median, np.median, **FLOATING),
    "median of odd": Case(fn.median, np.median, ((7,),), **FLOATING),
    "median of axes": Case(
        lambda x: fn.median(x, axis=(0, 2), keepdims=True),
        lambda x: np.median(x, axis=(0, 2), keepdims=True),
        ((3, 4, 5),),
        **FLOATING,
    ),
    "median of one": Case(fn.median, np.median, ((),), **FLOATING),
    "quantile": quantile_case(0.3),
    "quantile of axis": quantile_case([0, 0.25, 1], 1),
    "quantile of axes": quantile_case([[0.1, 0.9]], (0, -1), keepdims=True),
    **{
        f"quantile {method}": quantile_case(0.4, 1, method=method)
        for method in ("lower", "higher", "nearest", "midpoint")
    },
    "percentile": Case(
        lambda x: fn.percentile(x, [10, 50], 0), lambda x: np.percentile(x, [10, 50], 0), **FLOATING
    ),
    "diff": Case(fn.diff, np.diff, dtypes=NUMBERS),
    "diff of booleans": Case(fn.diff, lambda x: x[:, 1:] != x[:, :-1], dtypes=(dt.bool_,)),
    "diff twice": Case(
        lambda x: fn.diff(x, axis=0, n=2), lambda x: np.diff(x, n=2, axis=0), dtypes=NUMBERS
    ),
    "diff never": Case(lambda x: fn.diff(x, n=0), lambda x: x),
    "diff of more": Case(
        lambda x, y: fn.diff(x, prepend=y, append=1),
        lambda x, y: np.diff(x, prepend=y, append=1),
        ((4, 3), (4, 2)),
        NUMBERS,
    ),
    "sum": Case(lambda x: fn.sum(x, 1), lambda x: np.sum(x, 1), result=to_wide, scale=4),
    "sum as float32": Case(
        lambda x: fn.sum(x, dtype="float32", keepdims=True),
        lambda x: np.sum(x, keepdims=True),
        result=lambda _: dt.float32,
        scale=8,
    ),
    "prod as int16": Case(
        lambda x: fn.prod(x, 0, dtype="int16"),
        lambda x: np.prod(np.trunc(x), 0),
        result=lambda _: dt.int16,
        low=0,
    ),
    "prod": Case(fn.prod, np.prod, result=to_wide, low=0.5, high=1.7, scale=8),
    "cumsum": Case(fn.cumsum, np.cumsum, result=to_wide, scale=4),
    "cumprod": Case(
        lambda x: fn.cumprod(x, 0, dtype="float32"),
        lambda x: np.cumprod(x, 0),
        result=lambda _: dt.float32,
        scale=4,
    ),
    "cumulative_sum": Case(fn.cumulative_sum, np.cumsum, ((7,),), result=to_wide, scale=4),
    "cumulative_sum with 0": Case(
        lambda x: fn.cumulative_sum(x, axis=0, include_initial=True),
        lambda x: np.cumsum(np.pad(x, ((1, 0), (0, 0))), 0),
        result=to_wide,
        scale=4,
    ),
    "cumulative_prod": Case(
        lambda x: fn.cumulative_prod(x, axis=1), lambda x: np.cumprod(x, 1), result=to_wide, scale=4
    ),
    "cumulative_prod with 1": Case(
        lambda x: fn.cumulative_prod(x, axis=1, include_initial=True),
        lambda x: np.cumprod(np.pad(x, ((0, 0), (1, 0)), constant_values=1), 1),
        result=to_wide,
        scale=4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_numpy(name, place, rng):
    check(CASES[name], name, place, rng)


def test_logsumexp_has_no_overflow(place):
    x = lbrx.tensor([[1e4, 1e4], [-1e4, -math.inf], [-math.inf] * 2, [math.inf, 1]], device=place)
    expected = [1e4 + math.log(2), -1e4, -math.inf, math.inf]
    close(fn.logsumexp(x, axis=1), expected, dt.float32)
    assert math.isnan(fn.logsumexp(lbrx.tensor([1.0, math.nan], device=place)).item())


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 1), ((2, 0, 3), 2), ((3, 0), 0)])
def test_quantiles_of_no_rows(shape, axis, keepdims, place):
    empty = np.zeros(shape, np.float32)
    made = fn.quantile(lbrx.tensor(empty, device=place), [0.1, 0.5], axis, keepdims=keepdims)
    assert made.shape == np.quantile(empty, [0.1, 0.5], axis, keepdims=keepdims).shape
    middle = fn.median(lbrx.tensor(empty, device=place), axis, keepdims=keepdims)
    assert middle.shape == np.median(empty, axis, keepdims=keepdims).shape


def test_quantiles_of_nan_and_infinity(place):
    x = [[1, math.nan, 3], [math.inf, 1, 2], [-math.inf, 0, math.inf]]
    result = fn.quantile(lbrx.tensor(x, device=place), [0, 0.5, 1], axis=1)
    np.testing.assert_array_equal(
        result.numpy().T, [[math.nan] * 3, [1, 2, math.inf], [-math.inf, 0, math.inf]]
    )


def test_bincount(place, rng):
    values = rng.integers(0, 9, 100)
    weights = rng.uniform(-1, 1, 100).astype(np.float32)
    x = lbrx.tensor(values.astype(np.uint8), device=place)
    close(fn.bincount(x), np.bincount(values), dt.int64)
    close(fn.bincount(x, minlength=20), np.bincount(values, minlength=20), dt.int64)
    close(fn.bincount(x, weights), np.bincount(values, weights), dt.float32)
    assert fn.bincount(lbrx.tensor([], "int32", place)).shape == (0,)


def test_dtype_of_cumulative_sums(place):
    x = lbrx.tensor(np.uint8([200, 100]), device=place)
    close(fn.cumulative_sum(x, dtype="float32"), [200, 300], dt.float32)
    close(fn.cumulative_sum(x, dtype="int32"), [200, 300], dt.int32)


def ones(*shape, dtype="float32"):
    return lbrx.ones(shape, dtype, "cpu")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fn.quantile(ones(2), 1.5), ValueError, "q=1.5 is not a share: .* 0 to 1"),
        (lambda: fn.quantile(ones(2), [math.nan]), ValueError, "is not a share"),
        (lambda: fn.quantile(ones(2), 0.5, method="best"), ValueError, "'best': give one of 'lin"),
        (lambda: fn.median(ones(2, 0), axis=1), lbrx.ShapeError, "empty axes .*: give elements"),
        (lambda: fn.median(ones(2), axis=1), lbrx.ShapeError, "axis 1 does not exist"),
        (lambda: fn.diff(ones(2), n=-1), lbrx.ShapeError, "n=-1 times: give 0 or more"),
        (lambda: fn.cumulative_sum(ones(2, 2)), lbrx.ShapeError, "give the axis"),
        (lambda: fn.bincount(ones(2, 2)), lbrx.ShapeError, "give a vector"),
        (lambda: fn.bincount(ones(2)), lbrx.DtypeError, "bincount of float32: give integers"),
        (lambda: fn.bincount([-1]), ValueError, "bincount of -1: give numbers from 0 on"),
        (
            lambda: fn.bincount(ones(2, dtype="int8"), ones(3)),
            lbrx.ShapeError,
            r"weights of shape \(3,\): give one each, \(2,\)",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
