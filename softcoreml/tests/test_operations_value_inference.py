"""Operations against coremltools: the shapes and types it infers, and the values where it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mil_cases import ACTIVATION, CASES, RANDOM, UNARY, as_arrays
from mil_run import call, close

pytest.importorskip("coremltools", reason="the oracle: pip install coremltools")

import coremltools as ct
from coremltools.converters.mil.mil import Builder, Function, types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

from softcoreml.operations.registry import find, names

INTERPRETED = {
    "_const_symbolic",
    "cond",
    "const",
    "list_gather",
    "list_length",
    "list_read",
    "list_scatter",
    "list_write",
    "make_list",
    "read_state",
    "while_loop",
}
TARGETS = {
    "ios15": ct.target.iOS15,
    "ios16": ct.target.iOS16,
    "ios17": ct.target.iOS17,
    "ios18": ct.target.iOS18,
}


def oracle(name: str, opset: str, inputs: dict[str, Any]) -> list[Any]:
    """The output variables of coremltools' own operation on constants."""
    with Function({}, opset_version=TARGETS[opset]):
        outputs = getattr(Builder, name)(
            **{
                key: np.copy(one) if isinstance(one, np.ndarray) else one
                for key, one in inputs.items()
            }
        )
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


@pytest.mark.parametrize(
    ("name", "opset", "inputs"), CASES, ids=[f"{n}-{o}-{i}" for i, (n, o, _) in enumerate(CASES)]
)
def test_like_coremltools(name: str, opset: str, inputs: dict[str, Any]) -> None:
    actual = call(name, opset, **as_arrays(inputs))
    actual = actual if isinstance(actual, tuple) else (actual,)
    expected = oracle(name, opset, inputs)
    assert len(actual) == len(expected)
    for one, var in zip(actual, expected, strict=True):
        assert np.shape(one) == tuple(var.shape)
        wanted = types.nptype_from_builtin(var.dtype)
        assert np.asarray(one).dtype == wanted or wanted == np.float16
        if var.val is not None and name not in RANDOM:
            close(np.asarray(one).astype(wanted), var.val, 2e-6)


def test_enough_values_were_compared() -> None:
    """The table reaches every operation that has values: a case without values tests shapes only."""
    inferred = {
        name for name, opset, inputs in CASES if oracle(name, opset, inputs)[0].val is not None
    }
    assert len(inferred) > 95


def test_every_core_operation_is_there_or_the_interpreters() -> None:
    core = set(SSAOpRegistry.core_ops)
    assert core - INTERPRETED == set(names())


@pytest.mark.parametrize("opset", TARGETS)
def test_operations_appear_with_their_opset(opset: str) -> None:
    target = TARGETS[opset]
    for name, versions in SSAOpRegistry.core_ops.items():
        if name not in INTERPRETED:
            assert (find(name, opset) is not None) == (target in versions), name


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("name", "inputs"), UNARY[:16] + ACTIVATION[:7])
def test_float16_is_computed_in_float32(name: str, inputs: dict[str, Any], dtype: type) -> None:
    given = inputs["x"].astype(dtype)
    once = call(name, x=given)
    assert once.dtype == np.float32
    close(once, call(name, x=given.astype(np.float32)), 0)
