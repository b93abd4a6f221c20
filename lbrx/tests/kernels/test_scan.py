"""Running sums and products: every variant against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from op_oracle import close, sample, to_wide, wide
from row_cases import computed_by

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic

# The types of the default run.
DEFAULT = {"serial": (dt.float32, dt.int8), "simd": (dt.bfloat16, dt.uint64)}
VARIANTS = [
    pytest.param(variant, dtype, marks=() if dtype in DEFAULT[variant] else (pytest.mark.full,))
    for variant in DEFAULT
    for dtype in dt.ALL
    if dtype is not dt.float64
]
# On both sides of a chunk, of the lanes and of a block, along rows and along columns.
SHAPES = [
    *(((3, 1), 1), ((2, 15), 1), ((2, 17), -1), ((1, 4096), 1), ((3, 4097), 1), ((20_001,), 0)),
    *(((5, 2), 0), ((257, 256), 0), ((2, 600, 257), 1), ((256, 3), 0), ((4, 1, 3), 1)),
]


def check(values, axis, variant):
    dtype = dt.parse(values.dtype)
    with computed_by("scan", variant, "cumsum"):
        result = lbrx.tensor(values, device="metal").cumsum(axis=axis)
        lbrx.eval(result)
    close(result, np.cumsum(wide(values), axis), to_wide(dtype))


def data(rng, shape, dtype):
    return sample(rng, shape, dtype, 0, 1) if dtype.is_float else sample(rng, shape, dtype)


@pytest.mark.parametrize(("variant", "dtype"), VARIANTS)
def test_variants(variant, dtype, rng):
    for shape, axis in SHAPES:
        check(data(rng, shape, dtype), axis, variant)


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_totals_do_not_drift(variant, rng):
    """As if added up in float64: what is left is the rounding of sums within a few elements."""
    values = (100 * rng.standard_normal(300_000)).astype(np.float32)
    exact = np.cumsum(wide(values))
    with computed_by("scan", variant, "cumsum"):
        result = wide(lbrx.tensor(values, device="metal").cumsum().numpy())
    assert np.abs(result - exact).max() <= 2 * np.spacing(np.float32(np.abs(exact).max()))
    tenths = lbrx.full((1 << 20,), 0.1, device="metal")
    with computed_by("scan", variant, "cumsum"):
        last = tenths.cumsum()[-1].item()
    assert last == np.float32(np.float64(np.float32(0.1)) * (1 << 20))


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_nan_and_infinity(variant):
    for before in (0, 40):
        row = [1.0] * before + [1, math.inf, 2, -math.inf, 3]
        column = [1.0] * before + [1, math.nan, 2, 3, 4]
        values = np.array([row, column], np.float32)
        for given, axis in ((values, 1), (np.ascontiguousarray(values.T), 0)):
            with computed_by("scan", variant, "cumsum"):
                result = lbrx.tensor(given, device="metal").cumsum(axis=axis).numpy()
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(result, np.cumsum(given, axis))


def test_integers_wrap_in_64_bits():
    values = np.array([2**63 - 1, 1, 5], np.int64)
    assert lbrx.tensor(values, device="metal").cumsum().tolist() == np.cumsum(values).tolist()
    flags = lbrx.ones(5000, "bool", device="metal").cumsum()
    assert (flags[-1].item(), flags.dtype) == (5000, lbrx.int64)


@pytest.mark.parametrize(
    "view", [lambda x: x.T, lambda x: x[::-1, ::2], lambda x: x[1:, 3:], lambda x: x[:0]]
)
def test_views(view, rng):
    values = sample(rng, (6, 50), dt.float32, 0, 1)
    for axis in (0, 1):
        result = view(lbrx.tensor(values, device="metal")).cumsum(axis=axis)
        close(result, np.cumsum(wide(view(values)), axis), dt.float32)


def test_a_row_has_the_same_bits_in_any_batch(rng):
    tensor = lbrx.tensor(sample(rng, (9, 9000), dt.float32), device="metal")
    with deterministic():
        together, alone = tensor.cumsum(axis=1).numpy(), tensor[4:5].cumsum(axis=1).numpy()
    np.testing.assert_array_equal(together[4:5], alone)


def test_on_an_apple_chip(on_chip, rng):
    with on_chip("m1"):
        for shape, axis in (((2, 5000), 1), ((300, 3), 0)):
            check(data(rng, shape, dt.float32), axis, "simd")
        assert set(metal.stats()["kernels"]) == {"cumsum:simd"}


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_memory_and_order(variant, rng):
    with softmetal.checking("bounds", "race"):
        for shape, axis in (((2, 4100), 1), ((300, 3), 0)):
            check(data(rng, shape, dt.float32), axis, variant)


@pytest.mark.parametrize(("variant", "dtype"), VARIANTS)
def test_products(variant, dtype, rng):
    for shape, axis in SHAPES:
        values = sample(rng, shape, dtype, -3, 3)
        if dtype.is_float:  # ratios of neighbours, whose products stay near the levels
            levels = np.moveaxis(rng.choice([-2, 0.5, 1, 1.25, 3], shape), axis, -1)
            levels[..., 1:] /= levels[..., :-1].copy()
            values = np.moveaxis(levels, -1, axis).astype(dtype.numpy)
        with computed_by("scan", variant, "cumprod"):
            result = lbrx.tensor(values, device="metal").cumprod(axis=axis)
            lbrx.eval(result)
        close(result, np.cumprod(wide(values), axis), to_wide(dtype), scale=2)


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_products_do_not_drift(variant):
    values = np.full(20_000, 1.0001, np.float32)
    with computed_by("scan", variant, "cumprod"):
        result = lbrx.tensor(values, device="metal").cumprod().numpy()
    np.testing.assert_allclose(result, np.cumprod(wide(values)), rtol=1e-6)


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_products_overflow_only_where_a_prefix_does(variant):
    """Every lane of a simdgroup, taken alone, would multiply nothing but large or small numbers."""
    values = np.tile(np.array([16.0, 1 / 16], np.float32), 10_000)
    with computed_by("scan", variant, "cumprod"):
        result = lbrx.tensor(values, device="metal").cumprod().numpy()
    np.testing.assert_array_equal(result, np.cumprod(values))


@pytest.mark.parametrize("variant", ["serial", "simd"])
def test_products_of_nan_infinity_and_zero(variant):
    for before in (0, 40):
        for special in ([2, math.inf, 3, 0, 1], [1e30, 1e30, -1, 2, 3], [0, math.nan, 1, 1, 1]):
            values = np.array([1.0] * before + special, np.float32)
            with computed_by("scan", variant, "cumprod"):
                result = lbrx.tensor(values, device="metal").cumprod().numpy()
            with np.errstate(invalid="ignore", over="ignore"):
                np.testing.assert_array_equal(np.isnan(result), np.isnan(np.cumprod(values)))
                np.testing.assert_allclose(result, np.cumprod(values), rtol=1e-6)
