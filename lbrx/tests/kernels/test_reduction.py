"""Reductions: every variant against float64, NaN and infinity as numpy has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from op_oracle import REDUCTIONS, close, sample, wide
from row_cases import computed_by, rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic, forced
from lbrx.kernels.reduction import reduction
from lbrx.kernels.reduction.reduction import ReductionAxis, ReductionKind, ReductionProblem

DTYPES = tuple(d for d in dt.ALL if d is not dt.float64)
NORMS = {"norm_1": 1, "norm_2": 2, "norm_p": 3, "norm_inf": math.inf}
FUNCTIONS = (*(op for op in REDUCTIONS if op != "norm"), *NORMS)

# On both sides of a short row, of a step of lanes, of a block; runs that repeat for one result.
SHAPES = {
    ReductionKind.ROWS: [
        *(((3, 65), 1), ((2, 128), 1), ((3, 255), 1), ((2, 4096), 1), ((2, 4097), 1)),
        *(((300_001,), 0), ((7, 3, 70), (0, 2))),
    ],
    ReductionKind.COLUMNS: [
        *(((1, 5), 0), ((3, 513), 0), ((128, 512), 0), ((129, 7), 0), ((1000, 600), 0)),
        *(((2, 131, 70), 1), ((5, 2, 3, 40), (0, 2)), ((41, 501), 0)),
    ],
    ReductionKind.STRIDED: [((700, 64), 1), ((5, 1), 1), ((1,), 0), ((9, 2, 20), (0, 2))],
}
FEW_COLUMNS = [((70_000, 3), 0), ((513, 7), 0), ((2, 300, 256), 1)]


def data(rng, function, shape, dtype):
    """Elements whose result the type can hold and tell from others."""
    if function in ("any", "all"):
        likely = 0.01 if function == "any" else 0.99
        return (rng.random(shape) < likely).astype(dtype.numpy)
    if function == "prod":
        if not dtype.is_float:
            return sample(rng, shape, dtype, 1, 3)
        # Products of many numbers beside 1 are off by more than each rounding is.
        few = rng.random(shape) < 10 / math.prod(shape)
        ones = rng.choice([-1.0, 1.0], shape)
        return np.where(few, rng.uniform(0.5, 2, shape), ones).astype(dtype.numpy)
    return sample(rng, shape, dtype, 0, 0.1) if dtype.is_float else sample(rng, shape, dtype)


def reduce(tensor, function, axis, **more):
    if function in NORMS:
        return tensor.norm(axis=axis, ord=NORMS[function], **more)
    return getattr(tensor, function)(axis=axis, **more)


def expected(values, function, axis):
    with np.errstate(all="ignore"):
        if function in NORMS:
            return REDUCTIONS["norm"].oracle(wide(values), axis=axis, ord=NORMS[function])
        return REDUCTIONS[function].oracle(wide(values), axis=axis)


def check(values, function, axis, variant):
    dtype = dt.parse(values.dtype)
    with computed_by("reduction", variant, function):
        result = reduce(lbrx.tensor(values, device="metal"), function, axis)
        lbrx.eval(result)
    row = REDUCTIONS["norm" if function in NORMS else function]
    close(result, expected(values, function, axis), row.result(dtype), scale=4)


def cases(*default):
    """Each function with one type, those named by default; all types in the full run."""
    return [
        row if row.values[0] in default else row._replace(marks=(pytest.mark.full,))
        for row in rotated(*((f,) for f in FUNCTIONS), of=DTYPES)
    ]


@pytest.mark.parametrize(
    ("function", "dtype"), cases("sum", "mean", "var", "norm_2", "argmin", "any")
)
def test_serial(function, dtype, rng):
    for shape, axis in [case for kind in SHAPES.values() for case in kind]:
        check(data(rng, function, shape, dtype), function, axis, "serial")
    for shape, axis in FEW_COLUMNS:
        check(data(rng, function, shape, dtype), function, axis, "folded")


@pytest.mark.parametrize(("function", "dtype"), cases("prod", "var"))
def test_simd(function, dtype, rng):
    for shape, axis in [case for kind in SHAPES.values() for case in kind]:
        check(data(rng, function, shape, dtype), function, axis, "simd")


INF, NAN = math.inf, math.nan
WIDTH = 80
# The rest of a row is zeros.
EXTREMES = [
    [1, NAN, 3, NAN],
    [NAN],
    [2, -NAN, 1],
    [-INF, INF],
    [0, -0.0, 0],
    [2, 2, 1, 2],
    [-INF] * WIDTH,
    [INF] * WIDTH,
    [NAN] * WIDTH,
]


@pytest.mark.parametrize(
    ("function", "variant"),
    [
        *(("max", "simd"), ("argmax", "serial")),
        *(
            pytest.param(function, variant, marks=pytest.mark.full)
            for function in ("max", "min", "argmax", "argmin")
            for variant in ("serial", "simd")
        ),
    ],
)
def test_nan_wins_and_the_first_of_equals(function, variant):
    for start, dtype in ((0, np.float32), (70, np.float32), (0, np.float16), (70, np.float16)):
        rows = np.zeros((len(EXTREMES), WIDTH), dtype)
        for row, values in zip(rows, EXTREMES, strict=True):
            begin = start if len(values) < WIDTH else 0
            row[begin : begin + len(values)] = values
        for values, axis in ((rows, 1), (np.ascontiguousarray(rows.T), 0), (rows[:, 16:], 1)):
            with computed_by("reduction", variant, function):
                result = reduce(lbrx.tensor(values, device="metal"), function, axis).numpy()
            np.testing.assert_array_equal(result, getattr(np, function)(values, axis=axis))


@pytest.mark.parametrize("order", [1, 2, 3, 7.5, INF])
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-12, 1.0, 1e12, 1e30, 3e38, INF])
def test_norms_neither_overflow_nor_vanish(size, order):
    for rest in (0.0, 1e-3, 0.5):
        row = np.array([rest * size if rest else 0, -size, 0], np.float32)
        values = np.stack([row, row[::-1]])
        with np.errstate(all="ignore"):
            numbers = np.abs(values.astype(np.float64)) / size
            norm = np.max(numbers, 1) if order == INF else (numbers**order).sum(1) ** (1 / order)
            wanted = (norm * size).astype(np.float32) if size < INF else np.full(2, INF)
        result = lbrx.tensor(values, device="metal").norm(axis=1, ord=order).numpy()
        if rest == 0 or size < INF:
            np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=3e-45)
    assert np.isnan(lbrx.tensor([size, NAN, 1.0], device="metal").norm(ord=order).item())


def test_an_order_that_makes_no_norm():
    for order in (0, -1, NAN):
        with pytest.raises(ValueError, match=f"ord={order} is not the order of a norm: give"):
            lbrx.ones(3, device="metal").norm(ord=order)


@pytest.mark.parametrize("variant", ["serial", pytest.param("simd", marks=pytest.mark.full)])
def test_sums_are_as_good_as_pairwise_ones(variant, rng):
    tenth = lbrx.full((1 << 22,), 0.1, device="metal")
    mixed = rng.standard_normal(1 << 20).astype(np.float32)
    with computed_by("reduction", variant, "sum"):
        total = tenth.sum().item()
        errors = lbrx.tensor(mixed, device="metal").sum().item() - wide(mixed).sum()
    assert total == pytest.approx(np.float32(0.1) * float(1 << 22), rel=1e-6)
    assert abs(errors) < 1e-7 * np.abs(mixed).sum()
    far = (mixed[:100_000] + 1e4).astype(np.float32)
    with computed_by("reduction", variant, "var"):
        spread = lbrx.tensor(far, device="metal").var().item()
    assert spread == pytest.approx(wide(far).var(), rel=1e-4)


VIEWS = {
    "rows with gaps": lambda x: x[:, :, :70],
    "every second row": lambda x: x[:, ::2],
    "an offset": lambda x: x[1:, 2:, 3:],
    "every second element": lambda x: x[:, :, ::2],
    "rows backwards": lambda x: x[:, ::-1],
    "elements backwards": lambda x: x[..., ::-1],
    "all backwards": lambda x: x[::-1, ::-1, ::-1],
    "transposed": lambda x: x.T,
    "one row": lambda x: x[1, 2],
    "one element each": lambda x: x[:, :, 3:4],
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("variant", ["serial", pytest.param("simd", marks=pytest.mark.full)])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, variant, rng):
    values = sample(rng, (4, 6, 150), dt.float32)
    tensor, same = VIEWS[view](lbrx.tensor(values, device="metal")), VIEWS[view](values)
    pairs = [(0, 1), (0, 2), (1, 2)] if same.ndim == 3 else []
    for axis in (None, *range(same.ndim), *pairs):
        with forced(reduction=variant):
            total = tensor.sum(axis=axis).numpy()
            place = tensor.argmax(axis=axis).numpy() if same.size else None
        np.testing.assert_allclose(total, expected(same, "sum", axis), rtol=1e-5, atol=1e-4)
        if place is not None:
            np.testing.assert_array_equal(place, expected(same, "argmax", axis))


def test_repeated_elements_and_many_axes(rng):
    values = sample(rng, (1, 7, 1), dt.float32)
    repeated = lbrx.tensor(values, device="metal").expand(3, 7, 50)
    same = np.broadcast_to(values, (3, 7, 50))
    for axis in (None, 0, 1, 2, (0, 2)):
        close(repeated.sum(axis=axis), expected(same, "sum", axis), dt.float32, scale=40)
        close(repeated.argmin(axis=axis), expected(same, "argmin", axis), dt.int64)
    tensor = lbrx.tensor(np.arange(3**11, dtype=np.int32).reshape((3,) * 11), device="metal")
    odd = tuple(range(1, 11, 2))
    same = tensor.numpy()
    np.testing.assert_array_equal(tensor[::-1].sum(axis=odd).numpy(), same[::-1].sum(axis=odd))


@pytest.mark.parametrize(
    ("kind", "length", "inner", "soft", "invariant", "apple"),
    [
        (ReductionKind.ROWS, 65, 1, "serial", "serial", "simd"),
        (ReductionKind.COLUMNS, 65, 256, "folded", "serial", "simd"),
        (ReductionKind.COLUMNS, 64, 256, "serial", "serial", "simd"),
        (ReductionKind.COLUMNS, 65, 257, "serial", "serial", "simd"),
    ],
)
def test_the_variant_follows_from_the_problem(kind, length, inner, soft, invariant, apple):
    info = replace(metal.context().info, simd_hardware=False)
    run, columns = ReductionAxis(length, inner, 0, 0), ReductionAxis(inner, 1, 1, 0)
    problem = ReductionProblem("sum", dt.float32, kind, run, columns, (), inner)
    assert reduction.family.choose(info, problem).name == soft
    assert reduction.family.choose(replace(info, simd_hardware=True), problem).name == apple
    with deterministic():
        assert reduction.family.choose(info, problem).name == invariant


@pytest.mark.parametrize("length", [7, 70_000])
def test_a_row_has_the_same_bits_in_any_batch(length, rng):
    tensor = lbrx.tensor(sample(rng, (9, length), dt.float32), device="metal")
    with deterministic():
        for function in ("sum", "var"):
            together = reduce(tensor, function, 1).numpy()
            alone = reduce(tensor[4:5], function, 1).numpy()
            np.testing.assert_array_equal(together[4:5], alone)
        together = tensor.T.contiguous().sum(axis=0).numpy()
        # One column alone is a row.
        fewer = tensor[4:6].T.contiguous().sum(axis=0).numpy()
        np.testing.assert_array_equal(together[4:6], fewer)


@pytest.mark.parametrize("chip", ["m1", pytest.param("m3-max", marks=pytest.mark.full)])
def test_on_apple_chips(chip, on_chip, rng):
    with on_chip(chip):
        for shape, axis in (((3, 100), 1), ((300_001,), 0), ((200, 6), 0), ((40, 5), 1)):
            check(data(rng, "max", shape, dt.float32), "max", axis, "simd")
        assert set(metal.stats()["kernels"]) == {"max:simd"}


@pytest.mark.parametrize(
    ("variant", "function"),
    [
        *(("serial", "sum"), ("simd", "argmax")),
        *(
            pytest.param(variant, function, marks=pytest.mark.full)
            for variant in ("serial", "simd")
            for function in FUNCTIONS
        ),
    ],
)
def test_memory_and_order(variant, function, rng):
    with softmetal.checking("bounds", "race"):
        for shape, axis in (((2, 261), 1), ((300_001,), 0), ((200, 6), 0), ((40, 5), 1)):
            check(data(rng, function, shape, dt.float32), function, axis, variant)
        check(data(rng, function, (37, 301), dt.float16), function, 0, variant)
