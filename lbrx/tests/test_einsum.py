"""Einstein sums against numpy's, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import FLOATS, chosen, close, pair

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

# Subscripts and the shapes of the operands.
SUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij,kj->ki", (3, 4), (5, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bij,bjk->bik", (1, 3, 4), (2, 4, 5)),
    ("i,i", (5,), (5,)),
    ("i,j->ij", (3,), (4,)),
    ("i,j->ji", (3,), (4,)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii", (4, 4)),
    ("ii->i", (4, 4)),
    ("iij->ij", (3, 3, 2)),
    ("iji,j->i", (3, 4, 3), (4,)),
    ("b a", (2, 3)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)),
    ("ij,kl,j,k->il", (3, 4), (5, 2), (4,), (5,)),
    ("a,b,c->abc", (2,), (3,), (4,)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("...i,i", (2, 3, 4), (4,)),
    ("i...->...i", (2, 3, 4)),
    ("...", (2, 3)),
    ("...,...", (2, 3), (3,)),
    ("i...,j->...", (2, 3), (4,)),
    ("ij,jk->ik", (3, 0), (0, 5)),
    ("ij,j->i", (0, 4), (4,)),
    (",ij->ji", (), (2, 3)),
    ("Ab,bA->A", (3, 2), (2, 3)),
]


@pytest.mark.parametrize(("subscripts", "shapes"), [(s, shapes) for s, *shapes in SUMS])
def test_like_numpy(subscripts, shapes, place, rng):
    dtypes = (*FLOATS, dt.int32, dt.uint8) if place == "cpu" else (dt.float32, dt.int64)
    for dtype in dtypes:
        pairs = [pair(rng, s, dtype, place, low=-2, high=2) for s in shapes]
        expected = np.einsum(subscripts, *(x for _, x in pairs))
        result = fn.einsum(subscripts, *(a for a, _ in pairs))
        close(result, expected.astype(dtype.numpy), dtype, scale=16)


def test_views_and_other_types(place, rng):
    a, x = pair(rng, (4, 5), dt.float32, place, "transposed")
    b, y = pair(rng, (5, 4), dt.float32, place, "strided")
    close(fn.einsum("ij,ji->j", a, b), np.einsum("ij,ji->j", x, y), dt.float32, scale=8)
    c, z = pair(rng, (5,), dt.int32, place)
    close(fn.einsum("ij,j->i", a, c), x @ z, dt.float32, scale=8)
    for dtype in chosen(FLOATS, place, "einsum"):
        half = a.astype(dtype)
        assert fn.einsum("ij->i", half).dtype is fn.einsum("ij,ij", half, half).dtype is dtype


def ones(*shape):
    return lbrx.ones(shape, device="cpu")


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "names 2 operands: 1 given"),
        ("ij->i", [(2, 3, 4)], "'ij' does not name the 3 axes .*: give a letter for each, or"),
        ("ijk->i", [(2, 3)], "'ijk' does not name the 2 axes"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "axis 'j' has sizes 3 and 4: they must be equal, or 1"),
        ("ij->ik", [(2, 3)], "'k' of the result is in no operand"),
        ("ij->ii", [(2, 3)], "the result names an axis twice"),
        ("i1->i", [(2, 3)], "'i1' are not letters"),
        ("......->", [(2, 3)], "are not letters and at most one '...'"),
        ("...i,...i->i", [(2, 3), (4, 3)], "axis '...0' has sizes 2 and 4"),
    ],
)
def test_errors(subscripts, shapes, message):
    with pytest.raises(lbrx.ShapeError, match=message):
        fn.einsum(subscripts, *(ones(*shape) for shape in shapes))
