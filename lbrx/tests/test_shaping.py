"""Functions that move axes, cut, join, repeat and pad, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from function_cases import Case, check
from op_oracle import close, pair

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.tensors import functions as fn

CASES = {
    "reshape": Case(lambda x: fn.reshape(x, (3, -1)), lambda x: np.reshape(x, (3, -1))),
    "reshape flat": Case(lambda x: fn.reshape(x, -1, copy=True), np.ravel),
    "permute_dims": Case(
        lambda x: fn.permute_dims(x, (2, 0, 1)), lambda x: np.transpose(x, (2, 0, 1)), ((2, 3, 4),)
    ),
    "transpose": Case(fn.transpose, np.transpose, ((2, 3, 4),)),
    "transpose by place": Case(
        lambda x: fn.transpose(x, (2, 0, -2)), lambda x: np.transpose(x, (2, 0, -2)), ((2, 3, 4),)
    ),
    "transpose by name": Case(
        lambda x: fn.transpose(x, axes=[1, 0]), lambda x: np.transpose(x, [1, 0])
    ),
    "transpose two": Case(
        lambda x: fn.transpose(x, 0, -1), lambda x: np.swapaxes(x, 0, -1), ((2, 3, 4),)
    ),
    "transpose a scalar": Case(fn.transpose, np.transpose, ((),)),
    "matrix_transpose": Case(fn.matrix_transpose, lambda x: np.swapaxes(x, -1, -2), ((2, 3, 4),)),
    "swapaxes": Case(
        lambda x: fn.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1), ((2, 3, 4),)
    ),
    "moveaxis": Case(
        lambda x: fn.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1), ((2, 3, 4),)
    ),
    "moveaxis several": Case(
        lambda x: fn.moveaxis(x, (0, 2), (-1, 0)),
        lambda x: np.moveaxis(x, (0, 2), (-1, 0)),
        ((2, 3, 4, 5),),
    ),
    "expand_dims": Case(lambda x: fn.expand_dims(x), lambda x: np.expand_dims(x, 0)),
    "expand_dims several": Case(
        lambda x: fn.expand_dims(x, axis=(0, -1)), lambda x: np.expand_dims(x, (0, -1))
    ),
    "squeeze": Case(lambda x: fn.squeeze(x, 1), lambda x: np.squeeze(x, 1), ((3, 1, 2),)),
    "broadcast_to": Case(
        lambda x: fn.broadcast_to(x, (3, 4, 6)), lambda x: np.broadcast_to(x, (3, 4, 6))
    ),
    "broadcast_arrays": Case(fn.broadcast_arrays, np.broadcast_arrays, ((4, 1), (3,), (2, 1, 3))),
    "flip": Case(fn.flip, np.flip),
    "flip an axis": Case(lambda x: fn.flip(x, axis=-1), lambda x: np.flip(x, -1)),
    "flip axes": Case(lambda x: fn.flip(x, axis=(0, 1)), lambda x: np.flip(x, (0, 1))),
    "roll": Case(lambda x: fn.roll(x, 5), lambda x: np.roll(x, 5)),
    "roll an axis": Case(lambda x: fn.roll(x, -9, axis=1), lambda x: np.roll(x, -9, 1)),
    "roll axes": Case(
        lambda x: fn.roll(x, (1, -2), axis=(0, 1)), lambda x: np.roll(x, (1, -2), (0, 1))
    ),
    "roll nothing": Case(lambda x: fn.roll(x, 3), lambda x: np.roll(x, 3), ((0, 3),)),
    "split": Case(lambda x: fn.split(x, 3, axis=1), lambda x: np.split(x, 3, 1)),
    "split at": Case(lambda x: fn.split(x, [1, 4], axis=-1), lambda x: np.split(x, [1, 4], -1)),
    "split beyond": Case(lambda x: fn.split(x, [2, 9]), lambda x: np.split(x, [2, 9])),
    "array_split": Case(lambda x: fn.array_split(x, 4, 1), lambda x: np.array_split(x, 4, 1)),
    "chunk": Case(lambda x: fn.chunk(x, 4, axis=1), lambda x: [x[:, :2], x[:, 2:4], x[:, 4:]]),
    "unstack": Case(lambda x: fn.unstack(x, axis=1), lambda x: list(np.moveaxis(x, 1, 0))),
    "concatenate": Case(
        lambda x, y: fn.concatenate([x, y]), lambda x, y: np.concatenate([x, y]), ((2, 3), (4, 3))
    ),
    "concat flat": Case(
        lambda x, y: lbrx.concat([x, y], axis=None),
        lambda x, y: np.concatenate([x, y], None),
        ((2, 3), (4,)),
    ),
    "concatenate flat": Case(
        lambda x, y: fn.concatenate([x, y], None),
        lambda x, y: np.concatenate([x, y], None),
        ((2, 3), (5,)),
    ),
    "hstack": Case(lambda *x: fn.hstack(x), lambda *x: np.hstack(x), ((2, 3), (2, 1))),
    "hstack vectors": Case(lambda *x: fn.hstack(x), lambda *x: np.hstack(x), ((2,), (3,))),
    "hstack scalars": Case(lambda *x: fn.hstack(x), lambda *x: np.hstack(x), ((), ())),
    "vstack": Case(lambda *x: fn.vstack(x), lambda *x: np.vstack(x), ((2, 3), (3,))),
    "repeat": Case(lambda x: fn.repeat(x, 3), lambda x: np.repeat(x, 3)),
    "repeat an axis": Case(lambda x: fn.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, 1)),
    "repeat each": Case(
        lambda x: fn.repeat(x, [2, 0, 1, 3], axis=0), lambda x: np.repeat(x, [2, 0, 1, 3], 0)
    ),
    "repeat never": Case(lambda x: fn.repeat(x, 0, axis=0), lambda x: np.repeat(x, 0, 0)),
    "tile": Case(lambda x: fn.tile(x, (2, 3)), lambda x: np.tile(x, (2, 3))),
    "tile more": Case(lambda x: fn.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "tile fewer": Case(lambda x: fn.tile(x, 2), lambda x: np.tile(x, 2)),
    "pad": Case(
        lambda x: fn.pad(x, ((1, 0), (0, 2)), constant_values=1),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=1),
    ),
    "pad alike": Case(lambda x: fn.pad(x, 1), lambda x: np.pad(x, 1)),
    **{
        f"pad {mode}": Case(
            lambda x, mode=mode: fn.pad(x, ((3, 1), (7, 20)), mode),
            lambda x, mode=mode: np.pad(x, ((3, 1), (7, 20)), mode),
        )
        for mode in ("edge", "reflect", "symmetric", "wrap")
    },
    "pad reflecting one": Case(
        lambda x: fn.pad(x, 2, "reflect"), lambda x: np.pad(x, 2, "reflect"), ((1, 1),)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_numpy(name, place, rng):
    check(CASES[name], name, place, rng)


def test_views_share_storage(rng):
    x, _ = pair(rng, (4, 6), dt.float32, "cpu")
    for view in (fn.flip(x), fn.swapaxes(x, 0, 1), fn.broadcast_to(x, (2, 4, 6)), *fn.split(x, 2)):
        assert view.storage is x.storage


def test_reshape_copies_when_told(rng):
    x, _ = pair(rng, (4, 6), dt.float32, "cpu")
    assert fn.reshape(x, (24,), copy=False).storage is fn.reshape(x, (2, 12)).storage is x.storage
    assert fn.reshape(x, (24,), copy=True).storage is not x.storage
    with pytest.raises(ValueError, match="need a copy: leave copy=None"):
        fn.reshape(x.T, (24,), copy=False)


def test_broadcast_shapes():
    assert fn.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    with pytest.raises(lbrx.ShapeError, match="do not broadcast"):
        fn.broadcast_shapes((2,), (3,))


def test_repeats_may_be_a_tensor(place, rng):
    a, x = pair(rng, (3, 2), dt.float32, place)
    counts = lbrx.tensor([0, 2, 1], device=place)
    close(fn.repeat(a, counts, axis=0), np.repeat(x, [0, 2, 1], 0), dt.float32)


def test_arrays_and_lists_become_tensors():
    assert fn.flip([1, 2, 3]).tolist() == [3, 2, 1]
    assert fn.vstack([np.ones(2, np.int8), lbrx.zeros(2, "int8")]).tolist() == [[1, 1], [0, 0]]


def ones(*shape):
    return lbrx.ones(shape, device="cpu")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fn.split(ones(5), 2), lbrx.ShapeError, "5 elements .* into 2 .* use array_split"),
        (lambda: fn.split(ones(5), 0), lbrx.ShapeError, "into 0 equal sections"),
        (lambda: fn.array_split(ones(5), 0), lbrx.ShapeError, "0 sections of axis 0: give 1"),
        (lambda: fn.chunk(ones(5), 0), lbrx.ShapeError, "0 chunks of axis 0: give 1 or more"),
        (lambda: fn.matrix_transpose(ones(5)), lbrx.ShapeError, "it needs two axes or more"),
        (lambda: fn.moveaxis(ones(2, 3), (0, 1), 0), lbrx.ShapeError, "as many places as axes"),
        (lambda: fn.moveaxis(ones(2, 3), 2, 0), lbrx.ShapeError, "axis 2 does not exist"),
        (lambda: fn.expand_dims(ones(2), axis=3), lbrx.ShapeError, "axis 3 does not exist"),
        (lambda: fn.squeeze(ones(2), 0), lbrx.ShapeError, "its size is not 1"),
        (lambda: fn.broadcast_to(ones(2), (3,)), lbrx.ShapeError, "does not expand"),
        (lambda: fn.roll(ones(2), (1, 2)), lbrx.ShapeError, "give one shift, or the axes"),
        (lambda: fn.roll(ones(2), (1, 2), axis=0), lbrx.ShapeError, "give one for each"),
        (lambda: fn.repeat(ones(2), -1), lbrx.ShapeError, "repeats=-1: give 0 or more"),
        (lambda: fn.repeat(ones(2), [1, 2, 3]), lbrx.ShapeError, "of 2 slices: give one each"),
        (
            lambda: fn.repeat(ones(2), [1.5, 2]),
            lbrx.DtypeError,
            "repeats are float64: give integers",
        ),
        (lambda: fn.tile(ones(2), -1), lbrx.ShapeError, "negative size"),
        (lambda: fn.pad(ones(2), -1), lbrx.ShapeError, "integers from 0 on"),
        (lambda: fn.pad(ones(2, 2), ((1, 1),) * 3), lbrx.ShapeError, "does not fit 2 axes"),
        (
            lambda: fn.pad(ones(2), 1, "mean"),
            ValueError,
            "mode='mean' is not a way to pad: .*'edge'",
        ),
        (lambda: fn.pad(ones(0), 1, "edge"), lbrx.ShapeError, "no elements to pad with"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
