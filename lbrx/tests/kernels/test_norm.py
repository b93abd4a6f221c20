"""Layer and RMS norm, and both of a sum: every variant against float64."""

from __future__ import annotations

import numpy as np
import op_oracle
import pytest
from op_oracle import close, sample, wide
from row_cases import FLOATS, LENGTHS, VIEWS, computed_by, rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic

EPS = 1e-3
# Each operation with some of its operands: what a kernel is specialised for.
CASES = {
    "layer_norm": ("weight", "bias"),
    "rms_norm": ("weight",),
    "add_layer_norm": ("residual", "bias"),
    "add_rms_norm": ("residual",),
}


def oracle(op, x, residual=0, weight=1, bias=0):
    """The normalised rows and what was normalised."""
    total = x + residual
    norm = op_oracle.layer_norm if op.endswith("layer_norm") else op_oracle.rms_norm
    with np.errstate(all="ignore"):
        return norm(total, EPS) * weight + bias, total


def special(rng, length, dtype):
    """Rows as they come, of zeros, far from zero, and with NaN, inf and both infinities."""
    values = sample(rng, (6, length), dtype)
    values[1] = 0
    values[2] += np.asarray(8, dtype.numpy)
    values[3, length // 2] = np.nan
    values[4, -1] = np.inf
    values[5, 0], values[5, -1] = np.inf, -np.inf
    return values


def operands(rng, op, values, dtype):
    shapes = {"residual": values.shape, "weight": values.shape[-1:], "bias": values.shape[-1:]}
    return {name: sample(rng, shapes[name], dtype) for name in CASES[op]}


def check(values, op, given, variant):
    def tensor(x):
        return lbrx.tensor(x, device="metal")

    with computed_by("norm", variant, op):
        results = getattr(tensor(values), op)(**{k: tensor(v) for k, v in given.items()}, eps=EPS)
        results = results if isinstance(results, tuple) else (results,)
        lbrx.eval(*results)
    expected = oracle(op, wide(values), **{name: wide(v) for name, v in given.items()})
    for result, wanted in zip(results, expected, strict=False):
        close(result, wanted, dt.parse(values.dtype), scale=4)


@pytest.mark.parametrize(
    ("variant", "op", "dtype"),
    rotated(*((v, op) for v, op in zip(LENGTHS, [*CASES, "layer_norm"], strict=True)), of=FLOATS),
)
def test_rows(variant, op, dtype, rng):
    for length in LENGTHS[variant]:
        values = special(rng, length, dtype)
        check(values, op, operands(rng, op, values, dtype), variant)


@pytest.mark.parametrize("length", [64, 65])
@pytest.mark.parametrize(
    "dtype", [dt.float16, *(pytest.param(d, marks=pytest.mark.full) for d in FLOATS)], ids=str
)
def test_weights_of_rows_that_begin_within_a_vector(dtype, length, rng):
    """Nine rows have every phase; the operands of each begin with a vector."""
    values = sample(rng, (9, length), dtype)
    check(values, "layer_norm", operands(rng, "layer_norm", values, dtype), "simdgroup")


@pytest.mark.full
@pytest.mark.parametrize("variant", LENGTHS)
@pytest.mark.parametrize("op", CASES)
def test_every_operation_with_every_variant(op, variant, rng):
    values = special(rng, LENGTHS[variant][1], dt.float32)
    check(values, op, operands(rng, op, values, dt.float32), variant)


@pytest.mark.parametrize("chip", ["m2", pytest.param("m4", marks=pytest.mark.full)])
def test_on_apple_chips(chip, on_chip, rng):
    with on_chip(chip):
        for length in (60, 1700, 17_000):
            values = sample(rng, (3, length), dt.float32)
            result = lbrx.tensor(values, device="metal").rms_norm(eps=EPS)
            close(result, oracle("rms_norm", wide(values))[0], dt.float32)
        variants = ("simdgroup", "threadgroup", "threadgroup_parts")
        assert set(metal.stats()["kernels"]) == {f"rms_norm:{variant}" for variant in variants}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view, rng):
    look = VIEWS[view]
    values, others = (sample(rng, (4, 6, 8), dt.float32) for _ in range(2))
    weights = sample(rng, (3, 16), dt.float32)
    x, w = look(wide(values)), wide(weights)[1, ::2][: look(values).shape[-1]]
    tensor, weight = (lbrx.tensor(v, device="metal") for v in (values, weights))
    tensor, weight = look(tensor), weight[1, ::2][: len(w)]
    expected = oracle("rms_norm", x, weight=w)[0] if x.size else x
    close(tensor.rms_norm(weight, eps=EPS), expected, dt.float32)
    # The residual has no gaps, whatever the view.
    r = np.ascontiguousarray(look(others))
    normal, total = tensor.add_layer_norm(lbrx.tensor(r, device="metal"), eps=EPS)
    expected = oracle("add_layer_norm", x, wide(r)) if x.size else (x, x)
    close(normal, expected[0], dt.float32, scale=4)
    close(total, expected[1], dt.float32)


@pytest.mark.parametrize(
    ("of", "weight", "gives"),
    [
        (dt.float16, dt.float32, dt.float32),
        (dt.bfloat16, dt.float16, dt.float32),
        (dt.float32, dt.bfloat16, dt.float32),
        (dt.int32, dt.float16, dt.float16),
        (dt.uint8, dt.int64, dt.float32),
        (dt.bool_, dt.bool_, dt.float32),
    ],
    ids=str,
)
def test_types_meet(of, weight, gives, rng):
    values, weights = sample(rng, (3, 11), of), sample(rng, (11,), weight)
    tensor, scale = (lbrx.tensor(v, device="metal") for v in (values, weights))
    expected = oracle("rms_norm", wide(values), weight=wide(weights))[0]
    close(tensor.rms_norm(scale, eps=EPS), expected, gives)


@pytest.mark.parametrize("length", [700, 70_000])
def test_a_row_has_the_same_bits_in_any_batch(length, rng):
    tensor = lbrx.tensor(sample(rng, (9, length), dt.float32), device="metal")
    with deterministic():
        together, alone = tensor.layer_norm().numpy(), tensor[4:5].layer_norm().numpy()
    np.testing.assert_array_equal(together[4:5], alone)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, marks=() if v in ("serial_parts", "threadgroup") else (pytest.mark.full,))
        for v in LENGTHS
    ],
)
def test_memory_and_order(variant, rng):
    lengths = {"serial_parts": (32_771,), "threadgroup_parts": (16_401,)}.get(variant, (77, 80))
    for length in lengths:
        values = sample(rng, (5, length), dt.float32)
        with softmetal.checking("bounds", "race"):
            given = operands(rng, "add_layer_norm", values, dt.float32)
            check(values, "add_layer_norm", given, variant)
