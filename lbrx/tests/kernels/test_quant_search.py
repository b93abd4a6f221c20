"""The K types' encoders, against lbrx.quant."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import rotating

import lbrx
import softmetal
from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.quant import SCHEMES, Encoder

SEARCHED = [name for name, scheme in SCHEMES.items() if scheme.encoder is Encoder.SEARCHED]
DAILY = {*rotating(SEARCHED, "quant_search"), "q4_k", "q6_k"}
NAMES = [n if n in DAILY else pytest.param(n, marks=pytest.mark.full) for n in SEARCHED]


def encoded(values: np.ndarray, name: str) -> np.ndarray:
    before = metal.stats()["kernels"].get("quantize:groups", 0)
    result = lbrx.quantize(lbrx.tensor(values, device="metal"), name)
    data = result.array.storage.parts["data"].numpy()
    assert metal.stats()["kernels"]["quantize:groups"] > before
    return data


def check(values: np.ndarray, name: str) -> None:
    """Nearly all blocks have the reference's bits: sums may be added in another order there. All
    are as near to the values."""
    found, expected = encoded(values, name), quant.quantize(values, name).data
    size = quant.find(name).block_bytes
    same = (found.reshape(-1, size) == expected.reshape(-1, size)).all(axis=1)
    assert same.mean() > 0.95
    exact = values.astype(np.float64)
    errors = [
        np.sqrt(np.square(quant.dequantize(data, name, values.shape) - exact).mean())
        for data in (found, expected)
    ]
    assert errors[0] <= errors[1] * 1.001


@pytest.mark.parametrize("name", NAMES)
def test_encoding(name, rng):
    """An odd number of blocks; zeros, equal values, values of one sign, tiny and large ones."""
    values = rng.standard_t(4, (27, 1280)).astype(np.float32)
    values[0], values[1], values[2] = 0, 0.7, -0.7
    values[3:5] = np.abs(values[3:5])
    values[5:7] = -np.abs(values[5:7])
    values[7] *= np.float32(1e-30)
    values[8] *= np.float32(1e4)
    values[9, 3::256] = 50
    check(values[:, :256], name)
    check(values, name)


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
def test_halves(dtype, rng):
    check(rng.standard_normal((5, 512)).astype(dtype.numpy), "q6_k")


@pytest.mark.parametrize(("name", "bad"), [("q4_k", np.nan), ("q6_k", np.inf), ("q4_k", 1e9)])
def test_values_that_it_cannot_hold(name, bad):
    values = np.ones((3, 512), np.float32)
    values[2, 300] = bad
    with pytest.raises(lbrx.QuantizationError, match=f"{name} cannot hold elements 1280 to 1535"):
        encoded(values, name)


def test_checked(rng):
    """No access beyond a buffer, no race, where the last thread has one block of two."""
    values = rng.standard_normal((1, 768)).astype(np.float32)
    with softmetal.checking("bounds", "race"):
        check(values, "q4_k")
