"""take, gather and scatter against numpy, with indices that are ready and that are not."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import INTEGERS, close, sample, wide
from row_cases import computed_by, rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.indexing import indexing

DTYPES = (dt.float32, dt.uint8, dt.bfloat16, dt.bool_, dt.int64, dt.int16)
INDEX_TYPES = (dt.int64, dt.uint8, dt.int32, *(d for d in INTEGERS if d.itemsize in (2, 8)))
SHAPES = [((40,), 0), ((9, 5), 0), ((9, 5), -1), ((3, 7, 4), 1), ((2, 6, 1), 1)]


def on_metal(array):
    return lbrx.tensor(array, device="metal")


def indices(rng, size, shape, dtype):
    low = -size if dtype.kind is dt.Kind.INT else 0
    return rng.integers(low, size, shape).astype(dtype.numpy)


def along(rng, shape, axis, count, dtype):
    """Indices for gather and scatter: `count` of them along the axis."""
    sizes = list(shape)
    sizes[axis] = count
    return indices(rng, shape[axis], sizes, dtype)


def in_order(indices, size):
    return np.where(indices.astype(np.int64) < 0, indices.astype(np.int64) + size, indices).astype(
        int
    )


@pytest.mark.parametrize(
    ("variant", "dtype"),
    rotated(("element",), ("row",), of=DTYPES),
)
def test_take(variant, dtype, rng):
    for shape, axis in SHAPES:
        array = sample(rng, shape, dtype)
        chosen = indices(rng, shape[axis], (3, 2), dt.int64)
        with computed_by("take", variant, "take"):
            result = on_metal(array).take(on_metal(chosen), axis=axis).numpy()
        np.testing.assert_array_equal(result, np.take(array, chosen, axis))


@on_processors
def test_embedding_chooses_rows(rng):
    table = sample(rng, (100, 576), dt.float16)
    before = metal.stats()["kernels"].get("take:row", 0)
    result = on_metal(table).take([3, 99, -1, 3], axis=0)
    np.testing.assert_array_equal(result.numpy(), table[[3, 99, -1, 3]])
    assert metal.stats()["kernels"]["take:row"] == before + 1


def test_rows_that_begin_within_a_word(rng):
    """Moved by the widest integers that fit: 8 bytes where they can be, else 4 and 2."""
    table = sample(rng, (50, 12), dt.float16)
    for columns, start in ((12, 0), (12, 4), (6, 2), (7, 1), (2, 3)):
        flat = table.reshape(-1)[start : start + 30 * columns]
        tensor = on_metal(table).reshape(-1)[start : start + 30 * columns].reshape(30, columns)
        result = tensor.take([4, 0, -1], axis=0).numpy()
        np.testing.assert_array_equal(result, flat.reshape(30, columns)[[4, 0, -1]])


@pytest.mark.parametrize("dtype", rotated((), of=DTYPES))
def test_gather(dtype, rng):
    for shape, axis in SHAPES:
        array, chosen = sample(rng, shape, dtype), along(rng, shape, axis, 5, dt.int32)
        result = on_metal(array).gather(on_metal(chosen), axis=axis).numpy()
        places = in_order(chosen, shape[axis])
        np.testing.assert_array_equal(result, np.take_along_axis(array, places, axis))


@pytest.mark.parametrize("dtype", rotated((), (), of=INDEX_TYPES))
def test_types_of_indices(dtype, rng):
    array = sample(rng, (5, 70), dt.float32)
    chosen = along(rng, array.shape, 1, 9, dtype)
    places = in_order(chosen, 70)
    tensor, given = on_metal(array), on_metal(chosen)
    picked = np.take_along_axis(array, places, 1)
    np.testing.assert_array_equal(tensor.gather(given, axis=1).numpy(), picked)
    np.testing.assert_array_equal(tensor.take(given[0], axis=1).numpy(), array[:, places[0]])


# ---- scatter ----


def scattered(array, places, updates, axis, reduce):
    """One element after the other, in float64 or int64; of equals the last is set."""
    result = wide(array).copy()
    for at in np.ndindex(*places.shape):
        target = list(at)
        target[axis] = places[at]
        new = wide(updates)[at]
        result[tuple(target)] = result[tuple(target)] + new if reduce == "add" else new
    return result


@pytest.mark.parametrize("reduce", ["set", "add"])
@pytest.mark.parametrize("dtype", rotated((), of=DTYPES[:1] + DTYPES[2:]))
def test_scatter(reduce, dtype, rng):
    for shape, axis in SHAPES:
        array, chosen = sample(rng, shape, dtype, 0, 2), along(rng, shape, axis, 5, dt.int64)
        updates = sample(rng, chosen.shape, dtype, 0, 2)
        result = on_metal(array).scatter(on_metal(chosen), updates, axis=axis, reduce=reduce)
        expected = scattered(array, in_order(chosen, shape[axis]), updates, axis, reduce)
        close(result, np.minimum(expected, 1) if dtype is dt.bool_ else expected, dtype)


def test_integers_wrap_and_halves_are_rounded_once():
    bytes_ = lbrx.zeros(1, "uint8", device="metal")
    total = bytes_.scatter([0] * 3, on_metal(np.uint8([100, 100, 100])), reduce="add")
    assert total.tolist() == [44]
    # Each addition to 1 alone would be lost in bfloat16.
    small = lbrx.full(256, 2.0**-8, dtype="bfloat16", device="metal")
    one = lbrx.ones(1, "bfloat16", device="metal")
    assert one.scatter([0] * 256, small, reduce="add").tolist() == [2.0]


def test_the_same_sum_twice(rng):
    array = sample(rng, (1000,), dt.float32)
    chosen, updates = rng.integers(0, 50, 20_000), sample(rng, (20_000,), dt.float32)
    tensor, places, new = on_metal(array), on_metal(chosen), on_metal(updates)
    first = tensor.scatter(places, new, reduce="add").numpy().tobytes()
    order = [tensor.scatter(places, new, reduce="add").numpy().tobytes() for _ in range(3)]
    assert order == [first] * 3


def test_shares_of_a_column(rng, on_chip):
    """A GPU has threads for more than the one column."""
    array, chosen = sample(rng, (100,), dt.float32), rng.integers(-100, 100, 400)
    updates = sample(rng, (400,), dt.float32)
    expected = scattered(array, in_order(chosen, 100), updates, 0, "add")
    with on_chip("m2"):
        problem = indexing.PickProblem(dt.float32, dt.int64, 1, 100, 1, 400)
        assert indexing._shares(metal.context().info, problem, 1) == 100
        close(on_metal(array).scatter(chosen, updates, reduce="add"), expected, dt.float32)
        taken = on_metal(array).take([5, -1])
        np.testing.assert_array_equal(taken.numpy(), array[[5, -1]])
        assert "take:element" in metal.stats()["kernels"]


# ---- views, nothing, wrong indices ----


def test_views_and_nothing(rng):
    array = sample(rng, (8, 6), dt.float32)
    tensor, chosen = on_metal(array), rng.integers(-3, 3, (4, 3))
    given = on_metal(chosen)
    turned = tensor.T[::-1, 1::2]
    expected = array.T[::-1, 1::2]
    np.testing.assert_array_equal(turned.take(given.T, axis=1).numpy(), expected[:, chosen.T])
    places = on_metal(np.zeros((3, 6), np.int64)).T[:, ::-1]
    np.testing.assert_array_equal(
        turned.gather(places[:, :2], axis=1).numpy(), np.repeat(expected[:, :1], 2, 1)
    )
    assert tensor.take(np.empty((0, 2), np.int64), axis=1).shape == (8, 0, 2)
    assert tensor[:, :0].take([1], axis=0).shape == (1, 0)
    assert tensor[:0].gather(np.empty((0, 2), np.int64), axis=1).shape == (0, 2)
    nothing = tensor.scatter(np.empty((8, 0), np.int64), np.empty((8, 0), np.float32))
    np.testing.assert_array_equal(nothing.numpy(), array)


OPERATIONS = {
    "take": lambda x, i: x.take(i, axis=0),
    "gather": lambda x, i: x.gather(i, axis=0),
    "scatter": lambda x, i: x.scatter(i, np.float32([1, 2]), axis=0),
}
WRONG = [(3, [1, 3]), (3, [-4, 0]), (3, [0, 2**40]), (0, [0, 0])]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("size", "wrong"), WRONG, ids=str)
def test_a_wrong_index(name, size, wrong):
    """The kernel touches nothing at a wrong index, and reports it."""
    tensor = lbrx.zeros((3,), device="metal")[:size]
    index = next(i for i in wrong if not -size <= i < size)
    text = f"^kernel {name}: index {index} is beyond an axis of {size} elements"
    pending = on_metal(np.array(wrong)).maximum(np.int64(-(2**50)))
    for indices in (on_metal(np.array(wrong)), pending):
        with pytest.raises(IndexError, match=text):
            OPERATIONS[name](tensor, indices).numpy()
    assert OPERATIONS["take"](lbrx.ones(3, device="metal"), pending * 0).tolist() == [1, 1]


def test_unsigned_indices_are_not_counted_from_the_end():
    tensor, last = lbrx.ones(3, device="metal"), np.array([2**64 - 1], np.uint64)
    for given in (on_metal(last), on_metal(last) + np.uint64(0)):
        with pytest.raises(IndexError, match="index 18446744073709551615 is beyond"):
            tensor.take(given, axis=0).numpy()


def test_replayed_indices_are_checked_each_time():
    table = on_metal(np.arange(6, dtype=np.float32))
    pick = lbrx.compile(lambda indices: table.take(indices, axis=0) + 1)
    assert pick(on_metal(np.array([0, 5]))).tolist() == [1, 6]
    for _ in range(2):
        with pytest.raises(IndexError, match="index 6 is beyond an axis of 6"):
            pick(on_metal(np.array([1, 6]))).numpy()
        assert pick(on_metal(np.array([-1, 2]))).tolist() == [6, 3]


def test_memory_and_order(rng):
    array, chosen = sample(rng, (5, 6), dt.float32), rng.integers(-5, 5, (4, 6))
    with softmetal.checking("bounds", "race"):
        for variant in ("element", "row"):
            with forced(take=variant):
                result = on_metal(array).take(chosen[0], axis=0).numpy()
            np.testing.assert_array_equal(result, array[chosen[0]])
        tensor = on_metal(array)
        picked = np.take_along_axis(array, in_order(chosen, 5), 0)
        np.testing.assert_array_equal(tensor.gather(chosen, axis=0).numpy(), picked)
        total = tensor.scatter(chosen, array[:4], axis=0, reduce="add")
        close(total, scattered(array, in_order(chosen, 5), array[:4], 0, "add"), dt.float32)
        pending = on_metal(np.array([7, 8, 1])) + 0
        with pytest.raises(IndexError, match="is beyond an axis of 5"):
            tensor.take(pending, axis=0).numpy()


@pytest.mark.parametrize("variant", ["element", "row"])
def test_indices_beyond_may_give_zeros(variant, rng):
    table = sample(rng, (3, 5, 4), dt.float32)
    chosen = np.array([[4, 5], [-5, -6]])
    expected = np.take(table, np.clip(chosen, -5, 4), axis=1)
    expected[:, 0, 1] = expected[:, 1, 1] = 0
    with forced(take=variant):
        result = on_metal(table).take(on_metal(chosen), axis=1, beyond="zeros")
        np.testing.assert_array_equal(result.numpy(), expected)
    reference = lbrx.tensor(table, device="cpu").take(chosen, axis=1, beyond="zeros")
    np.testing.assert_array_equal(reference.numpy(), expected)
    with pytest.raises(ValueError, match="is not known: give 'raise' or 'zeros'"):
        on_metal(table).take(on_metal(chosen), beyond="wrap")
