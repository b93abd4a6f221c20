"""Elementwise operations after a product, computed in its kernel: the same bits as in their own."""

import math
from dataclasses import replace

import numpy as np
import pytest
from device_memory import on_processors

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.matmul import matmul_tiles
from lbrx.kernels.quantized_matmul import quantized_matmul


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
    for module in (matmul_tiles, quantized_matmul):
        monkeypatch.setattr(module, "takes_steps", lambda info: True)
    ways = {"tiles": quantized_matmul.TIMES_ROWS["tiles"]}
    monkeypatch.setattr(quantized_matmul, "TIMES_ROWS", ways)
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


@pytest.mark.parametrize(
    ("variant", "chain", "dtype"),
    [
        ("tiles", biased_gelu, dt.float16),
        ("panels", scaled_rows, dt.float32),
        *(
            pytest.param(variant, chain, dtype, marks=pytest.mark.full)
            for variant in ("tiles", "panels")
            for chain in CHAINS
            for dtype in (dt.float32, dt.float16, dt.bfloat16)
        ),
    ],
)
def test_same_bits_of_quantized(variant, chain, dtype, tiles, rng, monkeypatch):
    """Panels of 10 rows of the weight: the last one is shorter."""
    monkeypatch.setattr(quantized_matmul, "PANELS", (10 * 4 * 64, 10 * 2 * 64))
    x, y, *rest = operands(rng, (2,), 19, 45, 64, dtype)
    weight = lbrx.quantize(y.mT.astype("float32").contiguous(), "q4_0")
    lbrx.eval(x, weight, *rest)
    with forced(quantized_matmul=variant):
        product = lbrx.linear(x, weight)
        lbrx.eval(product)
        expected = chain(product, *rest).astype("float32").numpy()
        result, names = kernels(lambda: chain(lbrx.linear(x, weight), *rest))
    np.testing.assert_array_equal(result.astype("float32").numpy(), expected)
    on_gpu = metal.context().info.simd_hardware
    if variant == "tiles" or on_gpu or dtype is dt.float32:
        (name,) = (name for name in names if name.endswith(f":{variant}"))
        assert not name.startswith("quantized_matmul:")


def test_rows_that_are_not_evenly_spaced(tiles, rng):
    """Steps that read such an operand have a kernel of their own."""
    x, y, *_ = operands(rng, (3, 2), 5, 8, 16, dt.float32)
    other = lbrx.tensor(rng.standard_normal((3, 4, 5, 8)).astype(np.float32), device="metal")
    lbrx.eval(x, y)
    result, names = kernels(lambda: x @ y + other[:, :2])
    assert "matmul:tiles" in names
    expected = x.numpy().astype(np.float64) @ y.numpy() + other.numpy()[:, :2]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


def test_a_vector_has_no_columns(tiles, rng):
    x, y, _, residual, _ = operands(rng, (), 9, 8, 16, dt.float32)
    result = x @ y[:, 0] + residual[:, 1]
    expected = x.numpy().astype(np.float64) @ y.numpy()[:, 0] + residual.numpy()[:, 1]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


@on_processors
@pytest.mark.full
def test_no_faults(tiles, rng):
    x, y, *rest = operands(rng, (), 37, 45, 40, dt.float16)
    lbrx.eval(x, y, *rest)
    with softmetal.checking("bounds", "race"):
        result = biased_gelu(x @ y, *rest)
        lbrx.eval(result)
    wide = [t.astype("float32").numpy().astype(np.float64) for t in (x, y, rest[0], rest[1])]
    sums = wide[0] @ wide[1] + wide[2]
    gelu = sums * np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))(sums)
    np.testing.assert_allclose(result.numpy(), gelu * 0.5 + wide[3], atol=0.05, rtol=0.01)


def test_steps_have_kernels_of_their_own_beside_tensor_cores(on_chip):
    with on_chip("m1") as context:
        apple = replace(context.info, simd_hardware=True)
        assert matmul_tiles.takes_steps(apple)
        assert not matmul_tiles.takes_steps(replace(apple, simd_hardware=False))
        assert not matmul_tiles.takes_steps(replace(apple, threadgroup_memory=232448))
