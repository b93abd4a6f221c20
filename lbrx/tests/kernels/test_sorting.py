"""sort, argsort and topk: every variant, bit for bit against a stable order of Python's."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from op_oracle import sample
from row_cases import rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.sorting import sorting

DTYPES = (dt.float32, dt.int64, dt.float16, dt.int8, dt.bfloat16, dt.uint64)
DTYPES += tuple(d for d in dt.ALL if d not in (*DTYPES, dt.float64))
# On both sides of what insertion, a tile, and a thread take.
LENGTHS = {
    "radix": (1, 2, 48, 49, 300),
    "select": (16, 17, 400),
    "tile": (1, 2, 33, 1024, 1025, 5000),
}


@contextmanager
def sorted_by(variant):
    """A context that forces a variant and asserts that it ran."""
    before = Counter(metal.stats()["kernels"])
    with forced(sorting=variant):
        yield
    ran = {name for name in Counter(metal.stats()["kernels"]) - before if name.startswith("sort:")}
    assert f"sort:{variant}" in ran
    assert not ran & ({f"sort:{v}" for v in sorting.family.variants} - {f"sort:{variant}"})


def order(values, descending):
    """Of one row: Python's sort is stable."""
    with np.errstate(invalid="ignore"):  # of NaN that signal
        row = (values.astype(float) if dt.parse(values.dtype).is_float else values).tolist()

    def key(i):
        last = math.isnan(row[i])
        return last, 0 if last else (-row[i] if descending else row[i])

    return np.array(sorted(range(len(row)), key=key), np.int64)


def data(rng, shape, dtype):
    """Few different values, so that many are equal; of floats also NaN, infinity and both zeros."""
    values = sample(rng, shape, dtype)
    if dtype.is_float:
        special = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, -math.nan])
        flat = values.reshape(-1)
        places = rng.random(flat.size) < 0.4
        flat[places] = rng.choice(special, places.sum()).astype(dtype.numpy)
    return values


def check(values, variant, k=None, descending=False):
    """The rows of a matrix."""
    tensor = lbrx.tensor(values, device="metal")
    expected = np.stack([order(row, descending) for row in values])
    chosen = np.take_along_axis(values, expected, 1)
    with sorted_by(variant):
        if k is None:
            found = tensor.sort(descending=descending), tensor.argsort(descending=descending)
        else:
            found = tensor.topk(k, largest=descending)
        lbrx.eval(*found)
    assert found[1].dtype is dt.int64
    np.testing.assert_array_equal(found[1].numpy(), expected[:, :k])
    assert found[0].numpy().tobytes() == np.ascontiguousarray(chosen[:, :k]).tobytes()


@pytest.mark.parametrize(
    ("variant", "descending", "dtype"),
    rotated(
        *((v, d) for d in (False, True) for v in LENGTHS),
        of=DTYPES,
    ),
)
def test_variants(variant, descending, dtype, rng):
    for length in LENGTHS[variant]:
        k = max(1, length // 9) if variant == "select" else None
        check(data(rng, (3, length), dtype), variant, k, descending)


@pytest.mark.parametrize("variant", LENGTHS)
def test_some_of_a_row(variant, rng):
    values = data(rng, (2, 3000), dt.float32)
    for k in (1, 40, *((2047, 3000) if variant != "select" else ())):
        check(values, variant, k, True)


@pytest.mark.parametrize("variant", ["radix", "select"])
def test_a_long_row_is_cut_into_blocks(variant, rng, monkeypatch):
    monkeypatch.setattr(sorting, "BLOCK", 100)
    for length in (199, 200, 1001):
        blocks = sorting._blocks(
            metal.context().info, sorting.SortProblem(dt.float32, 1, length, length, False)
        )
        assert blocks & (blocks - 1) == 0
        assert blocks * 100 <= max(length, 100)
        check(data(rng, (1, length), dt.float32), variant, 10 if variant == "select" else None)


def test_the_choice(rng):
    """Few of many are selected, more of them sorted."""
    values = lbrx.tensor(data(rng, (4096,), dt.float32), device="metal")
    for k, variant in ((256, "select"), (257, "radix"), (1, "select")):
        with sorted_by(variant):
            lbrx.eval(*values.topk(k))
    with sorted_by("radix"):  # an eighth of the row
        lbrx.eval(*values[:80].topk(11))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes_and_views(axis, rng):
    values = data(rng, (5, 6, 7), dt.float32)
    view = values.transpose(2, 0, 1)[::-1, :, 1::2]
    tensor = lbrx.tensor(values, device="metal").permute(2, 0, 1)[::-1, :, 1::2]
    expected = np.apply_along_axis(order, axis, view, False)
    np.testing.assert_array_equal(tensor.argsort(axis=axis).numpy(), expected)
    found = tensor.sort(axis=axis).numpy()
    np.testing.assert_array_equal(found, np.take_along_axis(view, expected, axis))
    values, indices = tensor.topk(2, axis=axis, largest=False)
    first = np.take(expected, [0, 1], axis)
    np.testing.assert_array_equal(indices.numpy(), first)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(view, first, axis))


def test_nothing_to_sort():
    for shape in ((0,), (0, 3), (3, 0)):
        tensor = lbrx.zeros(shape, device="metal")
        assert tensor.sort().shape == tensor.argsort(descending=True).shape == shape
    values, indices = lbrx.ones((2, 3), device="metal").topk(0)
    assert values.shape == indices.shape == (2, 0)


def test_every_value_of_a_short_type():
    """Each of the 65,536 bit patterns of a half, in both directions."""
    for dtype in (dt.float16, dt.bfloat16):
        values = np.arange(1 << 16, dtype=np.uint16)[::-1].copy().view(dtype.numpy)
        for descending in (False, True):
            check(values[None], "radix", None, descending)


@pytest.mark.parametrize("dtype", rotated((), of=(dt.uint64, dt.int64, dt.int8, dt.uint32)))
def test_the_ends_of_a_type(dtype):
    limits = np.iinfo(dtype.numpy)
    middle = (limits.max + limits.min) // 2
    ends = [limits.max, limits.min, 0, middle + 1, limits.max - 1, limits.min + 1, middle]
    for descending in (False, True):
        check(np.array([ends * 9], dtype.numpy), "radix", None, descending)


def test_on_an_apple_chip(on_chip, rng):
    with on_chip("m1"):
        check(data(rng, (2, 3000), dt.float32), "tile")
        check(data(rng, (1, 9000), dt.float32), "tile", 40, True)
        assert set(metal.stats()["kernels"]) == {
            *("sort:tile", "sort:merge", "sort:values", "sort:indices")
        }


@pytest.mark.parametrize("variant", LENGTHS)
def test_memory_and_order(variant, rng):
    with softmetal.checking("bounds", "race"):
        check(data(rng, (2, 200), dt.float32), variant, 10)
