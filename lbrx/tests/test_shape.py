"""Views as pure functions, against the strides that numpy gives its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout
from lbrx.errors import ShapeError

FAST = settings(max_examples=150, deadline=None, print_blob=True)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ITEM = 8


def layout_of(base: np.ndarray, view: np.ndarray) -> Layout:
    """What numpy made of a base array, in our terms."""
    offset = (view.ctypes.data - base.ctypes.data) // ITEM if view.size else 0
    return Layout(view.shape, tuple(s // ITEM for s in view.strides), offset)


def elements(layout: Layout, base: np.ndarray) -> np.ndarray:
    """The elements that a layout shows, one by one, without numpy's views."""
    flat = base.ravel()
    places = [
        layout.offset + sum(i * s for i, s in zip(index, layout.strides, strict=True))
        for index in np.ndindex(*layout.shape)
    ]
    return np.array([flat[p] for p in places], base.dtype).reshape(layout.shape)


def same(layout: Layout, base: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(elements(layout, base), expected)
    assert layout.shape == expected.shape
    numpys = layout_of(base, expected)
    for n, ours, theirs in zip(layout.shape, layout.strides, numpys.strides, strict=True):
        assert n <= 1 or expected.size == 0 or ours == theirs
    assert layout.is_contiguous == expected.flags.c_contiguous
    low, high = layout.bounds()
    assert 0 <= low <= high <= base.size
    assert (low < high) == bool(layout.size)


@st.composite
def arrays(draw):
    """An array of distinct elements."""
    shape = draw(shapes)
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


@st.composite
def views(draw):
    """A base, and a view of it that was sliced, permuted and perhaps broadcast."""
    base = draw(arrays())
    view = base[draw(hnp.basic_indices(base.shape))]
    view = np.asarray(view) if isinstance(view, np.ndarray) else base[..., None]
    view = view.transpose(draw(st.permutations(range(view.ndim))))
    if draw(st.booleans()):
        view = np.broadcast_to(view, (2, *view.shape))
    return base, view


@FAST
@given(arrays(), st.data())
def test_basic_index(base, data):
    key = data.draw(hnp.basic_indices(base.shape, max_dims=6, allow_newaxis=True))
    items = key if isinstance(key, tuple) else (key,)
    expected = base[(*items, ...)] if ... not in items else base[items]
    same(sh.index(sh.contiguous(base.shape), items), base, expected)


@FAST
@given(views(), st.data())
def test_permute_and_transpose(pair, data):
    base, view = pair
    axes = data.draw(st.permutations(range(view.ndim)))
    same(sh.permute(layout_of(base, view), axes), base, view.transpose(axes))
    if view.ndim:
        a, b = (data.draw(st.integers(-view.ndim, view.ndim - 1)) for _ in range(2))
        same(sh.transpose(layout_of(base, view), a, b), base, view.swapaxes(a, b))


@FAST
@given(views(), st.data())
def test_reshape_copies_exactly_where_numpy_does(pair, data):
    base, view = pair
    shape = data.draw(factors(view.size))
    expected = view.reshape(shape)
    layout = sh.reshape(layout_of(base, view), shape)
    if view.size == 0:
        assert layout is not None
        assert layout.shape == shape
    elif layout is None:
        assert not np.shares_memory(expected, base)
    else:
        assert np.shares_memory(expected, base)
        same(layout, base, expected)


@st.composite
def factors(draw, size):
    """A shape of `size` elements."""
    shape, left = [], size
    for _ in range(draw(st.integers(0, 4))):
        if left == 0:
            shape.append(draw(st.integers(0, 3)))
            continue
        divisor = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        shape.append(divisor)
        left //= divisor
    return tuple(draw(st.permutations([*shape, left])))


@FAST
@given(views(), shapes)
def test_expand_follows_broadcast_to(pair, shape):
    base, view = pair
    try:
        expected = np.broadcast_to(view, shape)
    except ValueError:
        with pytest.raises(ShapeError, match="does not expand"):
            sh.expand(layout_of(base, view), shape)
    else:
        same(sh.expand(layout_of(base, view), shape), base, expected)


@FAST
@given(views(), st.integers(-5, 4))
def test_squeeze_and_unsqueeze(pair, axis):
    base, view = pair
    same(sh.squeeze(layout_of(base, view)), base, view.squeeze())
    if -view.ndim - 1 <= axis <= view.ndim:
        same(sh.unsqueeze(layout_of(base, view), axis), base, np.expand_dims(view, axis))


@FAST
@given(st.lists(shapes, min_size=1, max_size=3))
def test_broadcast(given_shapes):
    try:
        expected = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            sh.broadcast(*given_shapes)
    else:
        assert sh.broadcast(*given_shapes) == expected


@FAST
@given(shapes, st.booleans(), st.data())
def test_reduced(shape, keepdims, data):
    axes = data.draw(st.none() | st.sets(st.integers(0, len(shape) - 1)) if shape else st.none())
    axes = axes if axes is None else tuple(axes)
    assert sh.reduced(shape, axes, keepdims) == np.zeros(shape).sum(axes, keepdims=keepdims).shape


LAYOUT = sh.contiguous((2, 3, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sh.broadcast((2, 3), (4,)), r"\(2, 3\) and \(4,\) .* axis -1 has 3 and 4"),
        (lambda: sh.reshape(LAYOUT, (5, -1)), r"24 elements cannot take the shape \(5, -1\)"),
        (lambda: sh.reshape(LAYOUT, (-1, -1)), "at most one -1"),
        (lambda: sh.permute(LAYOUT, (0, 0, 1)), "name each of its 3 axes once"),
        (lambda: sh.permute(LAYOUT, (0, 1)), r"do not permute shape \(2, 3, 4\)"),
        (lambda: sh.normalize_axis(3, 3), "axis 3 does not exist in 3 dimensions: .* -3 to 2"),
        (lambda: sh.normalize_axis(0, 0), "a scalar has no axes"),
        (lambda: sh.normalize_axes((0, -3), 3), "name an axis twice"),
        (lambda: sh.squeeze(LAYOUT, 1), r"axis 1 of shape \(2, 3, 4\) cannot be squeezed"),
        (lambda: sh.expand(LAYOUT, (3, 4)), r"\(2, 3, 4\) does not expand to \(3, 4\)"),
    ],
)
def test_errors_name_the_values(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((2,), r"index 2 is beyond axis 0 of shape \(2, 3, 4\)"),
        ((0, 0, 0, 0), "4 indices for 3 dimensions: leave 1 out"),
        ((..., ...), "only one ellipsis"),
    ],
)
def test_index_errors(key, message):
    with pytest.raises(IndexError, match=message):
        sh.index(LAYOUT, key)


def test_sizes_of_numpy_leave_no_trace():
    shape = (np.int64(7919), np.int64(3))
    layout = sh.contiguous(shape)
    again = sh.contiguous((7919, 3))
    assert {type(n) for n in (*layout.shape, *again.shape, *again.strides)} == {int}
