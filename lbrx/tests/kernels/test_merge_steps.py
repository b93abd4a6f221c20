"""The elementwise steps of merges: against float64, and with the same bits on both devices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from device_memory import GPU

import lbrx

BF16 = ml_dtypes.bfloat16


def computed(name, operands, **attributes):
    """The result in float32, which is the same on both devices."""
    results = [
        lbrx.apply(name, *(lbrx.tensor(x, device=device) for x in operands), **attributes)
        for device in ("cpu", "metal")
    ]
    assert {r.dtype for r in results} == {lbrx.float32}
    first, second = (r.numpy() for r in results)
    if GPU:  # a NaN that an NVIDIA GPU computes has bits of its own
        np.testing.assert_array_equal(np.isnan(first), np.isnan(second))
        first, second = (np.where(np.isnan(x), np.float32(np.nan), x) for x in (first, second))
    np.testing.assert_array_equal(first.view(np.uint32), second.view(np.uint32))
    return first


def arrays(rng, count, dtype=BF16):
    """Values of many sizes, with zeros of both signs."""
    made = rng.standard_normal((count, 5, 33)) * 10.0 ** rng.integers(-3, 3, (count, 5, 33))
    made[:, 0, :2] = 0.0, -0.0
    return list(made.astype(dtype))


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_weighted(count, dtype, rng):
    xs, weights = arrays(rng, count, dtype), [0.1, 0.2, 0.3, 0.4][:count]
    named = dict(zip(("first", "second", "third", "fourth"), weights, strict=False))
    expected = sum(w * x.astype(np.float64) for w, x in zip(weights, xs, strict=True))
    size = sum(w * np.abs(x.astype(np.float64)) for w, x in zip(weights, xs, strict=True))
    for kind in "sum", "mean":
        got = computed("weighted", xs, kind=kind, **named)
        held = expected if kind == "sum" else np.clip(expected, np.min(xs, 0), np.max(xs, 0))
        assert (np.abs(got - held) <= 3e-7 * size).all()


def test_weighted_keeps_nan_and_parents(rng):
    x = np.array([np.nan, np.inf, -0.0, 0.1], np.float32)
    given = {"kind": "mean", "first": 1 / 3, "second": 1 / 3, "third": 1 / 3}
    np.testing.assert_array_equal(computed("weighted", [x] * 3, **given), x)
    assert np.isnan(computed("weighted", [x[:1], x[3:], x[3:]], **given)).all()


def test_kept_change(rng):
    x, base = arrays(rng, 2)
    mask = rng.random(x.shape) < 0.5
    change = (x.astype(np.float64) - base.astype(np.float64)) * 0.3
    np.testing.assert_allclose(computed("kept_change", [x, base], weight=0.3), change, rtol=2e-7)
    got = computed("kept_change", [x, base, mask], weight=0.3)
    np.testing.assert_allclose(got, np.where(mask, change, 0), rtol=2e-7)


def test_agreeing(rng):
    part, total = arrays(rng, 2, np.float32)
    agrees = np.sign(part) == np.where(total >= 0, 1, -1)
    np.testing.assert_array_equal(computed("agreeing", [part, total]), np.where(agrees, part, 0))
    got = computed("agreeing", [part, total], weight=0.25)
    np.testing.assert_array_equal(got, np.where(agrees, 0.25, 0))


def test_changed(rng):
    base, change, divisor = arrays(rng, 3, np.float32)
    wide = [x.astype(np.float64) for x in (base, change, divisor)]
    got = computed("changed", [base, change], factor=0.7)
    np.testing.assert_allclose(got, wide[0] + wide[1] * 0.7, atol=1e-4, rtol=1e-6)
    got = computed("changed", [base, change, divisor], factor=0.7)
    quotient = wide[1] / np.where(wide[2] == 0, 1, wide[2])
    bound = 3e-7 * (np.abs(wide[0]) + np.abs(quotient))
    assert (np.abs(got - (wide[0] + quotient * 0.7)) <= bound).all()


def test_no_change_keeps_the_bits(rng):
    base = arrays(rng, 1)[0]
    for zero in (0.0, -0.0):
        change = np.full(base.shape, zero, np.float32)
        for more in [], [np.full(base.shape, -2, np.float32)]:
            got = computed("changed", [base, change, *more]).astype(BF16)
            np.testing.assert_array_equal(got.view(np.uint16), base.view(np.uint16))
