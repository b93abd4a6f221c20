"""Elementwise operations after a product, computed in its kernel: the same bits as in their own."""

from dataclasses import replace

import numpy as np
import pytest

import lbrx
from lbrx import dtype as dt
from lbrx import metal
from lbrx.kernels import forced
from lbrx.kernels.finishing import FINISHERS


def biased_gelu(product, bias, residual, rows):
    return (product + bias).gelu() * 0.5 + residual


def gated(product, bias, residual, rows):
    return (product.silu() * residual).astype("float32")


def scaled_rows(product, bias, residual, rows):
    return product * rows + residual.mT.contiguous().mT


def positive(product, bias, residual, rows):
    return product > residual


CHAINS = [biased_gelu, gated, scaled_rows, positive]


@pytest.fixture
def tiles(monkeypatch):
    """Products in tiles, which processors would not choose."""
    finisher = replace(FINISHERS["matmul"], accepts=lambda info: True)
    monkeypatch.setitem(FINISHERS, "matmul", finisher)
    with forced(matmul="tiles"):
        yield


def operands(rng, batch, m, n, k, dtype):
    shapes = ((*batch, m, k), (k, n), (n,), (*batch, m, n), (*batch, m, 1))
    values = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [lbrx.tensor(x, device="metal").astype(dtype) for x in values]


def kernels(function):
    """The result, and the labels of the kernels that ran."""
    before = metal.context().queue.counts()
    result = function()
    lbrx.eval(result)
    after = metal.context().queue.counts()
    return result, {name for name, count in after.items() if count > before.get(name, 0)}


@pytest.mark.parametrize(
    ("chain", "dtype", "batch"),
    [
        (biased_gelu, dt.float16, ()),
        (gated, dt.float16, (2, 3)),
        (scaled_rows, dt.float32, (2,)),
        (positive, dt.bfloat16, ()),
        *(
            pytest.param(chain, dtype, batch, marks=pytest.mark.full)
            for chain in CHAINS
            for dtype in (dt.float32, dt.float16, dt.bfloat16)
            for batch in ((), (2, 3))
        ),
    ],
)
def test_same_bits(chain, dtype, batch, tiles, rng):
    x, y, *rest = operands(rng, batch, 37, 45, 40, dtype)
    lbrx.eval(x, y, *rest)
    product = x @ y
    lbrx.eval(product)
    expected = chain(product, *rest)
    result, names = kernels(lambda: chain(x @ y, *rest))
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(
        result.astype("float32").numpy(), expected.astype("float32").numpy()
    )
    (name,) = names
    assert name.endswith(":tiles")
    assert not name.startswith("matmul:")
