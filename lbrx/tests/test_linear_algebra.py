"""Products along named axes and diagonals, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from function_cases import Case, check
from op_oracle import FLOATS, NUMBERS, close, pair, to_wide

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

SMALL = {"low": -2, "high": 2, "scale": 8}
PRODUCT_TYPES = (*FLOATS, dt.int8, dt.int64, dt.uint16)
NAMED = ((2, 0), (1, 3))


def vecdot(x, y, axis=-1):
    x, y = np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1)
    return (x * y).sum(-1)


CASES = {
    "tensordot": Case(fn.tensordot, np.tensordot, ((2, 3, 4), (3, 4, 5)), PRODUCT_TYPES, **SMALL),
    "tensordot named": Case(
        lambda x, y: fn.tensordot(x, y, axes=NAMED),
        lambda x, y: np.tensordot(x, y, NAMED),
        ((2, 3, 4), (5, 4, 1, 2)),
        PRODUCT_TYPES,
        **SMALL,
    ),
    "tensordot of all": Case(
        lambda x, y: fn.tensordot(x, y, axes=0),
        lambda x, y: np.tensordot(x, y, 0),
        ((2, 3), (4,)),
        PRODUCT_TYPES,
        **SMALL,
    ),
    "tensordot of nothing": Case(
        lambda x, y: fn.tensordot(x, y, axes=1),
        lambda x, y: np.tensordot(x, y, 1),
        ((2, 0), (0, 4)),
        PRODUCT_TYPES,
    ),
    "vecdot": Case(fn.vecdot, vecdot, ((5, 1, 7), (3, 7)), PRODUCT_TYPES, **SMALL),
    "vecdot of an axis": Case(
        lambda x, y: fn.vecdot(x, y, axis=-2),
        lambda x, y: vecdot(x, y, -2),
        ((4, 3), (2, 4, 1)),
        PRODUCT_TYPES,
        **SMALL,
    ),
    "outer": Case(fn.outer, np.outer, ((2, 3), (4,)), NUMBERS, low=-3, high=3),
    "inner": Case(fn.inner, np.inner, ((2, 3), (4, 3)), PRODUCT_TYPES, **SMALL),
    "inner of vectors": Case(fn.inner, np.inner, ((3,), (3,)), PRODUCT_TYPES, **SMALL),
    "inner of a scalar": Case(fn.inner, np.inner, ((), (2, 3)), PRODUCT_TYPES, **SMALL),
    "dot": Case(fn.dot, np.dot, ((2, 3, 4), (5, 4, 2)), PRODUCT_TYPES, **SMALL),
    "dot of vectors": Case(fn.dot, np.dot, ((4,), (4,)), PRODUCT_TYPES, **SMALL),
    "dot of a vector": Case(fn.dot, np.dot, ((3, 4), (4,)), PRODUCT_TYPES, **SMALL),
    "diagonal": Case(fn.diagonal, np.diagonal),
    "diagonal above": Case(
        lambda x: fn.diagonal(x, offset=2), lambda x: np.diagonal(x, 2, 1, 2), ((2, 3, 4),)
    ),
    "diagonal below": Case(
        lambda x: fn.diagonal(x, offset=-1), lambda x: np.diagonal(x, -1, 1, 2), ((2, 3, 4),)
    ),
    "diagonal beyond": Case(lambda x: fn.diagonal(x, offset=9), lambda x: np.diagonal(x, 9)),
    "trace": Case(fn.trace, np.trace, result=to_wide, scale=4),
    "traces": Case(
        lambda x: fn.trace(x, offset=1),
        lambda x: np.trace(x, 1, 1, 2),
        ((2, 3, 4),),
        result=to_wide,
        scale=4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_numpy(name, place, rng):
    check(CASES[name], name, place, rng)


def test_types_are_promoted(place, rng):
    a, x = pair(rng, (3, 4), dt.int32, place)
    b, y = pair(rng, (4, 2), dt.float16, place)
    close(fn.tensordot(a, b, axes=1), x @ y, dt.float16, scale=8)
    close(fn.trace(a, dtype="float32"), np.trace(x), dt.float32)


def ones(*shape):
    return lbrx.ones(shape, device="cpu")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fn.tensordot(ones(2, 3), ones(4, 3), axes=1), "these must have equal sizes"),
        (lambda: fn.tensordot(ones(2), ones(2), axes=2), "axes=2 .* give 0 to 1, or a pair"),
        (lambda: fn.tensordot(ones(2), ones(2), axes=((0,), ())), "name as many of both"),
        (lambda: fn.tensordot(ones(2, 2), ones(2, 2), axes=((0, 0), (0, 1))), "each once"),
        (lambda: fn.vecdot(ones(3), ones(4)), "axis -1 must have one size"),
        (lambda: fn.vecdot(ones(3), ones(3), axis=0), "give one from -1 to -1"),
        (lambda: fn.diagonal(ones(3)), "it needs two axes or more"),
        (lambda: fn.trace(ones(3)), "it needs two axes or more"),
    ],
)
def test_errors(call, message):
    with pytest.raises(lbrx.ShapeError, match=message):
        call()
