"""Tensors like others, evenly spaced, triangular and diagonal, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from function_cases import Case, check
from op_oracle import close, has
from safetensors.numpy import save_file

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

CASES = {
    "zeros_like": Case(fn.zeros_like, np.zeros_like),
    "ones_like": Case(fn.ones_like, np.ones_like),
    "full_like": Case(lambda x: fn.full_like(x, 1), lambda x: np.full_like(x, 1)),
    "tril": Case(fn.tril, np.tril),
    "tril above": Case(lambda x: fn.tril(x, k=2), lambda x: np.tril(x, 2), ((2, 3, 5),)),
    "triu": Case(fn.triu, np.triu),
    "triu below": Case(lambda x: fn.triu(x, k=-1), lambda x: np.triu(x, -1), ((2, 5, 3),)),
    "diag": Case(fn.diag, np.diag, ((5,),)),
    "diag above": Case(lambda x: fn.diag(x, k=2), lambda x: np.diag(x, 2), ((3,),)),
    "diag below": Case(lambda x: fn.diag(x, k=-1), lambda x: np.diag(x, -1), ((3,),)),
    "diag of nothing": Case(fn.diag, np.diag, ((0,),)),
    "diag of a matrix": Case(lambda x: fn.diag(x, k=1), lambda x: np.diag(x, 1)),
    "meshgrid": Case(fn.meshgrid, np.meshgrid, ((3,), (4,), (2,))),
    "meshgrid ij": Case(
        lambda *x: fn.meshgrid(*x, indexing="ij"),
        lambda *x: np.meshgrid(*x, indexing="ij"),
        ((3,), (4,)),
    ),
    "meshgrid of one": Case(fn.meshgrid, np.meshgrid, ((3,),)),
}


@pytest.mark.parametrize("name", CASES)
def test_like_numpy(name, place, rng):
    check(CASES[name], name, place, rng)


@pytest.mark.parametrize(
    "rule", [(0, 1, 5), (1, -3, 7), (2, 2, 3), (0, 1, 1), (0, 1, 0), (-0.1, 1e5, 50)], ids=str
)
def test_linspace(rule, place):
    for endpoint in (True, False):
        expected = np.linspace(*rule, endpoint=endpoint)
        close(fn.linspace(*rule, device=place, endpoint=endpoint), expected, dt.float32)
    integers = fn.linspace(*rule, dtype="int32", device=place)
    np.testing.assert_array_equal(integers.numpy(), np.linspace(*rule).astype(np.int32))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)], ids=str)
def test_one_hot(shape, place, rng):
    for dtype in (dt.uint8, dt.int8, dt.int64):
        labels = rng.integers(0, 5, shape).astype(dtype.numpy)
        made = fn.one_hot(lbrx.tensor(labels, device=place), 5)
        close(made, np.eye(5)[labels], dt.float32)
        assert made.device == place
    assert fn.one_hot([-1, 1, 3], 3, dtype="bool").tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert fn.one_hot([1], 0).shape == (1, 0)
    # Labels that the type of the classes cannot hold are not one of them.
    assert fn.one_hot(lbrx.tensor([2**32 + 1], device=place), 3).tolist() == [[0, 0, 0]]
    with pytest.raises(lbrx.DtypeError, match="one_hot of float32: cast it to an integer dtype"):
        fn.one_hot([0.0], 3)
    with pytest.raises(lbrx.ShapeError, match="num_classes=-1: give 0 or more"):
        fn.one_hot([0], -1)


def test_dtype_and_device_may_be_others(place):
    x = lbrx.ones((2, 3), "int16", "cpu")
    made = fn.full_like(x, 2.5, dtype="float16", device=place)
    assert (made.device, made.dtype, made.tolist()) == (place, dt.float16, [[2.5] * 3] * 2)
    assert fn.empty((2, 0), dtype="uint8", device=place).shape == (2, 0)
    for dtype in (d for d in dt.ALL if has(place, d)):
        like = fn.empty_like(lbrx.zeros((3,), dtype, place))
        assert (like.shape, like.dtype, like.device) == ((3,), dtype, place)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: fn.tril(lbrx.ones(3)),
            lbrx.ShapeError,
            r"tril of shape \(3,\): it needs two axes",
        ),
        (
            lambda: fn.triu(lbrx.ones(3)),
            lbrx.ShapeError,
            r"triu of shape \(3,\): it needs two axes",
        ),
        (lambda: fn.diag(lbrx.tensor(1.0)), lbrx.ShapeError, "give a vector or a matrix"),
        (lambda: fn.meshgrid([1], indexing="yx"), ValueError, "'yx' is not .*: give 'xy' or 'ij'"),
        (
            lambda: fn.meshgrid(lbrx.ones((2, 2))),
            lbrx.ShapeError,
            r"of shape \(2, 2\): give vectors",
        ),
        (lambda: fn.linspace(0, 1, -1), lbrx.ShapeError, "num=-1 elements: give 0 or more"),
        (lambda: fn.linspace(0, 1, 2.5), TypeError, "as an integer"),
        (lambda: fn.full_like(lbrx.ones(2, "int8"), 300), lbrx.DtypeError, "300 does not fit int8"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def _aligned(values, place, _):
    memory = lbrx.empty_aligned(values.shape, np.bool_)
    memory.view(np.uint8)[:] = values
    return lbrx.from_numpy(memory, place)


def _from_file(values, place, path):
    save_file({"x": values.view(np.bool_)}, path / "x.safetensors")
    return lbrx.load(path / "x.safetensors")["x"].to_device(place)


@pytest.mark.parametrize(
    "made",
    [lambda x, place, _: lbrx.tensor(x.view(np.bool_), device=place), _aligned, _from_file],
    ids=["tensor", "aligned", "file"],
)
@pytest.mark.parametrize("size", [9, 1 << 17])
def test_bools_of_other_bytes(made, size, place, tmp_path, rng):
    """numpy takes every byte but 0 for True, and files can have any."""
    values = rng.choice(np.uint8([0, 1, 2, 128, 255]), size)
    x, expected = made(values, place, tmp_path), values != 0
    assert x.sum().item() == expected.sum()
    np.testing.assert_array_equal((~x).numpy(), ~expected)
    np.testing.assert_array_equal((x == True).numpy(), expected)  # noqa: E712
    np.testing.assert_array_equal(x.astype("int32").numpy(), expected)
