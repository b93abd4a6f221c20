"""What `lbrx bench` lets other libraries compute is what it lets numpy compute."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx.bench import kernel_cases
from lbrx.bench.peers import NAMES, find
from lbrx.bench.peers.with_numpy import OPERATIONS

CASES = {
    case.name: case
    for case in kernel_cases._all("small", "float32")
    if case.operation in OPERATIONS and not case.random
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("numpy", "llama.cpp")])
def test_operations_of_a_peer(name):
    found, missing = find([name], 2)
    if missing:
        pytest.skip(f"{name} is not installed")
    (peer,) = found
    assert set(peer.operations) <= set(OPERATIONS)
    wrong = []
    for case in CASES.values():
        inputs = case.inputs(np.random.default_rng(1))
        work = peer.work(case.operation, inputs, "float32", case.options)
        if work is None:
            continue
        made = peer.operations[case.operation](
            *map(peer.array, inputs, _dtypes(inputs)), **case.options
        )
        peer.finish(made)
        expected = OPERATIONS[case.operation](*inputs, **case.options)
        atol = 1e-3 * np.abs(expected).max()
        if not np.allclose(_values(made), expected, rtol=1e-3, atol=atol):
            wrong.append(case.name)
    assert wrong == []


def _values(made):
    """A result as numpy's, which cannot read the bfloat16 of torch and MLX."""
    is_listed = str(made.dtype).endswith("bfloat16") and hasattr(made, "tolist")
    return np.array(made.tolist() if is_listed else made, np.float32)


def _dtypes(inputs):
    return [x.dtype.name for x in inputs]
