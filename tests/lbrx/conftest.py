"""Fixtures for tests of tensors."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx

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


@pytest.fixture
def metal_default():
    """Tensors are made on metal, whatever LBRX_DEVICE says."""
    lbrx.set_default_device("metal")
    yield
    lbrx.set_default_device(None)
