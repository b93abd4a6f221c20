"""Long chains of pending operations: how many kernels they become, how many of these differ, and
that neither the length of a chain nor the depth of the caller's stack is limited."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import lbrx
from lbrx.metal import library
from lbrx.planning import fusion
from lbrx.tensors.core import Tensor

Link = Callable[[Tensor, int], Tensor]

# A link of each chain, the operations in it, and how many different kernels the chain may need:
# segments of equal structure are one kernel, and the first segment is shorter.
CHAINS: dict[str, tuple[Link, int, int]] = {
    "equal numbers": (lambda x, i: x * 0.99 + 0.5, 2, 2),
    "different numbers": (lambda x, i: x * (1 - i * 1e-3) + i * 1e-3, 2, 2),
    "long functions": (lambda x, i: x.sin(), 1, 2),
    "halves": (lambda x, i: x.astype("bfloat16") * 0.99 + 0.5, 2, 3),
    "three operations": (lambda x, i: (x * 0.5 + 0.5).tanh(), 3, 4),
    "reductions": (lambda x, i: (x - x.max(axis=-1, keepdims=True)) * 0.5, 3, 4),
    "the value twice": (lambda x, i: x * 0.5 + (x + 0.25) * 0.1, 4, 3),
}


def leaf() -> Tensor:
    values = np.random.default_rng(0).uniform(-1, 1, (5, 37)).astype(np.float32)
    return lbrx.tensor(values, device="metal")


def chained(link: Link, count: int) -> Tensor:
    x = leaf()
    for i in range(count):
        x = link(x, i)
    return x


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are used from now on."""
    names: set[str] = set()
    make = library.Shaders.pipeline

    def pipeline(self, stem, function, *args, **options):
        names.add(function)
        return make(self, stem, function, *args, **options)

    monkeypatch.setattr(library.Shaders, "pipeline", pipeline)
    return names


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_needs_few_different_kernels(name, used, monkeypatch):
    link, operations, different = CHAINS[name]
    count = 300 // operations
    result = chained(link, count)
    planned = lbrx.explain(result).kernels
    fused = result.numpy()
    assert sum(len(kernel.steps) for kernel in planned) >= count * operations
    assert max(len(kernel.steps) for kernel in planned) <= fusion.MAX_COST
    assert len(planned) < count * operations / 5
    assert len(used) <= different
    monkeypatch.setenv("LBRX_FUSION", "0")
    assert chained(link, count).numpy().tobytes() == fused.tobytes()


def test_the_cost_of_operations_limits_a_kernel():
    def sizes(link: Link) -> int:
        return max(len(kernel.steps) for kernel in lbrx.explain(chained(link, 200)).kernels)

    assert sizes(lambda x, i: x.tanh()) == fusion.MAX_COST
    assert sizes(lambda x, i: x.gelu()) == fusion.MAX_COST // fusion.LONG_COST
    reductions = fusion.MAX_COST // (fusion.REDUCTION_COST + 1)  # and a subtraction after each
    assert sizes(lambda x, i: x - x.mean(axis=-1, keepdims=True)) in range(
        2 * reductions, 2 * reductions + 2
    )


@pytest.mark.parametrize("name", CHAINS)
def test_ten_thousand_operations(name):
    """Planned, not computed; Python's recursion limit is 1,000."""
    link, operations, _ = CHAINS[name]
    result = chained(link, 10_000 // operations)
    planned = lbrx.explain(result).kernels
    assert sum(len(kernel.steps) for kernel in planned) >= 9_999
    del result, planned


def test_ten_thousand_operations_are_computed_and_replayed():
    def step(x: Tensor) -> Tensor:
        for _ in range(5_000):
            x = x * 0.5 + 1
        return x

    result = step(leaf())
    np.testing.assert_array_equal(result.numpy(), np.full((5, 37), 2, np.float32))
    replayed = lbrx.compile(step)
    for _ in range(2):
        np.testing.assert_array_equal(replayed(leaf()).numpy(), result.numpy())


def test_a_chain_is_computed_from_a_deep_stack():
    """The stack that fusion needs does not grow with the number of operations in a kernel."""

    def deep(levels: int) -> np.ndarray:
        if levels == 0:
            return chained(CHAINS["equal numbers"][0], 100).numpy()
        return deep(levels - 1)

    depth = len_of_stack()
    expected = deep(1)
    assert deep(sys.getrecursionlimit() - depth - 120).tobytes() == expected.tobytes()


def len_of_stack() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count
