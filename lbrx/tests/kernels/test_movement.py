"""Copies, concat and pad: every way to copy, bit for bit against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from row_cases import computed_by, rotated

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.movement import movement

WIDTHS = (dt.float32, dt.uint8, dt.bfloat16, dt.int64)
VARIANTS = ("strided", "transpose_serial", "transpose_tile")
ALIGNED = (dt.float32, dt.uint8, dt.float16, dt.int64)
VIEWS = {
    "transposed": lambda a: a.transpose(2, 1, 0),
    "last two swapped": lambda a: a.transpose(0, 2, 1),
    "rotated": lambda a: a.transpose(1, 2, 0),
    "odd offset": lambda a: a[1:, 2:, 3:].transpose(0, 2, 1),
    "steps": lambda a: a[::2, ::-1, ::3],
    "steps, transposed": lambda a: a[:, ::-2, ::2].transpose(2, 0, 1),
    "backwards": lambda a: a[::-1, ::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "repeated rows": lambda a: np.broadcast_to(a[0, 0], (3, 5, a.shape[2])),
    "one row": lambda a: a[1, 2],
    "empty": lambda a: a[:, 3:3],
}
TRANSPOSES = {"transposed", "last two swapped", "rotated", "odd offset"}


def values(rng, shape, dtype):
    """Any bits, so that those of NaN are among them."""
    words = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return words.view(dtype.numpy)[..., 0]


def same_bits(result, expected):
    assert result.shape == expected.shape
    assert result.numpy().tobytes() == np.ascontiguousarray(expected).tobytes()


def view_of(tensor, whole, view):
    """What `view` is of `whole`, of the tensor."""
    size = whole.itemsize
    strides = tuple(s // size for s in view.strides)
    offset = (view.ctypes.data - whole.ctypes.data) // size if view.size else 0
    return tensor.view(lbrx.arrays.shape.Layout(view.shape, strides, offset))


@pytest.mark.parametrize(
    ("variant", "dtype"),
    rotated(*((v,) for v in VARIANTS), of=WIDTHS) + rotated(("transpose_serial",), of=WIDTHS[1:]),
)
def test_views(variant, dtype, rng):
    whole = values(rng, (21, 50, 67), dtype)
    tensor = lbrx.tensor(whole, device="metal")
    for name, take in VIEWS.items():
        view = take(whole)
        if variant != "strided" and name not in TRANSPOSES:
            continue
        given = view_of(tensor, whole, view)
        if given.is_contiguous:
            same_bits(given.contiguous(), view)
            continue
        with computed_by("copy", variant, "copy"):
            same_bits(given.contiguous(), view)


# Views of (16, 32, 96) elements whose rows are multiples of 16 bytes, or not; the variant that reads
# them as vectors.
ALIGNED_VIEWS = {
    "rows swapped": (lambda a: a.transpose(1, 0, 2), "chunks"),
    "columns": (lambda a: a[:, 16:, 32:64], "chunks"),
    "rows backwards": (lambda a: a[::-1, ::-3, :32].transpose(1, 0, 2), "chunks"),
    "transposed": (lambda a: a.transpose(2, 1, 0), "transpose_chunks"),
    "last two swapped": (lambda a: a.transpose(0, 2, 1)[:3, 16:], "transpose_chunks"),
    "rotated": (lambda a: a.transpose(2, 0, 1)[16:], "transpose_chunks"),
    "odd columns": (lambda a: a[:, :, 1:], None),
    "odd columns, transposed": (lambda a: a[:, :, 1:].transpose(0, 2, 1), None),
}


@pytest.mark.parametrize("dtype", ALIGNED, ids=str)
def test_vectors(dtype, rng):
    whole = values(rng, (16, 32, 96), dtype)
    tensor = lbrx.tensor(whole, device="metal")
    for take, variant in ALIGNED_VIEWS.values():
        view = take(whole)
        given = view_of(tensor, whole, view)
        if variant is not None:
            with computed_by("copy", variant, "copy"):
                same_bits(given.contiguous(), view)
            continue
        counts = metal.stats()["kernels"]
        before = [counts.get(f"copy:{v}", 0) for v in ("chunks", "transpose_chunks")]
        with forced(copy="chunks"):
            same_bits(given.contiguous(), view)
        with forced(copy="transpose_chunks"):
            same_bits(given.contiguous(), view)
        counts = metal.stats()["kernels"]
        after = [counts.get(f"copy:{v}", 0) for v in ("chunks", "transpose_chunks")]
        assert after == before


@pytest.mark.parametrize("variant", ["chunks", "transpose_chunks"])
def test_vectors_without_faults(variant, rng):
    whole = values(rng, (3, 40, 72), dt.uint16)
    tensor = lbrx.tensor(whole, device="metal")
    order = (1, 0, 2) if variant == "chunks" else (0, 2, 1)
    with softmetal.checking("bounds", "race"), computed_by("copy", variant, "copy"):
        same_bits(tensor.permute(*order).contiguous(), whole.transpose(order))


@pytest.mark.parametrize(
    ("shape", "dtype", "variant"),
    [
        ((128, 128), dt.float32, "transpose_serial"),
        ((127, 128), dt.float32, "strided"),  # below 64 KiB
        ((15, 2000), dt.float32, "strided"),  # a short side
        ((16, 2000), dt.float32, "transpose_serial"),
        ((256, 256), dt.uint8, "transpose_serial"),
    ],
)
def test_large_transposes_are_chosen(shape, dtype, variant, rng):
    array = values(rng, shape, dtype)
    before = metal.stats()["kernels"].get(f"copy:{variant}", 0)
    result = lbrx.tensor(array, device="metal").T.contiguous()
    same_bits(result, array.T)
    assert metal.stats()["kernels"][f"copy:{variant}"] == before + 1


def test_many_axes(rng):
    """More than the grid and the record of strides hold."""
    array = values(rng, (2,) * 13, dt.uint16)
    tensor = lbrx.tensor(array, device="metal")
    same_bits(tensor.permute(*range(12, -1, -1)).contiguous(), array.T)


def test_long_problems_are_cut(monkeypatch):
    """Every element is in one piece, whatever the limits."""
    monkeypatch.setattr(movement, "PART", 5)
    for shape in ((13,), (2, 11), (12, 3), (7, 2, 3), (2, 3, 4, 3)):
        strides = lbrx.arrays.shape.contiguous_strides(shape)
        problem = movement.CopyProblem(4, shape, strides, tuple(3 * s for s in strides))
        found = []
        for piece, (read, written) in movement._pieces(problem, (100, 1000)):
            assert max(piece.shape[-2:]) <= 5
            assert math.prod(piece.shape[:-2]) <= 5
            for at in np.ndindex(*piece.shape):
                element = read + np.dot(at, piece.source)
                assert written + np.dot(at, piece.target) == 1000 + 3 * (element - 100)
                found.append(element)
        assert sorted(found) == list(range(100, 100 + math.prod(shape)))


@pytest.mark.parametrize("dtype", rotated((), of=(dt.float16, dt.bool_, dt.int64)))
def test_concat(dtype, rng):
    a, b = (rng.integers(0, 2, shape).astype(dtype.numpy) for shape in ((3, 4, 5), (3, 4, 1)))
    x, y = (lbrx.tensor(v, device="metal") for v in (a, b))
    same_bits(lbrx.concat([x, y, x], axis=-1), np.concatenate([a, b, a], -1))
    same_bits(lbrx.concat([x, x[:1], x[:0]]), np.concatenate([a, a[:1]]))
    turned = lbrx.concat([x.T, x.T[::-1]], axis=1)
    same_bits(turned, np.concatenate([a.T, a.T[::-1]], 1))
    same_bits(lbrx.concat([y[:0]], axis=1), b[:0])


def test_concat_of_several_types(rng):
    a, b = np.int8([1, -2]), np.float16([0.5])
    result = lbrx.concat([lbrx.tensor(v, device="metal") for v in (a, b)])
    same_bits(result, np.float16([1, -2, 0.5]))


@pytest.mark.parametrize("value", [0, 3, -1.5, math.nan, math.inf])
def test_pad(value, rng):
    array = rng.random((3, 1, 5), np.float32)
    tensor = lbrx.tensor(array, device="metal")
    for widths in ([(0, 0)] * 3, [(1, 2), (0, 3), (4, 0)], [(0, 0), (2, 0), (0, 1)]):
        same_bits(
            tensor.pad(widths, constant_values=value), np.pad(array, widths, constant_values=value)
        )
    same_bits(tensor[:0].pad([(1, 1), (0, 0), (0, 0)]), np.zeros((2, 1, 5), np.float32))
    same_bits(tensor.T.pad([(1, 0)] * 3), np.pad(array.T, [(1, 0)] * 3))


def test_pad_of_bool_and_of_a_scalar():
    flags = lbrx.tensor([True, False], device="metal")
    assert flags.pad([(1, 1)], constant_values=1).tolist() == [True, True, False, True]
    assert lbrx.tensor(2.5, device="metal").pad(0).item() == 2.5


def test_on_an_apple_chip(on_chip, rng):
    array = values(rng, (130, 140), dt.float32)
    with on_chip("m1"):
        same_bits(lbrx.tensor(array, device="metal").T.contiguous(), array.T)
        assert set(metal.stats()["kernels"]) == {"copy:transpose_tile"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_and_order(variant, rng):
    array = values(rng, (2, 33, 40), dt.float32)
    with softmetal.checking("bounds", "race"), computed_by("copy", variant, "copy"):
        tensor = lbrx.tensor(array, device="metal")
        same_bits(tensor.mT.contiguous(), array.swapaxes(1, 2))
