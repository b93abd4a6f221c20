"""Tensors are values: neither numpy nor an operation changes one that exists."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import DISCRETE, shares_memory

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.ops.overwrite import CACHE_SCHEME
from lbrx.quant import quantize
from lbrx.tensors.core import call
from lbrx.tensors.long_lived import keep, new_cache, write

pytestmark = pytest.mark.parametrize("device", ["cpu", "metal"])

VIEWS = {
    "whole": lambda t: t,
    "strided": lambda t: t[::2, 1:],
    "transposed": lambda t: t.T,
    "broadcast": lambda t: t[:1].expand(5, 6),
    "empty": lambda t: t[:0],
}


def made(device, dtype=dt.float32):
    return lbrx.tensor(np.arange(24).reshape(4, 6), dtype=dtype, device=device)


def test_equal_expressions_are_apart(device):
    x = made(device)
    a, b = x + 1, x + 1
    with pytest.raises(ValueError, match="read-only"):
        a.numpy()[0] = 99
    y = x * 2
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 100
    assert (b.tolist(), y.tolist()) == ((x.numpy() + 1).tolist(), (x.numpy() * 2).tolist())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.bool_, dt.int8], ids=str)
def test_numpy_is_read_only(device, view, dtype):
    t = VIEWS[view](made(device, dtype))
    for array in (t.numpy(), np.asarray(t), np.asanyarray(t), t.array.numpy()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("view", VIEWS)
def test_a_copy_can_be_written(device, view):
    t = VIEWS[view](made(device))
    before = t.tolist()
    for array in (
        t.numpy(copy=True),
        np.array(t),
        np.asarray(t, copy=True),
        np.asarray(t, np.float64),
        t.__array__(copy=True),
    ):
        assert array.tolist() == before
        array[...] = -1
    assert t.tolist() == before


def test_numpy_functions_do_not_write(device):
    t = made(device)
    for change in (
        lambda: np.copyto(t, 0),
        lambda: np.put(t, [0], 9),
        lambda: np.place(t, t > 3, 0),
    ):
        with pytest.raises((ValueError, TypeError)):
            change()
    assert t.tolist() == made(device).tolist()


@shares_memory
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.uint8], ids=str)
def test_dlpack_says_that_memory_is_read_only(device, dtype):
    """numpy reads the flag of the versioned protocol; the older protocol cannot say it."""
    t = made(device, dtype)
    plain = t if dtype is not dt.bfloat16 else Relabelled(t)
    versioned = np.from_dlpack(plain)
    assert np.shares_memory(versioned, t.numpy().view(versioned.dtype))
    assert not versioned.flags.writeable
    assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" not in repr(t.__dlpack__())
    copied = np.from_dlpack(plain, copy=True)
    copied[...] = 0
    assert t.tolist() == made(device, dtype).tolist()


class Relabelled:
    """A bfloat16 tensor as numpy can read it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        from lbrx.tensors.dlpack import _BFLOAT, _UINT, _relabel

        capsule = self.tensor.__dlpack__(**kwargs)
        assert _relabel(capsule, _BFLOAT, _UINT)
        return capsule

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@shares_memory
def test_shared_memory_stays_its_owners(device):
    page = lbrx.empty_aligned((4, 6))
    page[:] = 1
    t = lbrx.from_numpy(page, device=device, copy=False)
    page[2] = 5
    assert t.tolist() == page.tolist()
    with pytest.raises(ValueError, match="read-only"):
        t.numpy()[0] = 7


# ---- overwrite ----


def floats(device, rng):
    cache = rng.standard_normal((2, 5, 32)).astype(np.float16)
    return "overwrite", lbrx.tensor(cache, device=device), lambda rows: rows.astype(np.float16)


def blocks(device, rng):
    values = rng.standard_normal((2, 5, 32)).astype(np.float32)
    cache = quantize(values, CACHE_SCHEME)[0].reshape(2, 5, 34)

    def stored(rows):
        return quantize(rows, CACHE_SCHEME)[0].reshape(*rows.shape[:-1], 34)

    return "overwrite_blocks", lbrx.tensor(cache, device=device), stored


@pytest.mark.parametrize("kind", [floats, blocks])
@pytest.mark.parametrize(
    "source",
    ["tensor", "pending", pytest.param("shared", marks=shares_memory), "cache with gaps", "kept"],
)
def test_overwrite_leaves_its_operand(device, kind, source, rng):
    name, given, stored = kind(device, rng)
    if source == "pending":
        given = lbrx.concat([given[:, :1], given[:, 1:]], axis=1)
    elif source == "shared":
        page = lbrx.empty_aligned(given.shape, given.dtype)
        page[...] = given.numpy()
        given = lbrx.from_numpy(page, device=device, copy=False)
    elif source == "cache with gaps":
        whole = new_cache((2, 10, given.shape[-1]), given.dtype, device)
        write(whole[:, ::2], given)
        given = whole[:, ::2]
    elif source == "kept":
        given = keep(given.to_device("cpu"), device)
    before = given.numpy(copy=True)
    rows = rng.standard_normal((2, 2, 32)).astype(np.float32)
    result = call(name, given, rows, [3, 0])
    lbrx.eval(result)
    expected = before.copy()
    expected[:, [3, 0]] = stored(rows)
    np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(given.numpy(), before)


@pytest.mark.parametrize("kind", [floats, blocks])
def test_overwrite_writes_a_cache_in_place(device, kind, rng):
    name, given, stored = kind(device, rng)
    store = new_cache((3, *given.shape), given.dtype, device)
    for layer in range(3):
        write(store[layer], given)
    rows = rng.standard_normal((2, 2, 2, 32)).astype(np.float32)
    once = call(name, store[1], rows[0], [3, 0])
    twice = call(name, once, rows[1], [4, 3])
    lbrx.eval(twice)
    expected = given.numpy(copy=True)
    expected[:, [3, 0]] = stored(rows[0])
    expected[:, [4, 3]] = stored(rows[1])
    np.testing.assert_array_equal(twice.numpy(), expected)
    np.testing.assert_array_equal(store[1].numpy(), expected)
    for other in (0, 2):
        np.testing.assert_array_equal(store[other].numpy(), given.numpy())
    assert DISCRETE or np.shares_memory(twice.numpy(), store.numpy())
    with pytest.raises(ValueError, match="read-only"):
        store.numpy()[0] = 0


@pytest.mark.parametrize("dtype", [dt.float16, dt.uint8, dt.float32], ids=str)
def test_caches_take_the_values_of_others(device, dtype, rng):
    """The bits: also those that are not a number."""
    bits = rng.integers(0, 256, (2, 3, 7, 8 * dtype.itemsize), np.uint8)
    values = bits.view(dtype.numpy)
    old, new = (new_cache((2, 3, size, 8), dtype, device) for size in (7, 11))
    write(old, lbrx.tensor(values, device="cpu"))
    write(new[..., :5, :], old[..., :5, :])
    kept = np.ascontiguousarray(new.numpy()[..., :5, :]).view(np.uint8)
    np.testing.assert_array_equal(kept, np.ascontiguousarray(values[..., :5, :]).view(np.uint8))


def test_only_caches_are_written(device):
    cache = new_cache((2, 3), dt.float32, device)
    good = lbrx.ones((2, 3), device=device)
    write(cache, good)
    for call_, error, message in (
        (lambda: write(good, good), TypeError, "is a value, which cannot be written"),
        (lambda: write(cache * 1, good), TypeError, "is a value, which cannot be written"),
        (lambda: write(cache, good[0]), lbrx.ShapeError, r"\(3,\) do not fit \(2, 3\)"),
        (lambda: write(cache, good.astype("float16")), lbrx.DtypeError, "float16 do not fit"),
    ):
        with pytest.raises(error, match=message):
            call_()
    assert cache.tolist() == good.tolist() == [[1.0] * 3] * 2


def test_kept_tensors_keep_their_values(device, rng):
    """From the host and back, also what is strided, small or quantized."""
    values = rng.standard_normal((6, 64)).astype(np.float32)
    plain = lbrx.tensor(values, device="cpu")
    packed = lbrx.quantize(plain, "q8_0")
    for tensor in (
        plain,
        plain[::2, 1:],
        plain[0, :1],
        plain[:0],
        packed,
        plain.with_metadata(name="w"),
    ):
        there = keep(tensor, device)
        back = keep(there, "cpu")
        assert (there.device, back.device) == (device, "cpu")
        assert there.metadata == back.metadata == tensor.metadata
        np.testing.assert_array_equal(there.numpy(), tensor.numpy())
        np.testing.assert_array_equal(back.numpy(), tensor.numpy())
        assert keep(there, device) is there
