"""Fixtures of the tests of lbrx, and of distributions that build on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
from device_memory import GPU
from seeds import derived
from selectors_called import SELECTORS

import lbrx

__all__ = [
    "_bridge",
    "_no_known_graphs",
    "_own_cache",
    "_races_need_a_processor",
    "cpu_default",
    "metal_default",
    "rng",
]


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Empty caches, and no hub: kernel variants are chosen by estimate, not by earlier
    measurements, and models are those of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_CACHE", str(tmp_path_factory.mktemp("lbrx")))
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        yield


@pytest.fixture(autouse=True)
def _races_need_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a test ends where it asks for the race checker, which only processors have."""
    if not GPU:
        return
    import softmetal

    checking = softmetal.checking

    def without_races(*modes: str, seed: int | None = None) -> AbstractContextManager[object]:
        if "race" in modes:
            pytest.skip("the race checker needs a processor")
        return checking(*modes, seed=seed)

    monkeypatch.setattr(softmetal, "checking", without_races)


@pytest.fixture(autouse=True)
def _bridge() -> Iterator[None]:
    """Calls of Metal are judged as PyObjC's bridge judges them on a Mac, in child processes too."""
    if sys.platform == "darwin":
        yield
        return
    from softmetal import bridge

    modes = os.environ.get("SOFTMETAL_STRICT", "")
    with bridge.judging() as judge, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTMETAL_STRICT", f"{modes},bridge")
        judge.refused.clear()
        judge.called.clear()
        yield
    assert not judge.refused, judge.refused
    called = {selector for module, selector in judge.called if module.startswith("lbrx")}
    unknown = called - SELECTORS.keys()
    assert not unknown, "give their first macOS version in selectors_called.py"


@pytest.fixture(autouse=True)
def _no_known_graphs() -> None:
    """Every test plans its graphs: it may have changed a constant that plans are made by."""
    scheduler = sys.modules.get("lbrx.scheduler.graph_plan")
    if scheduler is not None:
        scheduler.KNOWN.clear()


@pytest.fixture
def cpu_default() -> Iterator[None]:
    """The default device is the cpu."""
    lbrx.set_default_device("cpu")
    yield
    lbrx.set_default_device(None)


@pytest.fixture
def metal_default() -> Iterator[None]:
    """The default device is metal, independent of LBRX_DEVICE."""
    lbrx.set_default_device("metal")
    yield
    lbrx.set_default_device(None)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A random generator; pytest shows its seed when a test fails."""
    seed = derived(request.node.nodeid)
    print(f"seed {seed}")
    return np.random.default_rng(seed)
