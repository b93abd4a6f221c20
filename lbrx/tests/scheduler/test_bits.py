"""Results have the same bits fused, unfused, replayed and evaluated step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from bit_graphs import Recipe, random_recipe
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.tensor.core import Tensor

HALVES = ["float16", "bfloat16"]
FLOATS = ["float32", *HALVES]
SEEDS = st.integers(0, 2**32 - 1)
RANDOM = settings(deadline=None, database=None, phases=[Phase.generate])


def bits(tensor: Tensor) -> np.ndarray:
    """The elements' bits; which NaN it is has no meaning."""
    values = np.array(tensor.numpy())
    kind = f"u{values.dtype.itemsize}"
    if tensor.dtype.is_float:
        return np.where(np.isnan(values), 1, values.view(kind)).astype(kind)
    return values.view(kind)


def together(recipe: Recipe) -> list[Tensor]:
    tensors = recipe.build(recipe.inputs())
    lbrx.eval(tensors[-3:])
    return tensors


def unfused(recipe: Recipe) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_FUSION", "0")
        return together(recipe)


def step_by_step(recipe: Recipe) -> list[Tensor]:
    return recipe.build(recipe.inputs(), after=lbrx.eval)


def replayed(recipe: Recipe) -> list[Tensor]:
    function = lbrx.compile(lambda *inputs: recipe.build(inputs)[-3:])
    inputs = recipe.inputs()
    function(*inputs)
    return function(*inputs)


WAYS: list[Callable[[Recipe], Sequence[Tensor]]] = [unfused, step_by_step, replayed]


def check(recipe: Recipe) -> None:
    expected = list(map(bits, together(recipe)[-3:]))
    for way in WAYS:
        for wanted, tensor in zip(expected, way(recipe)[-3:], strict=True):
            message = f"{way.__name__} differs from fused:\n{recipe.text()}"
            np.testing.assert_array_equal(bits(tensor), wanted, message)


@settings(RANDOM, max_examples=4)
@given(SEEDS)
def test_random_graphs_have_the_same_bits(seed):
    print(f"seed {seed}")
    check(random_recipe(np.random.default_rng(seed), 12))


@pytest.mark.full
@settings(RANDOM, max_examples=150)
@given(SEEDS, st.integers(5, 30))
def test_many_random_graphs_have_the_same_bits(seed, depth):
    print(f"seed {seed}")
    check(random_recipe(np.random.default_rng(seed), depth))


@settings(RANDOM, max_examples=2)
@given(SEEDS)
def test_deterministic_graphs_have_the_same_bits(seed):
    print(f"seed {seed}")
    with lbrx.deterministic():
        check(random_recipe(np.random.default_rng(seed), 10, rounded=True))


@pytest.mark.full
@settings(RANDOM, max_examples=60)
@given(SEEDS, st.integers(5, 20))
def test_many_deterministic_graphs_have_the_same_bits(seed, depth):
    print(f"seed {seed}")
    with lbrx.deterministic():
        check(random_recipe(np.random.default_rng(seed), depth, rounded=True))
