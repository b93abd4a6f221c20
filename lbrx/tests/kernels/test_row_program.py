"""Fused rows by a team of threads: what it loads at once, with every mixture of element sizes."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import close, sample, wide

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels.fused_rows import fused_rows
from lbrx.program import row_program

# The dtypes of x, of what is added to it and of what chooses elements; elements in a vector.
MIXTURES = {
    "float32": (dt.float32, dt.float32, dt.float32, 4),
    "float16": (dt.float16, dt.float16, dt.float16, 8),
    "bool and bfloat16": (dt.bfloat16, dt.bfloat16, dt.bool_, 8),
    "bool, float16 and float32": (dt.float32, dt.float16, dt.bool_, 4),
    "int64 and float16": (dt.float16, dt.float16, dt.int64, 2),
    "int64 and bool": (dt.float32, dt.bool_, dt.int64, 1),
}
# Views of float16 rows, and whether they are whole vectors.
VIEWS = {
    "whole vectors": ((9, 40), lambda x: x, True),
    "a row with a gap": ((9, 48), lambda x: x[:, 8:], True),
    "an odd length": ((9, 41), lambda x: x, False),
    "an odd start": ((9, 41), lambda x: x[:, 1:], False),
    "an odd stride": ((9, 41), lambda x: x[:, :40], False),
    "one row for all": ((1, 40), lambda x: x.expand(9, 40), True),
    "every second element": ((9, 80), lambda x: x[:, ::2], True),
}


def softmax(x, other, choice):
    """A softmax of chosen elements, and the sum of what it was computed from."""
    y = lbrx.where(choice != 0, x * 0.5 + other, -3.0)
    powers = (y - y.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def numpy_softmax(x, other, choice):
    y = np.where(choice != 0, x * 0.5 + other, -3.0)
    powers = np.exp(y - y.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def runs_of(work, monkeypatch):
    """The result of `work` by teams, and what they loaded at once."""
    found = []
    given = fused_rows._run
    monkeypatch.setattr(fused_rows, "_run", lambda *a: found.append(given(*a)) or found[-1])
    with lbrx.kernels.forced(rows="together"):
        result = work()
        lbrx.eval(result)
    assert any(name.endswith(":together") for name in metal.stats()["kernels"])
    return result, found


@pytest.mark.parametrize("mixture", MIXTURES)
def test_elements_of_several_sizes(mixture, rng, monkeypatch):
    *dtypes, run = MIXTURES[mixture]
    arrays = [sample(rng, (9, 40), dtype) for dtype in dtypes]
    tensors = [lbrx.tensor(array, device="metal") for array in arrays]
    result, runs = runs_of(lambda: softmax(*tensors), monkeypatch)
    assert runs == [run]
    close(result, numpy_softmax(*map(wide, arrays)), result.dtype, scale=8)


@pytest.mark.parametrize("view", VIEWS)
def test_views(view, rng, monkeypatch):
    shape, look, vectors = VIEWS[view]
    values = sample(rng, shape, dt.float16)
    tensor = look(lbrx.tensor(values, device="metal"))
    same = wide(tensor.numpy())
    with softmetal.checking("bounds", "race"):
        result, runs = runs_of(lambda: softmax(tensor, tensor, tensor), monkeypatch)
    assert runs == [8 if vectors else 1]
    close(result, numpy_softmax(same, same, same), dt.float16, scale=8)


def test_a_row_has_the_same_bits_in_any_batch(rng, monkeypatch):
    tensor = lbrx.tensor(sample(rng, (9, 41), dt.float32), device="metal")[:, :40]
    with lbrx.kernels.deterministic():
        together, _ = runs_of(lambda: softmax(tensor, tensor, tensor), monkeypatch)
        row = tensor[4:5]
        alone, _ = runs_of(lambda: softmax(row, row, row), monkeypatch)
    np.testing.assert_array_equal(together.numpy()[4:5], alone.numpy())


def test_no_elements_make_no_vectors():
    assert row_program.longest_run([]) == 1
