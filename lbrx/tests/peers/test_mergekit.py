"""Every method against the installed mergekit, on models that change with the seed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx

pytest.importorskip("mergekit")
sys.path.append(str(Path(__file__).parent.parent / "merge"))
from mergekit_cases import CASES, MODELS, SHAPES, by_mergekit, check, placed, write


@pytest.fixture
def folder(tmp_path, rng):
    models = {name: {} for name in MODELS}
    for tensor, shape in SHAPES.items():
        base = rng.standard_normal(shape).astype(np.float32)
        for name in MODELS:
            change = 0.1 * rng.standard_normal(shape) * (name != "base")
            models[name][tensor] = (base + change).astype(np.float32)
    write(tmp_path, models)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_as_mergekit(case, folder):
    config = {**placed(CASES[case], folder), "dtype": "float32"}
    expected = by_mergekit(config, folder / "theirs")
    merged = lbrx.merge(config)
    check({name: tensor.numpy() for name, tensor in merged.items()}, expected, case, "float32")


@pytest.mark.parametrize("method", ["dare_ties", "dare_linear", "della", "della_linear"])
def test_random_methods_have_the_same_statistics(method, folder):
    """The share that is kept, and the sum of the rescaled differences, which does not depend on the
    masks without consensus."""
    given = {"weight": 1.0, "density": 0.6}
    config = placed(
        {
            "merge_method": method,
            "base_model": "base",
            "models": [{"model": "one", "parameters": given}],
            "dtype": "float32",
        },
        folder,
    )
    theirs = by_mergekit(config, folder / "theirs")
    base, ours = lbrx.open_model(folder / "base"), lbrx.merge(config)
    kept = {"theirs": 0, "ours": 0}
    for name, start in base.items():
        changes = [m.astype(np.float64) - start.numpy() for m in (theirs[name], ours[name].numpy())]
        for who, change in zip(kept, changes, strict=True):
            kept[who] += np.count_nonzero(np.abs(change) > 1e-6)
        sums = [np.abs(change).sum() for change in changes]
        np.testing.assert_allclose(sums[0], sums[1], rtol=1e-4)
    size = sum(np.prod(shape) for shape in SHAPES.values())
    for count in kept.values():
        assert abs(count / size - 0.6) < 5 * np.sqrt(0.24 / size)
