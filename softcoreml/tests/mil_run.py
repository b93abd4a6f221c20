"""Calls of single operations, and what coremltools says of the same calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.operations import registry


def call(name: str, opset: str = "ios18", **inputs: Any) -> Any:
    """An operation as a program of the given opset has it."""
    definition = registry.find(name, opset)
    assert definition is not None, f"{name} is not an operation of {opset}"
    return definition.function(**inputs)


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal shapes, and values within a tolerance relative to the largest."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    wide = expected.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    largest = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(
        actual.astype(np.float64), wide, rtol=tolerance, atol=tolerance * max(largest, 1e-6)
    )
