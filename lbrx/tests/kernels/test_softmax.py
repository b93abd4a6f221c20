"""Softmax: every variant against float64, NaN and infinity as numpy has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from op_oracle import close, sample, wide
from row_cases import FLOATS, LENGTHS, LOADS, VIEWS, computed_by, rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic, forced
from lbrx.kernels.rows import rows
from lbrx.kernels.rows.rows import RowProblem
from lbrx.kernels.softmax import softmax

OPS = ("softmax", "log_softmax")
# Shapes whose axis 1 is not the last: few columns, many, a tile and one more, columns in parts.
COLUMNS = (
    (2, 5, 3),
    (1, 40, 300),
    (3, 17, 257),
    (2, 9, 129),
    (1, 1, 2),
    (2, 4099, 5),
    (1, 8193, 130),
)


def oracle(x, axis, op):
    with np.errstate(all="ignore"):
        centred = x - np.max(x, axis, keepdims=True)
        total = np.sum(np.exp(centred), axis, keepdims=True)
        return centred - np.log(total) if op == "log_softmax" else np.exp(centred) / total


def special(rng, length, dtype):
    """Rows as they come, with NaN, with nothing but -inf, with inf, and with -inf for the most."""
    values = sample(rng, (5, length), dtype)
    values[1, length // 2] = np.nan
    values[2] = -np.inf
    values[3, -1] = np.inf
    values[4, : length - 1] = -np.inf
    return values


def check(values, op, axis, variant):
    with computed_by("softmax", variant, op):
        result = getattr(lbrx.tensor(values, device="metal"), op)(axis=axis)
        lbrx.eval(result)
    close(result, oracle(wide(values), axis, op), dt.parse(values.dtype), scale=4)


@pytest.mark.parametrize(
    ("variant", "op", "dtype"),
    rotated(*((v, OPS[i % 2]) for i, v in enumerate(LENGTHS)), of=FLOATS),
)
def test_rows(variant, op, dtype, rng):
    for length in LENGTHS[variant]:
        check(special(rng, length, dtype), op, -1, variant)


@pytest.mark.parametrize(
    ("variant", "op", "dtype"),
    rotated(("columns", "softmax"), ("column", "log_softmax"), of=FLOATS),
)
def test_columns(variant, op, dtype, rng):
    for shape in COLUMNS:
        check(sample(rng, shape, dtype), op, 1, variant)
    check(np.ascontiguousarray(special(rng, 4100, dtype).T), op, 0, variant)


@pytest.mark.parametrize(
    ("length", "inner", "soft", "apple"),
    [
        (1, 1, "serial", "simdgroup"),
        (1024, 1, "serial", "simdgroup"),
        (1025, 1, "serial", "threadgroup"),
        (16_384, 1, "serial", "threadgroup"),
        (16_385, 1, "serial", "threadgroup_parts"),
        (65_535, 1, "serial", "threadgroup_parts"),
        (65_536, 1, "serial_parts", "threadgroup_parts"),
        (2**31 - 1, 1, "serial_parts", "threadgroup_parts"),
        (7, 2, "columns", "column"),
    ],
)
def test_the_variant_follows_from_the_row(length, inner, soft, apple):
    info = replace(metal.context().info, simd_hardware=False)
    problem = RowProblem(dt.float32, 3, length, inner)
    assert softmax.family.choose(info, problem).name == soft
    assert softmax.family.choose(replace(info, simd_hardware=True), problem).name == apple


@pytest.mark.parametrize("chip", ["m1", pytest.param("m3-max", marks=pytest.mark.full)])
def test_on_apple_chips(chip, on_chip, rng):
    with on_chip(chip):
        for shape, axis in (((3, 60), -1), ((2, 1700), -1), ((2, 17_000), -1), ((4, 6, 5), 1)):
            values = sample(rng, shape, dt.float32)
            close(
                lbrx.tensor(values, device="metal").softmax(axis=axis),
                oracle(wide(values), axis, "softmax"),
                dt.float32,
            )
        variants = ("simdgroup", "threadgroup", "threadgroup_parts", "column")
        assert set(metal.stats()["kernels"]) == {f"softmax:{variant}" for variant in variants}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view, rng):
    values = sample(rng, (4, 6, 8), dt.float32)
    tensor, expected = VIEWS[view](lbrx.tensor(values, device="metal")), VIEWS[view](wide(values))
    for axis in range(expected.ndim):
        oracle_of = oracle if expected.size else (lambda x, *_: x)
        close(tensor.softmax(axis=axis), oracle_of(expected, axis, "softmax"), dt.float32)


@pytest.mark.parametrize("case", LOADS)
def test_what_a_team_loads_at_once(case, rng):
    shape, view, loads = LOADS[case]
    values = sample(rng, shape, dt.float16)
    tensor = view(lbrx.tensor(values, device="metal"))
    (array,), stride = rows.by_rows(metal.context(), tensor.array)
    assert (rows.loads(stride, array) or "single") == loads
    with computed_by("softmax", "simdgroup", "softmax"):
        result = tensor.softmax()
        lbrx.eval(result)
    close(result, oracle(wide(view(values)), -1, "softmax"), dt.float16)


def test_a_repeated_row_and_a_scalar(rng):
    values = sample(rng, (1, 7), dt.float32)
    repeated = lbrx.tensor(values, device="metal").expand(3, 7)
    expected = np.repeat(oracle(wide(values), -1, "softmax"), 3, 0)
    close(repeated.softmax(), expected, dt.float32)
    close(repeated.softmax(axis=0), np.full((3, 7), 1 / 3), dt.float32)
    one = lbrx.tensor([3.0], device="metal")
    assert (one.softmax().tolist(), one.log_softmax().tolist()) == ([1], [0])


@pytest.mark.parametrize("dtype", [dt.bool_, dt.uint8, dt.int64], ids=str)
def test_integers_become_float32(dtype, rng):
    values = sample(rng, (3, 11), dtype)
    result = lbrx.tensor(values, device="metal").softmax()
    close(result, oracle(wide(values), -1, "softmax"), dt.float32)


@pytest.mark.parametrize(("shape", "axis"), [((9, 700), 1), ((9, 70_000), 1), ((9, 40, 30), 1)])
def test_a_row_has_the_same_bits_in_any_batch(shape, axis, rng):
    tensor = lbrx.tensor(sample(rng, shape, dt.float32), device="metal")
    with deterministic():
        together = tensor.softmax(axis=axis).numpy()
        alone = tensor[4:5].softmax(axis=axis).numpy()
    np.testing.assert_array_equal(together[4:5], alone)


@pytest.mark.parametrize("view", ["all", "an odd stride"])
def test_a_row_of_a_team_has_the_same_bits_in_any_batch(view, rng):
    tensor = lbrx.tensor(sample(rng, (9, 701), dt.float16), device="metal")
    tensor = tensor[:, :696] if view == "an odd stride" else tensor
    with deterministic(), forced(softmax="simdgroup"):
        together = tensor.softmax().numpy()
        for row in (0, 4, 8):
            alone = tensor[row : row + 1].softmax().numpy()
            np.testing.assert_array_equal(together[row : row + 1], alone)


SAMPLE_OF_CHECKS = ("simdgroup", "threadgroup_parts", "columns")


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, marks=() if v in SAMPLE_OF_CHECKS else (pytest.mark.full,))
        for v in (*LENGTHS, "columns", "column")
    ],
)
def test_memory_and_order(variant, rng):
    lengths = {"serial_parts": (32_771,), "threadgroup_parts": (16_401,)}.get(variant, (77, 80))
    for length in lengths:
        shape, axis = ((3, length), -1) if variant in LENGTHS else ((2, length, 5), 1)
        with softmetal.checking("bounds", "race"):
            check(sample(rng, shape, dt.float32), "softmax", axis, variant)
