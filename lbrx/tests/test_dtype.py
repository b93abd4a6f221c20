"""Element types: what they are, how they are named, and how they combine."""

from __future__ import annotations

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.arrays import dtype as dt

PAIRS = list(itertools.product(dt.ALL, repeat=2))
# Where lbrx.arrays.dtype says that its rules are not numpy's.
DIFFERENT = {
    (a.name, b.name)
    for a, b in PAIRS
    if (a.is_float and b.is_integer)
    or (b.is_float and a.is_integer)
    or {a, b} == {dt.float16, dt.bfloat16}
    or (dt.uint64 in (a, b) and dt.Kind.INT in (a.kind, b.kind))
}


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_promotion_of_every_pair(a, b):
    result = lbrx.promote(a, b)
    assert result is lbrx.promote(b, a)
    if (a.name, b.name) not in DIFFERENT:
        assert result.numpy == np.result_type(a.numpy, b.numpy)
    elif a.is_float and b.is_float:
        assert result is lbrx.float32
    elif a.is_float or b.is_float:
        assert result is (a if a.is_float else b)
    else:
        assert result is lbrx.int64


def test_promotion_does_not_depend_on_order():
    for a, b, c in itertools.product(dt.ALL, repeat=3):
        assert dt.promote(dt.promote(a, b), c) is dt.promote(a, dt.promote(b, c)), (a, b, c)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((lbrx.uint8, 1), lbrx.uint8),
        ((lbrx.uint8, True), lbrx.uint8),
        ((lbrx.float16, 1.5), lbrx.float16),
        ((lbrx.bfloat16, 2), lbrx.bfloat16),
        ((lbrx.int8, 0.5), lbrx.float32),
        ((lbrx.bool_, 1), lbrx.int64),
        ((lbrx.bool_, 1.0), lbrx.float32),
        ((lbrx.float64, 1.0), lbrx.float64),
        ((1, 2.0), lbrx.float32),
        ((True, 3), lbrx.int64),
    ],
)
def test_python_numbers_are_weak(values, expected):
    assert lbrx.result_type(*values) is expected


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_facts(dtype):
    assert dt.parse(dtype.name) is dtype
    assert dt.parse(dtype.numpy) is dtype
    assert dt.parse(dtype.numpy.type) is dtype
    assert dt.parse(dtype) is dtype
    assert dtype.itemsize == dtype.numpy.itemsize
    assert (dtype.msl is None) == (dtype is lbrx.float64)
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert repr(dtype) == f"lbrx.{dtype}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float, lbrx.float32),
        (int, lbrx.int64),
        (bool, lbrx.bool_),
        ("float", lbrx.float32),  # as float is
        ("int", lbrx.int64),
        ("f2", lbrx.float16),
        (">i4", lbrx.int32),
        (ml_dtypes.bfloat16, lbrx.bfloat16),
    ],
)
def test_parse(value, expected):
    assert dt.parse(value) is expected


@pytest.mark.parametrize("value", ["float8", "complex64", np.complex64, "U3", object, 3, None])
def test_parse_refuses(value):
    with pytest.raises(
        lbrx.DtypeError, match="not an element type of lbrx: give one of bool, int8"
    ):
        dt.parse(value)


def test_numbers_that_do_not_fit():
    dt.check_scalar(255, lbrx.uint8)
    dt.check_scalar(1e300, lbrx.float16)
    with pytest.raises(lbrx.DtypeError, match=r"256 does not fit uint8 \(0 to 255\): cast"):
        dt.check_scalar(256, lbrx.uint8)
