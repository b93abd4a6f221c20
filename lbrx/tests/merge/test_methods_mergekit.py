"""Every method through a configuration, against results of mergekit 0.1.5 that are stored."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mergekit_cases import CASES, HALVES, check, inputs, placed, write
from safetensors.numpy import load_file

import lbrx
from lbrx.merging.methods import METHODS

STORED = Path(__file__).parent / "data" / "mergekit_cases.safetensors"
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
RUNS = [("float32", name) for name in CASES] + [("bfloat16", name) for name in HALVES]


@pytest.fixture(scope="module")
def stored():
    return load_file(STORED)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The models of each type."""
    result = {}
    for name, dtype in DTYPES.items():
        result[name] = tmp_path_factory.mktemp(name)
        write(result[name], inputs(), dtype)
    return result


@pytest.mark.parametrize("device", ["cpu", pytest.param("metal", marks=pytest.mark.full)])
@pytest.mark.parametrize(("dtype", "case"), RUNS)
def test_as_mergekit(case, dtype, device, folders, stored, tmp_path):
    config = {**placed(CASES[case], folders[dtype]), "dtype": dtype}
    lbrx.merge(config, tmp_path / "merged", device=device)
    model = lbrx.open_model(tmp_path / "merged")
    prefix = f"{dtype}/{case}/"
    expected = {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
    check({name: tensor.numpy() for name, tensor in model.items()}, expected, case, dtype)


def test_every_method_is_stored():
    assert {case["merge_method"] for case in CASES.values()} == set(METHODS)
