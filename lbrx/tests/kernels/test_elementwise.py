"""Element programs: every way to walk through arrays, both variants, and the edges of each type."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import Place, chosen, close, pair, sample, wide

import lbrx
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.kernels import forced
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.elementwise.elementwise import ElementwiseProblem, family, needs_wide
from lbrx.kernels.layouts import collapsed
from lbrx.program.element_program import Access, Program, ProgramInput, source

soft_only = pytest.mark.skipif(sys.platform == "darwin", reason="about softmetal's modes")
ON_METAL = [d for d in dt.ALL if d.msl]
SAMPLE = Place("metal", every=False)


@pytest.fixture(autouse=True)
def _on_metal(metal_default):
    with np.errstate(all="ignore"):
        yield


def counted(name: str) -> int:
    return metal.stats()["kernels"].get(name, 0)


# ---- layouts ----

# How two operands of the shape (6, 4, 5, 3) lie; the result always has that shape.
FULL = (6, 4, 5, 3)
LAYOUTS = {
    "flat": (lambda x: x, lambda x: x),
    "row": (lambda x: x, lambda x: x[0, 0, 0]),
    "column": (lambda x: x, lambda x: x[:, :, :, :1]),
    "one element": (lambda x: x, lambda x: x[2, 3, 4, 1]),
    "middle axes": (lambda x: x, lambda x: x[:1, :, :, :1]),
    "outer": (lambda x: x[:, :, :1, :1], lambda x: x[:1, :1]),
    "transposed": (lambda x: x, lambda x: x.reshape(3, 5, 4, 6).T),
    "both transposed": (lambda x: x.reshape(3, 5, 4, 6).T, lambda x: x.reshape(3, 5, 4, 6).T),
    "negative": (lambda x: x[::-1], lambda x: x[:, ::-1, :, ::-1]),
    "offsets and steps": (lambda x: x[1:, :, ::2], lambda x: x[:-1, :, 1:4]),
    "offset, still flat": (lambda x: x[2:], lambda x: x[1:5]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, rng):
    first, second = LAYOUTS[layout]
    x, y = (sample(rng, FULL, dt.float32) for _ in range(2))
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    result = first(a) - second(b)
    close(result, wide(first(x)) - wide(second(y)), dt.float32)
    assert result.is_contiguous


@pytest.mark.parametrize("axes", [2, 3, 4, 5, 6])
def test_axes_that_cannot_be_joined(axes, rng):
    shape = tuple(range(2, axes + 2))
    x = sample(rng, shape[::-1], dt.int32)
    y = sample(rng, shape, dt.int32)
    close(lbrx.tensor(x).T * lbrx.tensor(y), wide(x.T) * wide(y), dt.int32)


def test_the_walk_is_that_of_numpy(rng):
    """Collapsed axes visit the same elements in the same order."""
    for _ in range(200):
        shape = tuple(rng.integers(1, 4, rng.integers(1, 6)))
        base = sh.contiguous(shape)
        layouts = [sh.permute(base, rng.permutation(len(shape)).tolist())]
        wanted = layouts[0].shape
        layouts.append(sh.contiguous(wanted))
        layouts.append(sh.expand(sh.contiguous(wanted[-1:]), wanted))
        layouts.append(
            sh.index(sh.contiguous((*wanted[:-1], 2 * wanted[-1])), (..., slice(None, None, -2)))
        )
        axes, strides = collapsed(wanted, layouts)
        assert math.prod(axes) == math.prod(wanted)
        for layout, own in zip(layouts, strides, strict=True):
            whole = [np.dot(at, layout.strides) for at in np.ndindex(*wanted)]
            assert [np.dot(at, own) for at in np.ndindex(*axes)] == whole
        if math.prod(wanted) > 1:
            assert all(n > 1 for n in axes)


def test_numbers_and_nothing():
    assert (lbrx.tensor(3.0) + 1).item() == 4
    assert lbrx.where(True, 1, 2).item() == 1
    assert (lbrx.tensor([[2.0]]) * lbrx.tensor(3.0, device="cpu")).tolist() == [[6.0]]
    before = metal.stats()["dispatches"]
    assert (lbrx.zeros((3, 0)) + lbrx.zeros((1, 1))).tolist() == [[], [], []]
    assert lbrx.zeros((0,)).exp().shape == (0,)
    assert metal.stats()["dispatches"] == before


# ---- variants ----


@pytest.mark.parametrize("variant", ["single", "chunks"])
def test_variants_at_odd_sizes(variant, rng):
    with forced(elementwise=variant):
        for n in (4, 5, 255, 256, 257, 1025, 70_001):
            a, x = pair(rng, (n,), dt.float32, "metal")
            before = counted(f"fma:{variant}")
            close(a.fma(2.0, 1.0), x * 2 + 1, dt.float32)
            assert counted(f"fma:{variant}") == before + 1


def chunked(function, *operands):
    """The result with chunks forced, and whether it was computed so."""
    before = {k: n for k, n in metal.stats()["kernels"].items() if k.endswith(":chunks")}
    with forced(elementwise="chunks"):
        result = function(*operands)
        lbrx.eval(result)
    after = {k: n for k, n in metal.stats()["kernels"].items() if k.endswith(":chunks")}
    return result, after != before


def swapped(x):
    return x.permute(0, 2, 1, 3) if isinstance(x, lbrx.Tensor) else x.transpose(0, 2, 1, 3)


# Layouts of two operands that fill chunks of 8 halves, or only shorter ones, or none.
CHUNKED = {
    "flat": (lambda x: x, lambda x: x, True),
    "row": (lambda x: x, lambda x: x[0, 0, 0], True),
    "column": (lambda x: x, lambda x: x[:, :, :, :1], True),
    "middle axes": (lambda x: x, lambda x: x[:1, :, :, :1], True),
    "aligned columns": (lambda x: x[..., 8:], lambda x: x[..., :8], True),
    "columns in fours": (lambda x: x[..., 4:12], lambda x: x[..., 8:], True),
    "odd columns": (lambda x: x[..., 1:], lambda x: x[..., :-1], False),
    "odd offset": (lambda x: x.reshape(-1)[1:], lambda x: x.reshape(-1)[:-1], False),
    "even offset": (lambda x: x.reshape(-1)[2:-3], lambda x: x.reshape(-1)[4:-1], True),
    "rows swapped": (lambda x: swapped(x), lambda x: swapped(x)[::-1], True),
    "transposed": (lambda x: x.T, lambda x: x.T[::-1], False),
}  # fmt: skip


@pytest.mark.parametrize("layout", CHUNKED)
def test_chunks_of_layouts(layout, rng):
    first, second, chunks = CHUNKED[layout]
    x, y = (sample(rng, (3, 2, 5, 16), dt.float16) for _ in range(2))
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    result, used = chunked(lambda a, b: a - b, first(a), second(b))
    close(result, wide(first(x)) - wide(second(y)), dt.float16)
    assert used is chunks


@pytest.mark.parametrize("target", ON_METAL, ids=str)
def test_chunks_of_each_dtype(target, rng):
    """Casts of each type to each: chunks of every width, with elements after the last chunk."""
    for source_dtype in ON_METAL if target in (dt.float16, dt.bool_, dt.int64) else (target,):
        a, _ = pair(rng, (1037,), source_dtype, "metal")
        single = a.astype(target) if target is not source_dtype else a + a
        result, used = chunked(lambda a: a.astype(target) if a.dtype is not target else a + a, a)
        np.testing.assert_array_equal(result.numpy(), single.numpy())
        assert used


def program(*accesses: Access, axes: int = 1) -> Program:
    inputs = tuple(ProgramInput(dt.float32, access) for access in accesses)
    return Program(inputs, (), ((0, dt.float32),), axes)


def test_the_choice_by_size_and_device(on_chip):
    flat = program(Access.ROW, Access.SCALAR)
    strided = program(Access.STRIDED)
    soft = replace(metal.context().info, cache=1 << 30)  # larger than the result
    assert family.choose(soft, ElementwiseProblem(flat, 1 << 24)).name == "single"
    with on_chip("m1") as gpu:
        info = gpu.info
    enough = elementwise.BUSY * info.cores
    assert family.choose(info, ElementwiseProblem(flat, enough - 1, 4)).name == "single"
    assert family.choose(info, ElementwiseProblem(flat, enough, 4)).name == "chunks"
    assert family.choose(info, ElementwiseProblem(flat, enough, 1)).name == "single"
    assert family.choose(info, ElementwiseProblem(strided, 2 * enough)).name == "single"
    assert ElementwiseProblem(flat, 1000).shape_class == "flat 1024"
    assert ElementwiseProblem(program(Access.ROW, axes=3), 1000).shape_class == "strided3 1024"


# Shapes of results that are whole blocks, parts of them, and several; the operand is transposed.
BLOCKED = [(128, 128), (64, 257), (200, 90), (3, 70, 130), (2, 3, 66, 96)]


def transposed(shape):
    return (*shape[:-2], shape[-1], shape[-2])


@on_processors
@pytest.mark.parametrize("shape", BLOCKED)
@pytest.mark.parametrize("dtype", chosen(ON_METAL, SAMPLE, "blocked"))
def test_columns_are_read_by_blocks(dtype, shape, rng):
    a, x = pair(rng, transposed(shape), dtype, "metal")
    b, y = pair(rng, shape, dtype, "metal")
    name = "not_equal:blocked"
    before = counted(name)
    result = (a.permute(*range(a.ndim - 2), a.ndim - 1, a.ndim - 2) != b).numpy()
    assert counted(name) == before + 1
    np.testing.assert_array_equal(result, x.swapaxes(-1, -2) != y)


@on_processors
def test_blocks_beside_other_operands(rng):
    """Two operands by columns, one from an offset on, beside a row, a column of one, a number."""
    x, y = sample(rng, (150, 131), dt.float32), sample(rng, (140, 131), dt.float32)
    row, column = sample(rng, (140,), dt.float32), sample(rng, (131, 1), dt.float32)
    a, b, r, c = (lbrx.tensor(v) for v in (x, y, row, column))
    with lbrx.profile() as profile:
        got = ((a[10:].T - b.T) * r + c) * 2.0
        lbrx.eval(got)
        assert [record.variant for record in profile.records] == ["blocked"]
    expected = ((wide(x[10:].T) - wide(y.T)) * wide(row) + wide(column)) * 2
    close(got, expected, dt.float32)


@soft_only
@pytest.mark.parametrize("chip", ["m1", "m4"])
def test_on_chips(chip, on_chip, rng):
    with on_chip(chip) as gpu:
        n = elementwise.BUSY * gpu.info.cores
        for size, variant in ((n - 1, "single"), (n, "chunks")):
            a, x = pair(rng, (size,), dt.float32, "metal")
            before = counted(f"square:{variant}")
            close(a.square(), x * x, dt.float32)
            assert counted(f"square:{variant}") == before + 1


@pytest.mark.parametrize("variant", ["single", "chunks"])
def test_parts(variant, rng, monkeypatch):
    """More elements than one dispatch takes, from an offset on."""
    monkeypatch.setattr(elementwise, "PART", 16)
    with forced(elementwise=variant):
        for n in (15, 16, 17, 70):
            a, x = pair(rng, (n + 8,), dt.float16, "metal")
            before = counted(f"add:{variant}")
            close(a[8:] + a[:-8], x[8:] + x[:-8], dt.float16)
            assert counted(f"add:{variant}") == before + -(-n // 16)


@pytest.mark.parametrize("shape", [(30,), (30, 5), (30, 3, 2)])
def test_parts_of_what_is_not_in_order(shape, rng, monkeypatch):
    monkeypatch.setattr(elementwise, "PART", 7)
    a, x = pair(rng, shape, dt.float16, "metal", "strided")
    one, y = pair(rng, (1,), dt.float16, "metal")
    before = counted("add:single")
    close(a[::-1] + one, x[::-1] + y, dt.float16)
    assert counted("add:single") == before + 5


def test_positions_beyond_32_bits(rng, monkeypatch):
    near = sh.Layout((2, 3), (3, 1), 2**31 - 6)
    assert not needs_wide([near])
    assert needs_wide([sh.Layout((2, 3), (3, 1), 2**31 - 5)])
    assert needs_wide([sh.contiguous((2, 2**30 + 1))])
    monkeypatch.setattr(elementwise, "needs_wide", lambda layouts: True)
    for view in (
        lambda x: x.T,
        lambda x: x[::-1, 1:],
        lambda x: x.reshape(2, 3, 5, 7)[:, :, ::-2].T,
    ):
        a, x = pair(rng, (6, 35), dt.int16, "metal")
        close(view(a) + 1, view(x) + 1, dt.int16)
    text = source(
        Program((ProgramInput(dt.int8, Access.STRIDED),), (), ((0, dt.int8),), 2, True), "k"
    )
    assert "long start[1];" in text


# ---- element types ----


def test_halves_round_to_even_once():
    ties = np.float32(
        [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 3.4e38, 1e-41, 65519, 65520]
    )
    for dtype in (dt.bfloat16, dt.float16):
        got = lbrx.tensor(ties).astype(dtype).numpy()
        np.testing.assert_array_equal(got.astype(float), ties.astype(dtype.numpy).astype(float))
    # In float16 the sum of the products would overflow half way.
    x = lbrx.full(3, 300.0, dtype="float16")
    assert x.fma(x, lbrx.full(3, -60000.0, dtype="float16")).tolist() == [30000.0] * 3


def test_copies_move_every_bit(rng):
    for dtype in chosen(ON_METAL, SAMPLE, "copy"):
        raw = rng.integers(0, 256, (40, dtype.itemsize), np.uint8)
        if dtype is dt.bool_:
            raw &= 1
        x = raw.view(dtype.numpy).reshape(5, 8)
        got = lbrx.tensor(x).T.contiguous().numpy()
        np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(x.T).view(np.uint8))


SPECIAL = np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5, 1e-40, 3e38, -3e38])
UNARY = {
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "round": np.round,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "logical_not": np.logical_not,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
}
TINY = float(np.finfo(np.float32).tiny)  # below it a GPU may flush to zero


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name):
    got = getattr(lbrx.tensor(SPECIAL), name)().numpy().astype(float)
    np.testing.assert_allclose(got, UNARY[name](SPECIAL).astype(float), rtol=2e-6, atol=TINY)


@pytest.mark.parametrize(
    "name", ["maximum", "minimum", "multiply", "remainder", "floor_divide", "less"]
)
def test_special_values_of_two(name):
    values = np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5, 7, -7.5, 3e38])
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    got = getattr(lbrx.tensor(x), name)(lbrx.tensor(y)).numpy().astype(float)
    expected = getattr(np, name)(x, y).astype(float)
    np.testing.assert_allclose(got, expected, rtol=2e-6)
    if name not in ("maximum", "minimum"):  # the order of 0 and -0 is not specified
        np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(expected)[got == 0])


@pytest.mark.parametrize("dtype", [dt.int8, dt.int32, dt.int64, dt.uint8, dt.uint64], ids=str)
def test_edges_of_integers(dtype, rng):
    limits = np.iinfo(dtype.numpy)
    edges = [
        v for v in (limits.min, limits.min + 1, -7, -1, 0, 1, 3, limits.max) if v >= limits.min
    ]
    x, y = (np.array(v, dtype.numpy) for v in zip(*itertools.product(edges, repeat=2), strict=True))
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    np.testing.assert_array_equal((a // b).numpy(), np.floor_divide(x, y))
    np.testing.assert_array_equal((a % b).numpy(), np.remainder(x, y))
    np.testing.assert_array_equal((a * b).numpy(), x * y)
    np.testing.assert_array_equal(abs(a).numpy(), np.abs(x))
    counts = np.array([0, 1, 8 * dtype.itemsize - 1, 8 * dtype.itemsize, 100], dtype.numpy)
    x, y = (v.ravel() for v in np.meshgrid(np.array(edges, dtype.numpy), counts))
    a, b = lbrx.tensor(x), lbrx.tensor(y)
    np.testing.assert_array_equal((a << b).numpy(), np.left_shift(x, y))
    np.testing.assert_array_equal((a >> b).numpy(), np.right_shift(x, y))


# Each is one kernel, whose compiler could use that a sum or product has not overflowed.
OVERFLOWING = {
    "add": lambda x, m: x + 1 > x,
    "subtract": lambda x, m: x - 1 < x,
    "multiply": lambda x, m: x * 2 // 2 == x,
    "square": lambda x, m: m.square(x) // 3,
    "negative": lambda x, m: (-x < 0) | (x < 0),
    "abs": lambda x, m: m.abs(x) + m.abs(x) >= m.abs(x),
    "pow": lambda x, m: x**3 < 0,
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_follows_an_overflow(name):
    for dtype in (dt.int16, dt.uint16, dt.int32, dt.int64):
        limits = np.iinfo(dtype.numpy)
        root = math.isqrt(limits.max) + 1
        near = [limits.min, limits.min + 1, 0, 1, 3, root, limits.max // 2 + 1, limits.max]
        x = np.array(near, dtype.numpy)
        found = OVERFLOWING[name](lbrx.tensor(x), lbrx).numpy()
        np.testing.assert_array_equal(found, OVERFLOWING[name](x, np), str(dtype))


def test_powers_of_integers():
    x, y = (
        np.int32(v) for v in zip(*itertools.product((-3, -1, 0, 1, 2, 7), range(9)), strict=True)
    )
    np.testing.assert_array_equal((lbrx.tensor(x) ** lbrx.tensor(y)).numpy(), x**y)
    negative = lbrx.tensor(np.int32([2, 1, -1, -1])) ** lbrx.tensor(np.int32([-1, -5, -2, -3]))
    assert negative.tolist() == [0, 1, 1, -1]


# ---- checks ----


@soft_only
def test_under_bounds_and_race(rng):
    import softmetal

    x, y = (sample(rng, (5, 6, 7, 2), dt.float32) for _ in range(2))
    with softmetal.checking("bounds", "race"):
        a, b = lbrx.tensor(x), lbrx.tensor(y)
        close(a[1:, ::-1].T + b[:-1].T, wide(x[1:, ::-1].T) + wide(y[:-1].T), dt.float32)
        p, q = sample(rng, (130, 140), dt.float32), sample(rng, (140, 130), dt.float32)
        close(lbrx.tensor(p).T + lbrx.tensor(q), wide(p.T) + wide(q), dt.float32)
        with forced(elementwise="chunks"):
            close(a[1:] * b[1:], wide(x[1:]) * wide(y[1:]), dt.float32)
