"""Masks of task vectors: kernels against sorted arrays, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import lbrx
import softmetal
from lbrx.errors import ShapeError
from lbrx.ops import TABLE

SHAPES = [(1,), (7,), (1000,), (33, 65), (5, 1), (3, 5, 129), (40, 1024), ()]


def pair(rng, shape, dtype):
    """Differences with many equal magnitudes, as bfloat16 has."""
    base = np.asarray(rng.standard_normal(shape)).astype(dtype)
    x = (base.astype(np.float32) + 0.1 * rng.standard_normal(shape)).astype(dtype)
    return x, base


def by_sorting(values, first, last):
    x, *base = (v.astype(np.float32).astype(np.float64) for v in values)
    size = np.abs((x - base[0] if base else x).astype(np.float32)).ravel()
    mask = np.zeros(size.size, bool)
    mask[np.argsort(-size, kind="stable")[first:last]] = True
    return mask.reshape(values[0].shape)


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_magnitude_mask(dtype, device, rng):
    for shape in SHAPES:
        x, base = pair(rng, shape, dtype)
        n = x.size
        for first, last in ((0, n // 3), (n // 10, n // 2), (0, n), (0, 0), (n // 2, n + 5)):
            for values in ((x, base), (x,)):
                given = [lbrx.tensor(v, device=device) for v in values]
                got = lbrx.apply("magnitude_mask", *given, first=first, last=last).numpy()
                np.testing.assert_array_equal(got, by_sorting(values, first, last))


def test_magnitude_mask_in_several_chunks(rng):
    """Of equal magnitudes the first ones are kept, whichever thread reads them."""
    x = rng.choice(np.array([1, -1, 2], np.float32), (1025, 1024))
    got = lbrx.apply("magnitude_mask", lbrx.tensor(x), first=1000, last=600_000).numpy()
    np.testing.assert_array_equal(got, by_sorting((x,), 1000, 600_000))


def test_magnitude_mask_of_special_values():
    x = np.array([np.nan, -np.inf, 1, np.inf, -0.0, 0.0, 1e-40, -2], np.float32)
    for last in range(9):
        got = lbrx.apply("magnitude_mask", lbrx.tensor(x, device="metal"), first=0, last=last)
        assert set(np.flatnonzero(got.numpy())) == set([0, 1, 3, 7, 2, 6, 4, 5][:last])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.35, 0.65), (0.0, 1.0)])
def test_rank_bernoulli_has_the_references_bits(dtype, low, high, rng):
    given = {"seed": 12345678901, "low": low, "high": high}
    for shape in SHAPES:
        x, base = pair(rng, shape, dtype)
        for values in ((x, base), (x,)):
            tensors = [lbrx.tensor(v, device="metal") for v in values]
            mask, norms = lbrx.apply("rank_bernoulli", *tensors, **given)
            expected = TABLE["rank_bernoulli"](values, given)
            np.testing.assert_array_equal(mask.numpy(), expected[0])
            np.testing.assert_allclose(norms.numpy(), expected[1], rtol=1e-5)


def test_rank_bernoulli_of_rows_of_one_value(rng):
    """The rank of equal magnitudes is their order; it is counted for most elements here."""
    x = np.ones((300, 500), np.float32)
    mask, norms = lbrx.apply("rank_bernoulli", lbrx.tensor(x), seed=3, low=0.0, high=1.0)
    shares = mask.numpy().mean(0)
    assert np.abs(shares - np.arange(500) / 499).max() < 5 * np.sqrt(0.25 / 300)
    np.testing.assert_allclose(norms.numpy()[:, 1], mask.numpy().sum(1))


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_row_products(dtype, device, rng):
    for shape in SHAPES:
        arrays = [np.asarray(rng.standard_normal(shape)).astype(dtype) for _ in range(3)]
        x, y, base = (a.astype(np.float64) for a in arrays)
        for count, (a, b) in ((2, (x, y)), (3, (x - base, y - base))):
            tensors = [lbrx.tensor(v, device=device) for v in arrays[:count]]
            got = lbrx.apply("row_products", *tensors).numpy()
            rows = [v.reshape(int(np.prod(shape[:-1])), -1) for v in (a * a, a * b, b * b)]
            expected = np.stack([v.sum(-1) for v in rows], -1)
            size = np.stack([np.abs(v).sum(-1) for v in rows], -1)
            assert (np.abs(got - expected) <= 1e-6 * size + 1e-30).all()


def test_no_elements():
    empty = lbrx.tensor(np.zeros((3, 0), np.float32), device="metal")
    assert lbrx.apply("magnitude_mask", empty, first=0, last=0).shape == (3, 0)
    mask, norms = lbrx.apply("rank_bernoulli", empty, seed=0, low=0.5, high=0.5)
    assert mask.shape == (3, 0)
    assert norms.tolist() == [[0, 0]] * 3
    assert lbrx.apply("row_products", empty, empty).tolist() == [[0, 0, 0]] * 3


def test_refused():
    x = lbrx.ones((2, 3))
    with pytest.raises(ShapeError, match="0 <= first <= last"):
        lbrx.apply("magnitude_mask", x, first=3, last=2)
    with pytest.raises(ShapeError, match=r"base has shape \(3, 2\)"):
        lbrx.apply("magnitude_mask", x, lbrx.ones((3, 2)), first=0, last=2)
    with pytest.raises(ShapeError, match="give x, or x and its base"):
        lbrx.apply("magnitude_mask", x, x, x, first=0, last=2)


def test_checked(rng):
    """No access beyond a buffer and no race, with rows that end within a group."""
    x, base = (lbrx.tensor(v, device="metal") for v in pair(rng, (5, 150), ml_dtypes.bfloat16))
    with softmetal.checking("bounds", "race"):
        for low in 0.5, 0.3:
            lbrx.eval(lbrx.apply("rank_bernoulli", x, base, seed=1, low=low, high=0.5))
        lbrx.eval(lbrx.apply("magnitude_mask", x, base, first=3, last=100))
        lbrx.eval(lbrx.apply("row_products", x, base), lbrx.apply("row_products", x, x, base))


PROGRAM = """
import hashlib, lbrx, numpy as np
rng = np.random.default_rng(5)
x, base = (lbrx.tensor(rng.standard_normal((600, 1000)).astype("f4")) for _ in range(2))
made = [lbrx.apply("magnitude_mask", x, base, first=500, last=200_000)]
for low, high in ((0.5, 0.5), (0.3, 0.7)):
    made += lbrx.apply("rank_bernoulli", x, base, seed=1, low=low, high=high)
print(hashlib.sha256(b"".join(r.numpy().tobytes() for r in made)).hexdigest())
"""


def test_bits_do_not_depend_on_threads():
    found = set()
    for threads in "1", "3":
        settings = {**os.environ, "SOFTMETAL_THREADS": threads}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
