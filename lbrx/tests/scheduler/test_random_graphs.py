"""Fused results against float64 numpy, on random graphs of all kinds of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from random_graphs import Graph

import lbrx
import softmetal

SEEDS = st.integers(0, 2**32 - 1)
# A smaller seed is not a simpler example, so there is no shrinking.
RANDOM = settings(deadline=None, database=None, phases=[Phase.generate])
DEPTH = 14


def check(seed: int, depth: int = DEPTH) -> None:
    note(f"seed {seed}")
    print(f"seed {seed}")
    graph = Graph(np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        results = graph.grow(depth)
    lbrx.eval([pair.tensor for pair in results])
    for pair in results:
        assert pair.tensor.shape == pair.shape
        got = pair.tensor.numpy().astype(np.float64)
        np.testing.assert_allclose(got, pair.value, rtol=1e-3, atol=1e-3)


@settings(RANDOM, max_examples=6)
@given(SEEDS)
def test_random_graphs(seed):
    check(seed)


@pytest.mark.full
@settings(RANDOM, max_examples=300)
@given(SEEDS, st.integers(5, 40))
def test_many_random_graphs(seed, depth):
    check(seed, depth)


@settings(RANDOM, max_examples=2)
@given(SEEDS)
def test_random_graphs_have_no_races_and_stay_within_bounds(seed):
    with softmetal.checking("bounds", "race"):
        check(seed, 8)
