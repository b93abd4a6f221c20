"""Rows put into a cache: against numpy, and in place."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import close, sample, wide
from row_cases import computed_by, rotated

import lbrx
import softmetal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.tensors.long_lived import new_cache, write

TYPES = [  # of the cache, of the rows
    (dt.float16, dt.float32),
    (dt.float32, dt.bfloat16),
    (dt.bfloat16, dt.float32),
    (dt.float16, dt.float16),
    (dt.bfloat16, dt.bfloat16),
    (dt.float32, dt.float32),
]
SHAPES = [  # of the cache, of the rows, of the positions
    ((2, 3, 40, 64), (2, 3, 1, 64), (2, 1, 1)),
    ((1, 2, 17, 5), (1, 2, 9, 5), (9,)),
    ((2, 2, 3, 20, 8), (2, 2, 3, 4, 8), (2, 2, 1, 4)),
    ((6, 1), (3, 1), (3,)),
    ((3, 1, 7), (3, 1, 7), ()),
]


def oracle(cache, rows, positions):
    """One row after the other."""
    result = wide(cache).copy()
    where = np.broadcast_to(positions, rows.shape[:-1])
    for at in np.ndindex(*rows.shape[:-1]):
        if 0 <= where[at] < cache.shape[-2]:
            result[(*at[:-1], int(where[at]))] = wide(rows)[at]
    return result


def spots(rng, shape, length):
    """A position for each row, none twice, some beyond the cache on either side."""
    *leading, count = shape or (1,)
    lists = [rng.permutation(length + 4)[:count] - 2 for _ in range(int(np.prod(leading)))]
    return np.array(lists, np.int32).reshape(shape)


def on_metal(array):
    return lbrx.tensor(array, device="metal")


@pytest.mark.parametrize(("variant", "types"), rotated(("row",), ("element",), of=TYPES))
def test_overwrite(variant, types, rng):
    for shape, new, at in SHAPES:
        cache, rows = sample(rng, shape, types[0]), sample(rng, new, types[1])
        positions = spots(rng, at, shape[-2])
        expected = oracle(cache, rows, positions)
        with computed_by("overwrite", variant, "overwrite"):
            result = on_metal(cache).overwrite(on_metal(rows), on_metal(positions))
            close(result, expected, types[0])
        reference = lbrx.tensor(cache, device="cpu").overwrite(rows, positions)
        close(reference, expected, types[0])


ALIGNED_SHAPES = [
    ((2, 3, 40, 64), (2, 3, 9, 64), (2, 1, 9)),
    ((1, 2, 17, 24), (1, 2, 6, 24), (6,)),
    ((30, 8), (5, 8), (5,)),
]


@pytest.mark.parametrize("types", [t for t in TYPES if t != (dt.float32, dt.bfloat16)], ids=str)
def test_vectors(types, rng):
    for shape, new, at in ALIGNED_SHAPES:
        cache, rows = sample(rng, shape, types[0]), sample(rng, new, types[1])
        positions = spots(rng, at, shape[-2])
        with computed_by("overwrite", "chunks", "overwrite"):
            result = on_metal(cache).overwrite(on_metal(rows), on_metal(positions))
            close(result, oracle(cache, rows, positions), types[0])


def test_the_cache_is_written_where_it_is(rng):
    whole = new_cache((2, 3, 8, 4), dt.float32, "metal")
    write(whole, lbrx.full(whole.shape, 7.0, device="metal"))
    rows = sample(rng, (5, 3, 4), dt.float32)
    moved = on_metal(rows).permute(1, 0, 2)
    result = whole[1].overwrite(moved, on_metal(np.array([2, 0, 3, 9, 1], np.int64)))
    assert result.storage.address == whole[1].storage.address + 3 * 8 * 4 * 4
    expected = np.full((2, 3, 8, 4), 7, np.float32)
    expected[1][:, [2, 0, 3, 1]] = rows.transpose(1, 0, 2)[:, [0, 1, 2, 4]]
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_a_cache_with_gaps_is_copied(rng):
    cache, rows = sample(rng, (8, 6), dt.float32), sample(rng, (2, 6), dt.float32)
    given = on_metal(cache)
    result = given[::2].overwrite(rows, [3, 0])
    close(result, oracle(cache[::2], rows, np.array([3, 0])), dt.float32)
    np.testing.assert_array_equal(given.numpy(), cache)


def test_nothing_to_put_leaves_the_cache(rng):
    cache = sample(rng, (2, 4, 8), dt.float16)
    result = on_metal(cache).overwrite(lbrx.zeros((2, 0, 8)), np.zeros(0, np.int32))
    np.testing.assert_array_equal(result.numpy(), cache)


def test_a_compiled_step_fills_the_cache_it_closes_over(rng):
    cache = new_cache((2, 8, 4), dt.float32, "metal")
    write(cache, lbrx.zeros(cache.shape, device="metal"))

    @lbrx.compile
    def step(rows, position):
        filled = cache.overwrite(rows * 2, position)
        return filled.sum(axis=-2), position + 1

    position = on_metal(np.array([0], np.int32))
    rows = sample(rng, (5, 2, 1, 4), dt.float32)
    for i in range(5):
        total, position = step(on_metal(rows[i]), position)
        close(total, 2 * wide(rows[: i + 1, :, 0]).sum(0), dt.float32, scale=4)


@pytest.mark.parametrize("variant", ["row", "element", "chunks"])
def test_under_checks(variant, rng):
    cache, rows = sample(rng, (2, 5, 8), dt.float16), sample(rng, (2, 3, 8), dt.float32)
    positions = np.array([4, 5, -1], np.int32)
    with softmetal.checking("bounds", "race"), forced(overwrite=variant):
        result = on_metal(cache).overwrite(rows, on_metal(positions))
        lbrx.eval(result)
    close(result, oracle(cache, rows, positions), dt.float16)


def test_a_step_over_a_cache_has_no_races(rng):
    """Kernels write and read one cache of a heap, in commands that Metal may run concurrently."""
    cache = new_cache((2, 8, 4), dt.float32, "metal")
    with softmetal.checking("bounds", "race"):
        write(cache, lbrx.zeros(cache.shape, device="metal"))
        step = lbrx.compile(lambda rows, at: cache.overwrite(rows * 2, at).sum(axis=-2))
        rows = sample(rng, (3, 2, 1, 4), dt.float32)
        for i in range(3):
            total = step(on_metal(rows[i]), on_metal(np.array([i], np.int32)))
            lbrx.eval(total)
    close(total, 2 * wide(rows[:, :, 0]).sum(0), dt.float32, scale=4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 8), (2, 3, 8), (3,)), r"axes \(\.\.\., length, depth\)"),
        (((2, 4, 8), (2, 3, 7), (3,)), "may differ from the cache"),
        (((3, 4, 8), (2, 3, 8), (3,)), "may differ from the cache"),
        (((2, 4, 8), (2, 3, 8), (5, 2, 3)), "larger than"),
    ],
)
def test_refuses_shapes(shapes, message):
    cache, rows, positions = (lbrx.zeros(shape, device="cpu") for shape in shapes)
    with pytest.raises(lbrx.ShapeError, match=message):
        cache.overwrite(rows, positions.astype("int32"))


def test_refuses_types():
    cache, rows = lbrx.zeros((4, 8), device="cpu"), lbrx.zeros((1, 8), device="cpu")
    with pytest.raises(lbrx.DtypeError, match="does not hold floating-point rows"):
        cache.astype("int32").overwrite(rows, [0])
    with pytest.raises(lbrx.DtypeError, match="positions are float32"):
        cache.overwrite(rows, [0.5])
