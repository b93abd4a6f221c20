"""Indexing, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lbrx

X = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
MASK = X % 3 == 0
DEVICES = ["cpu", "metal"]


@pytest.fixture(params=DEVICES)
def tensor(request):
    """X on each device."""
    return lbrx.tensor(X, device=request.param)


@pytest.mark.parametrize(
    "key",
    [
        *(1, -1, slice(None, None, -1), None, ..., (), (..., 2), (1, ..., None, 2), True, False),
        *([1, 0], [], ([1, 0], [2, 1]), (slice(None), [0, 2]), (..., [4, 0, 0]), (0, ..., [1])),
        # With a slice between index arrays, the indexed axes come first.
        *(([1, 0], slice(None), [2, 1]), (0, slice(None), [1, 2]), (slice(1), [0], slice(None), 1)),
        *((np.array([[0], [1]]), np.array([0, 2])), (None, [1], None), ([0, 1], None, 0)),
        *(
            MASK,
            MASK[:, 0, 0, 0],
            (MASK[:, 0, 0, 0], 1),
            (slice(None), MASK[0, :, :, 0]),
            (..., MASK[0, 0, 0]),
        ),
        *((MASK[:, :, 0, 0], ..., [0]), (True, 1), (np.array(1), slice(2)), np.uint8([1, 0])),
    ],
    ids=str,
)
def test_as_numpy(key, tensor):
    expected = X[key]
    np.testing.assert_array_equal(tensor[key].numpy(), expected)
    assert tensor[key].shape == expected.shape


def test_tensors_are_indices(tensor):
    np.testing.assert_array_equal(tensor[tensor % 3 == 0].numpy(), X[MASK])
    np.testing.assert_array_equal(tensor[:, lbrx.tensor([2, 0])].numpy(), X[:, [2, 0]])
    np.testing.assert_array_equal(tensor[lbrx.tensor(1)].numpy(), X[1])
    assert tensor[1].storage is tensor.storage


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.data())
def test_integer_arrays(device, data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    x = np.arange(int(np.prod(shape))).reshape(shape)
    key = data.draw(hnp.integer_array_indices(shape))
    t = lbrx.tensor(x, device=device)
    np.testing.assert_array_equal(t[key].numpy(), x[key])
    mask = data.draw(hnp.arrays(bool, shape))
    np.testing.assert_array_equal(t[mask].numpy(), x[mask])


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.data())
def test_mixtures(device, data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    x = np.arange(int(np.prod(shape))).reshape(shape)
    key = []
    for n in shape[: data.draw(st.integers(1, len(shape)))]:
        places = st.integers(-n, n - 1)
        picks = st.lists(places, min_size=2, max_size=2)
        choice = places | st.slices(n) | picks | picks.map(lambda p: np.array(p)[:, None])
        key += [*data.draw(st.sampled_from([[], [], [None]])), data.draw(choice)]
    key = tuple(key)
    np.testing.assert_array_equal(lbrx.tensor(x, device=device)[key].numpy(), x[key])


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (2, IndexError, r"index 2 is beyond axis 0 of shape \(2, 3, 4, 5\)"),
        ([0, 2], IndexError, "index 2 is beyond an axis of 2 elements"),
        ([0.5], lbrx.DtypeError, "indices are float64: cast them"),
        ("a", TypeError, "str is not an index: give integers, slices"),
        (1.5, TypeError, "float is not an index"),
        (
            np.ones(3, bool),
            lbrx.ShapeError,
            r"mask of shape \(3,\) does not fit axes of shape \(2,\)",
        ),
        (([0, 1], [0, 1, 2]), lbrx.ShapeError, r"shapes \(2,\) and \(3,\) do not broadcast"),
        ((0, 0, 0, 0, [0]), IndexError, "5 indices for 4 dimensions"),
    ],
    ids=str,
)
def test_errors(key, error, message, tensor):
    with pytest.raises(error, match=message):
        tensor[key]


def test_tensors_cannot_be_assigned_to(tensor):
    with pytest.raises(TypeError, match="item assignment"):
        tensor[0] = 1
