"""Rounding to decimals, and numbers in place of NaN and infinities, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from op_oracle import FLOATS, chosen, close, pair, wide

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

INTEGERS = [d for d in dt.ALL if d.is_integer]


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, -2])
def test_floats(decimals, place, rng):
    for dtype in chosen(FLOATS, place, f"round {decimals}"):
        a, _ = pair(rng, (4, 6), dtype, place, "transposed", -500, 500)
        # numpy scales halves in their own type; here they are rounded once, at the end.
        stored = a.numpy().astype(np.float32 if dtype.itemsize < 4 else dtype.numpy)
        close(fn.round(a, decimals), np.round(stored, decimals), dtype)
        close(a.round(decimals=decimals), np.round(stored, decimals), dtype)


@pytest.mark.parametrize("decimals", [2, -1, -2, -3, -30])
def test_integers_stay_integers(decimals, place, rng):
    for dtype in INTEGERS:
        limits = np.iinfo(dtype.numpy)
        # Ties, and as far as the next multiple of 100 is in the type.
        values = [0, 5, 15, 25, 49, 50, 51, 100, *([-5, -15, -50, -100] if limits.min else [])]
        x = np.array([*values, limits.max // 1000 * 1000], dtype.numpy)
        expected = [round(int(value), min(decimals, 0)) for value in x]
        made = fn.round(lbrx.tensor(x, device=place), decimals)
        assert (made.dtype, made.tolist()) == (dtype, expected)


def test_round_of_what_has_no_decimals(place):
    assert fn.round(lbrx.tensor([True], device=place), -1).tolist() == [False]
    assert fn.round(lbrx.ones((0, 2), device=place), 2).shape == (0, 2)
    assert fn.round(2.675, 1).item() == pytest.approx(2.7)
    with pytest.raises(TypeError, match="float"):
        fn.round(lbrx.ones(2), 1.5)


def test_nan_to_num(place):
    odd = [math.nan, math.inf, -math.inf, 1.5, -0.0, 0.0]
    for dtype in chosen(FLOATS, place, "nan_to_num"):
        x = lbrx.tensor(odd, dtype, place)
        limits = lbrx.finfo(dtype)
        assert fn.nan_to_num(x).tolist() == [0.0, limits.max, limits.min, 1.5, -0.0, 0.0]
        made = x.nan_to_num(nan=2.0, posinf=3.0, neginf=-4.0)
        assert (made.dtype, made.tolist()) == (dtype, [2.0, 3.0, -4.0, 1.5, -0.0, 0.0])
        assert made.device == place
        np.testing.assert_array_equal(np.signbit(wide(made.numpy()))[4:], [True, False])
    assert x.nan_to_num(nan=math.inf).tolist()[0] == math.inf
    whole = lbrx.tensor([1, 2], "int8", place)
    assert fn.nan_to_num(whole).tolist() == [1, 2]
    assert fn.nan_to_num(math.nan).item() == 0
