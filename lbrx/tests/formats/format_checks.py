"""Comparison for tests of model files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """The same type, shape and bits."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()
