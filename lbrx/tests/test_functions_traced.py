"""Functions made of operations join traces: compiled, they give what they give without."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.tensors import functions as fn
from lbrx.tensors.at import At

# Of two float32 matrices of shape (4, 6).
FUNCTIONS = {
    "einsum": lambda x, y: fn.einsum("ij,kj->ik", x, y),
    "softmax by hand": lambda x, y: lbrx.Tensor.exp(x - fn.logsumexp(x, axis=1, keepdims=True)),
    "tril": lambda x, y: fn.tril(x) + fn.triu(y, k=1),
    "roll": lambda x, y: fn.roll(x, 2, axis=1) - fn.flip(y),
    "repeat and tile": lambda x, y: fn.repeat(x, 2, axis=0) * fn.tile(y, (2, 1)),
    "pad": lambda x, y: fn.pad(x, 2, "reflect") + fn.pad(y, 2),
    "quantile": lambda x, y: fn.quantile(x, 0.3, axis=1) + fn.std(y, axis=1),
    "searchsorted": lambda x, y: fn.searchsorted(x.reshape(-1).sort(), y),
    "isclose": lambda x, y: fn.isclose(x, y, rtol=0.5),
    "cumulative": lambda x, y: fn.cumulative_sum(x, axis=0) + fn.cumulative_prod(y, axis=1),
    "clip": lambda x, y: fn.clip(x, -0.5, 0.5) * fn.diff(y, append=1.0),
    "at slices": lambda x, y: At(x)[1:3, ::2].add(y[:2, :3]),
    "at indices": lambda x, y: At(x)[[0, 0, 3]].multiply(y[:3]),
    "at mask": lambda x, y: At(x)[x > y].set(0),
    "conv2d": lambda x, y: x.reshape(1, 1, 4, 6).conv2d(
        y[:3, :3].reshape(1, 1, 3, 3), padding="same"
    ),
    "pools": lambda x, y: (
        fn.max_pool1d(x.reshape(1, 4, 6), 2) + fn.avg_pool1d(y.reshape(1, 4, 6), 2)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled(name, metal_default, rng):
    function = FUNCTIONS[name]
    compiled = lbrx.compile(function)
    for _ in range(2):
        x, y = (lbrx.tensor(rng.standard_normal((4, 6)).astype(np.float32)) for _ in range(2))
        np.testing.assert_allclose(
            compiled(x, y).numpy(), function(x, y).numpy(), rtol=1e-5, atol=1e-6
        )


def test_limits_stay_open(metal_default):
    """A float argument of a compiled function may change without a new trace."""
    traces = []

    def limited(x, most):
        traces.append(most)
        return fn.clip(x, max=most)

    compiled = lbrx.compile(limited)
    x = lbrx.tensor([1.0, 2.0, 3.0])
    assert compiled(x, 1.5).tolist() == [1, 1.5, 1.5]
    assert compiled(x, 2.5).tolist() == [1, 2, 2.5]
    assert len(traces) == 1


def test_what_depends_on_values_says_so(metal_default):
    with pytest.raises(lbrx.TraceError):
        lbrx.compile(fn.nonzero)(lbrx.ones(3))


INDICES = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "the last axis": lambda x, i: x[..., i],
    "beside slices and new axes": lambda x, i: x[None, ::-1, i, None],
    "before an ellipsis": lambda x, i: x[i, ...],
    "a scalar": lambda x, i: x[1:, i[0, 0]],
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_that_are_arguments(name, metal_default, rng):
    """The device reads them: while the function is traced they have no values."""
    function, compiled = INDICES[name], lbrx.compile(INDICES[name])
    for values in ([[0, -1], [2, 3]], [[3, 3], [-4, 1]]):
        x, i = rng.standard_normal((4, 4, 3)).astype(np.float32), np.array(values)
        if name == "the last axis":
            x = x[..., [0, 1, 2, 0]]
        made = compiled(lbrx.tensor(x), lbrx.tensor(i))
        np.testing.assert_array_equal(made.numpy(), function(x, i))


@pytest.mark.parametrize("reduce", ["set", "add", "max"])
def test_rows_updated_at_indices_that_are_arguments(reduce, metal_default, rng):
    def function(x, i, values):
        return getattr(x.at[i], reduce)(values), getattr(x.at[i[0, 0]], reduce)(1.5)

    compiled = lbrx.compile(function)
    for places in ([[0, -1], [2, 0]], [[3, 3], [-4, 1]]):
        arrays = rng.standard_normal((4, 2, 3)), np.array(places), rng.standard_normal((2, 2, 1, 3))
        given = [lbrx.tensor(a.astype(np.float32) if a.dtype == float else a) for a in arrays]
        for ours, wanted in zip(compiled(*given), function(*given), strict=True):
            np.testing.assert_allclose(ours.numpy(), wanted.numpy(), rtol=1e-6)
    flat = lbrx.compile(lambda x, i: x.at[i].add(1))(lbrx.arange(3), lbrx.tensor([1, 1]))
    assert flat.tolist() == [0, 3, 2]


def test_constant_indices(metal_default):
    for constant in ([2, 0], np.array([2, 0]), np.array([True, False, True]), np.int64(1), 1):
        made = lbrx.compile(lambda x, constant=constant: x[constant])(lbrx.arange(3.0))
        assert made.tolist() == np.arange(3.0)[constant].tolist()


def test_an_index_argument_beyond_the_axis(metal_default):
    compiled = lbrx.compile(lambda x, i: x[i])
    with pytest.raises(IndexError, match="index 7 is beyond an axis of 3 elements"):
        compiled(lbrx.arange(3.0), lbrx.tensor([7])).numpy()
    with pytest.raises(lbrx.TraceError, match="reads the value of greater of an input"):
        lbrx.compile(lambda x: x[x > 0])(lbrx.ones(3))
