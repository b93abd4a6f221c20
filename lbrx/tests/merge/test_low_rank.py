"""Approximations of low rank against numpy's decomposition."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.merging.low_rank import low_rank


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize(
    ("shape", "rank"), [((40, 30), 8), ((30, 40), 30), ((300, 420), 8), ((420, 300), 16)]
)
def test_against_numpy(shape, rank, device, rng):
    """A spectrum that decays slowly, as differences of fine-tuned models have."""
    u, _ = np.linalg.qr(rng.standard_normal((shape[0], min(shape))))
    v, _ = np.linalg.qr(rng.standard_normal((shape[1], min(shape))))
    spectrum = 1 / (1 + np.arange(min(shape))) ** 0.7
    values = (u * spectrum) @ v.T
    a, b, kept = low_rank(lbrx.tensor(values.astype(np.float32), device=device), rank)
    assert (a.shape, b.shape) == ((rank, shape[1]), (shape[0], rank))
    best = np.sqrt(np.sum(spectrum[rank:] ** 2))
    error = np.linalg.norm(values - b.astype(np.float64) @ a)
    assert error <= best * 1.005 + 1e-5
    assert kept == pytest.approx(np.sum(spectrum[:rank] ** 2) / np.sum(spectrum**2), abs=2e-3)
    # A = sqrt(S) V^T and B = U sqrt(S): both have the singular values as squared norms.
    np.testing.assert_allclose(np.sum(a * a, 1), spectrum[:rank], rtol=3e-2)
    np.testing.assert_allclose(np.sum(b * b, 0), np.sum(a * a, 1), rtol=1e-3)


@pytest.mark.parametrize("exact", [True, False])
def test_a_matrix_of_low_rank_is_exact(exact, rng):
    values = (rng.standard_normal((300, 5)) @ rng.standard_normal((5, 310))).astype(np.float32)
    a, b, kept = low_rank(lbrx.tensor(values, device="cpu"), 8, exact=exact)
    np.testing.assert_allclose(b @ a, values, atol=1e-3)
    assert kept == pytest.approx(1, abs=1e-5)


def test_zeros():
    a, b, kept = low_rank(lbrx.zeros((300, 310), device="cpu"), 4)
    assert not (b @ a).any()
    assert kept == 1
