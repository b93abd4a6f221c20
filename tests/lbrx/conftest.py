"""Fixtures for tests of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import lbrx

DEVICES = ("cpu",)


@pytest.fixture(params=DEVICES)
def place(request):
    """Each device that computes."""
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are chosen by estimate, whatever was measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_CACHE", str(tmp_path_factory.mktemp("lbrx")))
        yield


@pytest.fixture
def cpu_default() -> Iterator[None]:
    """Tensors are made on the cpu, whatever else there is."""
    lbrx.set_default_device("cpu")
    yield
    lbrx.set_default_device(None)


@pytest.fixture
def metal_default() -> Iterator[None]:
    """Tensors are made on metal, whatever LBRX_DEVICE says."""
    lbrx.set_default_device("metal")
    yield
    lbrx.set_default_device(None)


@pytest.fixture
def rng():
    """Random numbers whose seed pytest shows when a test fails."""
    seed = np.random.SeedSequence().generate_state(1)[0]
    print(f"seed {seed}")
    return np.random.default_rng(seed)
