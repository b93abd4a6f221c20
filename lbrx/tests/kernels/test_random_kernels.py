"""Random numbers: the bits of the reference, which test_random.py holds against the paper's."""

from __future__ import annotations

import numpy as np
import pytest
from row_cases import rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels.random import random as kernels
from lbrx.ops import TABLE
from lbrx.tensors import placement as devices

FLOATS = (dt.float32, dt.float16, dt.bfloat16)
SHAPES = [(), (1,), (3,), (4,), (1001,), (7, 1, 13), (0, 3)]
STREAMS = [(0, 0), (2**64 - 1, 2**32 - 2), (0x123456789ABCDEF0, 2**64 - 3)]


def both(op, seed, offset, **attributes):
    """What the kernel makes, and the reference."""
    given = {"seed": seed, "offset": offset, **attributes}
    (expected,) = TABLE[op]([], given)
    (array,) = devices.get("metal").run(TABLE[op], [], given)
    return lbrx.Tensor(array), expected


@pytest.mark.parametrize("dtype", rotated((), (), of=FLOATS))
def test_uniform_has_the_reference_s_bits(dtype):
    for (seed, offset), shape in zip(STREAMS * 3, SHAPES, strict=False):
        given = {"shape": shape, "dtype": dtype, "low": -1.7, "high": 3.1}
        result, expected = both("random_uniform", seed, offset, **given)
        assert (result.shape, result.dtype) == (shape, dtype)
        assert result.numpy().tobytes() == expected.tobytes()


def test_bernoulli_has_the_reference_s_bits():
    for (seed, offset), shape in zip(STREAMS * 3, SHAPES, strict=False):
        for p in (0.0, 0.3, 1.0):
            result, expected = both("random_bernoulli", seed, offset, shape=shape, p=p)
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", rotated((), of=FLOATS))
def test_normal_within_rounding(dtype):
    """Logarithm, root and cosine may each differ in the last place."""
    wide = {"rtol": 3e-6, "atol": 3e-6} if dtype is dt.float32 else {"rtol": 1.6e-2, "atol": 1e-4}
    for seed, offset in STREAMS:
        given = {"shape": (5001,), "dtype": dtype, "mean": 0.3, "std": 2.0}
        result, expected = both("random_normal", seed, offset, **given)
        found, wanted = (v.astype(np.float64) for v in (result.numpy(), expected))
        np.testing.assert_allclose(found, wanted, **wide)
        if dtype is not dt.float32:
            assert (found != wanted).mean() < 1e-2  # where float32 is beside a border


def test_long_streams_are_cut(monkeypatch):
    monkeypatch.setattr(kernels, "PART", 100)
    given = {"shape": (1003,), "dtype": dt.float32}
    result, expected = both("random_uniform", 5, 2**64 - 150, **given)
    assert result.numpy().tobytes() == expected.tobytes()


def test_the_module_draws_on_metal():
    lbrx.random.seed(3)
    drawn = [lbrx.random.uniform(10, device=place).numpy() for place in ("metal", "cpu")]
    lbrx.random.seed(3)
    again = [lbrx.random.uniform(10, device=place).numpy() for place in ("cpu", "metal")]
    np.testing.assert_array_equal(drawn, again)
    assert metal.stats()["kernels"]["random_uniform:philox"] >= 2


def test_on_an_apple_chip(on_chip):
    with on_chip("m3"):
        result, expected = both("random_uniform", 1, 2, shape=(33,), dtype=dt.float32)
        assert result.numpy().tobytes() == expected.tobytes()


def test_memory_and_order():
    with softmetal.checking("bounds", "race"):
        for op in ("random_uniform", "random_normal"):
            both(op, 1, 2, shape=(33,), dtype=dt.float32)[0].numpy()
        both("random_bernoulli", 1, 2, shape=(33,))[0].numpy()
