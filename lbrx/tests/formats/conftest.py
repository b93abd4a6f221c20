"""Fixtures for tests of model files."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx.arrays import dtype as dt


@pytest.fixture
def arrays(rng) -> dict[str, np.ndarray]:
    """One array of each type, of odd shapes; floats have NaN, infinities and denormals."""
    shapes = [(3, 5), (), (0, 4), (1,), (2, 3, 7), (17,)]
    result = {}
    for i, dtype in enumerate(dt.ALL):
        shape = shapes[i % len(shapes)]
        values = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        if dtype is dt.bool_:
            values &= 1
        result[f"a.{dtype}"] = values.view(dtype.numpy).reshape(shape)
    return result
