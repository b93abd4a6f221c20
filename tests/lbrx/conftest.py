"""Fixtures for tests of tensors."""

from __future__ import annotations

import numpy as np
import pytest

DEVICES = ("cpu",)


@pytest.fixture(params=DEVICES)
def place(request):
    """Each device that computes."""
    return request.param


@pytest.fixture
def rng():
    """Random numbers whose seed pytest shows when a test fails."""
    seed = np.random.SeedSequence().generate_state(1)[0]
    print(f"seed {seed}")
    return np.random.default_rng(seed)
