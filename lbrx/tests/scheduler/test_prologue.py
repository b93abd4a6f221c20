"""Norms and gates inside the kernels of quantized products: values, bits, and what stays outside."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from op_oracle import sample, wide

import lbrx
from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.quant.scheme import decode, encode
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import linear, linears, pack

EPS = 1e-5
PRECISION = {dt.float32: 1e-4, dt.float16: 4e-3, dt.bfloat16: 3e-2}
# Columns on both sides of what the threads of a threadgroup read at once.
CASES = [("q4_0", 64, dt.float16), ("q8_0", 2112, dt.bfloat16), ("q4_k", 256, dt.float32)]


@pytest.fixture(autouse=True)
def lines():
    """What GPUs that multiply bytes choose."""
    with forced(quantized_matmul="lines"):
        yield


def on_metal(values, dtype=None) -> Tensor:
    return lbrx.tensor(values, dtype=dtype, device="metal")


def matrix(rng, scheme, rows, columns) -> tuple[Tensor, np.ndarray]:
    """A quantized matrix, and its values in float64."""
    found = quant.find(scheme)
    parts = encode(rng.normal(0, 1, (rows, columns)).astype(np.float32), found, None)
    made = pack(scheme, on_metal(parts["data"].reshape(rows, -1)))
    return made, wide(decode(parts, found, (rows, columns)))


def kernels_of(*tensors) -> list[str]:
    return [kernel.name for kernel in lbrx.explain(*tensors).kernels]


def normed(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def close(found, expected, dtype):
    assert found.dtype is dtype
    error = np.abs(wide(found.numpy()) - expected).max()
    assert error <= PRECISION[dtype] * np.abs(expected).max()


@pytest.mark.parametrize(("scheme", "columns", "dtype"), CASES)
def test_values(scheme, columns, dtype, rng, monkeypatch):
    x, y, weight = (sample(rng, shape, dtype) for shape in ((1, columns), (1, columns), columns))
    first, second = (matrix(rng, scheme, rows, columns) for rows in (21, 8))

    def results():
        a, b, w = map(on_metal, (x, y, weight))
        norm, total = a.add_rms_norm(b, w, eps=EPS)
        return [
            *linears(norm, [first[0], second[0]]),
            total * 2,
            linear(a.rms_norm(w, eps=EPS), first[0]),
            linear(a.swiglu(b), second[0]),
        ]

    found = results()
    assert sorted(kernels_of(*found)) == [
        "fused_add_rms_norm_quantized_matmul",
        "fused_rms_norm_quantized_matmul",
        "fused_swiglu_quantized_matmul",
        "multiply",
    ]
    lbrx.eval(*found)
    monkeypatch.setenv("LBRX_FUSION", "0")
    apart = results()
    np.testing.assert_array_equal(found[2].numpy(), apart[2].numpy())
    np.testing.assert_array_equal(found[4].numpy(), apart[4].numpy())
    a, b, w = map(wide, (x, y, weight))
    gated = a / (1 + np.exp(-a)) * b
    products = [
        *(normed(a + b, w) @ each.T for _, each in (first, second)),
        2 * (a + b),
        normed(a, w) @ first[1].T,
        gated @ second[1].T,
    ]
    for one, other in zip(found, products, strict=True):
        close(one, other, dtype)


@pytest.fixture
def operands(rng):
    """Two rows, a weight and a quantized matrix."""
    rows = [on_metal(sample(rng, (1, 64), dt.float16)) for _ in range(2)]
    return *rows, on_metal(sample(rng, 64, dt.float16)), matrix(rng, "q4_0", 9, 64)[0]


def test_a_norm_that_others_read_is_stored(operands):
    x, y, weight, by = operands
    norm, total = x.add_rms_norm(y, weight)
    product = linear(norm, by)
    assert kernels_of(product, norm * 2) == ["add_rms_norm", "quantized_matmul", "multiply"]
    assert kernels_of(product, norm) == ["add_rms_norm", "quantized_matmul"]
    assert kernels_of(product, total) == ["add_rms_norm", "quantized_matmul"]


def test_a_norm_can_be_read_later(operands):
    x, y, weight, by = operands
    norm, total = x.add_rms_norm(y, weight)
    lbrx.eval(linear(norm, by), total + 1)
    again, _ = x.add_rms_norm(y, weight)
    np.testing.assert_array_equal(norm.numpy(), again.numpy())
    np.testing.assert_array_equal(total.numpy(), (x + y).numpy())


def test_what_the_kernel_does_not_take(operands):
    x, y, weight, by = operands
    long = lbrx.concat([x, y], axis=1)
    assert kernels_of(linear(x.rms_norm(), by)) == ["rms_norm", "quantized_matmul"]
    assert kernels_of(linear(x.layer_norm(weight), by)) == ["layer_norm", "quantized_matmul"]
    assert kernels_of(linear(long.rms_norm()[:, 64:], by)) == [
        *("concat", "rms_norm", "quantized_matmul"),
    ]
    mixed = x.swiglu(y.astype(dt.float32))
    assert kernels_of(linear(mixed, by))[-1] == "quantized_matmul"
    two = lbrx.concat([x, y], axis=0)
    assert kernels_of(linear(two.rms_norm(weight), by)) == [
        *("concat", "rms_norm", "quantized_matmul"),
    ]


@pytest.mark.parametrize("observed", [nullcontext, lbrx.profile], ids=["plain", "profiled"])
def test_operands_between_vectors_are_computed_apart(observed, rng):
    memory = sample(rng, (1, 65), dt.float16)
    x, weight = on_metal(memory)[:, 1:], on_metal(sample(rng, 64, dt.float16))
    by, values = matrix(rng, "q4_0", 9, 64)
    product = linear(x.rms_norm(weight, eps=EPS), by)
    expected = normed(wide(memory[:, 1:]), wide(weight.numpy())) @ values.T
    with observed():
        close(product, expected, dt.float16)


# Rows that fill the batches of the kernel, and rows that do not.
@pytest.mark.parametrize(("scheme", "columns", "dtype"), CASES)
@pytest.mark.parametrize("rows", [8, 19])
def test_a_gate_of_two_products(scheme, columns, dtype, rows, rng, monkeypatch):
    x, y, weight = (sample(rng, shape, dtype) for shape in ((1, columns), (1, columns), columns))
    first, second = (matrix(rng, scheme, rows, columns) for _ in range(2))

    def results():
        a, b, w = map(on_metal, (x, y, weight))
        norm, total = a.add_rms_norm(b, w, eps=EPS)
        plain, after = linears(a, [first[0], second[0]]), linears(norm, [first[0], second[0]])
        return [plain[0].swiglu(plain[1]), after[0].swiglu(after[1]), total * 2]

    found = results()
    assert sorted(kernels_of(*found)) == [
        "fused_add_rms_norm_quantized_matmul_swiglu",
        "fused_quantized_matmul_swiglu",
        "multiply",
    ]
    lbrx.eval(*found)
    monkeypatch.setenv("LBRX_FUSION", "0")
    for one, other in zip(found, results(), strict=True):
        if one is not found[1]:  # whose norm has other sums
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    a, b, w = map(wide, (x, y, weight))
    for one, row in zip(found, (a, normed(a + b, w)), strict=False):
        gate, up = (row @ each.T for _, each in (first, second))
        close(one, gate / (1 + np.exp(-gate)) * up, dtype)


def test_a_gate_that_stays_apart(operands, rng):
    x, y, _, by = operands
    other = matrix(rng, "q4_0", 9, 64)[0]
    apart = ["quantized_matmul", "swiglu"]
    gate, up = linears(x, [by, other])
    assert kernels_of(gate.swiglu(up), up) == apart
    assert kernels_of(gate.swiglu(up), gate + 1) == [*apart, "add"]
    assert kernels_of(up.swiglu(gate)) == apart
    assert kernels_of(gate.swiglu(y[:, :9].contiguous()))[-1] == "swiglu"
    three = linears(x, [by, other, by])
    assert kernels_of(three[0].swiglu(three[1])) == apart
    two = linears(lbrx.concat([x, y], axis=0), [by, other])
    assert kernels_of(two[0].swiglu(two[1]))[-2:] == apart


@pytest.mark.parametrize("observed", [nullcontext, lbrx.profile], ids=["plain", "profiled"])
def test_a_gate_of_misplaced_products_is_computed_apart(observed, rng):
    memory = sample(rng, (1, 65), dt.float16)
    (one, first), (other, second) = (matrix(rng, "q4_0", 9, 64) for _ in range(2))
    products = linears(on_metal(memory)[:, 1:], [one, other])
    gate, up = (wide(memory[:, 1:]) @ each.T for each in (first, second))
    with observed():
        close(products[0].swiglu(products[1]), gate / (1 + np.exp(-gate)) * up, dt.float16)
