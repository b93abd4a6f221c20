"""Statistics noted while a merge is written, whole or interrupted."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np
import pytest
from interruptions import interrupted

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.convert import RunOptions, Settings, make_plan, perform
from lbrx.files import formats
from lbrx.files.formats import plain
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor
from lbrx.merging.merge_function import MergeFunction, frozen
from lbrx.merging.methods import METHODS, Method
from lbrx.merging.observed import noted_sums, observed

SHAPES = {"a": (40, 16), "b": (3, 5, 16), "c": (16,)}


@pytest.fixture
def model(tmp_path, rng, monkeypatch):
    """Two models and their mean. Of `a`, computed whole, pieces are written one by one."""
    for name in ("x", "y"):
        values = {
            n: rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for n, shape in SHAPES.items()
        }
        lbrx.save(tmp_path / f"{name}.safetensors", values)
    x, y = (formats.read(tmp_path / f"{name}.safetensors").tensors for name in ("x", "y"))
    linear = METHODS["linear"]
    whole = Method("whole", linear.function, "", linear.parameters, linear.own)
    monkeypatch.setitem(METHODS, "whole", whole)
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 64)
    recipes = {}
    for name, shape in SHAPES.items():
        weights = (frozen({"weight": 1.0}), frozen({"weight": 3.0}))
        method = "whole" if name == "a" else "linear"
        function = MergeFunction(
            method, name, False, frozen({"normalize": True}), weights, models=("x", "y")
        )
        recipes[name] = ComputedTensor(
            name, (x[name], y[name]), plain(dt.bfloat16), shape, function
        )
    stored = {f"x.{n}": info for n, info in x.items()} | {f"y.{n}": info for n, info in y.items()}
    return observed(ComputedModel(tmp_path / "merged", "safetensors", stored, recipes=recipes))


def check(notes, folder, tmp_path):
    found = noted_sums(notes, {name: prod(shape) for name, shape in SHAPES.items()})
    parents = [lbrx.load(tmp_path / f"{name}.safetensors") for name in ("x", "y")]
    merged = lbrx.open_model(folder)
    assert found.keys() == SHAPES.keys()
    for name, sums in found.items():
        m, x, y = (t[name].numpy().astype(np.float64).reshape(-1) for t in (merged, *parents))
        assert sums.values == m.size
        assert sums.conflicts == np.count_nonzero(x * y < 0)
        assert sums.norm == pytest.approx(np.linalg.norm(m), rel=1e-5)
        cosine = m @ y / np.linalg.norm(m) / np.linalg.norm(y)
        assert sums.cosine(1) == pytest.approx(cosine, abs=1e-5)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_each_tensor_counts_once(model, device, tmp_path):
    plan = make_plan(model, tmp_path / "out", Settings())
    made = []
    late = lambda notes: made.append(notes) or {"late.txt": b"late"}  # noqa: E731
    result = perform(plan, device=device, verifying=lambda n: None, late_files=late)
    check(result.notes, tmp_path / "out", tmp_path)
    assert made == [result.notes]
    assert (tmp_path / "out" / "late.txt").read_bytes() == b"late"


def test_a_resumed_merge_has_all_notes(model, tmp_path):
    plan = make_plan(model, tmp_path / "out", Settings())
    with interrupted(after=6):
        perform(plan, device="cpu")
    result = perform(plan, RunOptions(resume=True), device="cpu")
    assert 0 < result.reused < plan.nbytes
    check(result.notes, tmp_path / "out", tmp_path)


def test_quantized_parents(tmp_path, rng):
    values = {
        n: lbrx.quantize(
            lbrx.tensor(rng.standard_normal((8, 64)).astype("f4"), device="cpu"), "q8_0"
        )
        for n in "xy"
    }
    lbrx.save(tmp_path / "m.gguf", values)
    infos = formats.read(tmp_path / "m.gguf").tensors
    weights = (frozen({"weight": 1.0}),) * 2
    function = MergeFunction(
        "linear", "w", False, frozen({"normalize": True}), weights, models=("x", "y")
    )
    merged = ComputedTensor("w", (infos["x"], infos["y"]), plain(dt.float32), (8, 64), function)
    model = ComputedModel(tmp_path / "merged", "safetensors", infos, recipes={"w": merged})
    plan = make_plan(observed(model), tmp_path / "out", Settings())
    for device in ("cpu", "metal"):
        notes = perform(plan, RunOptions(force=True), device=device).notes
        x, y = (values[n].numpy().reshape(-1) for n in "xy")
        sums = noted_sums(notes, {"w": 512})["w"]
        m = (x + y) / 2
        assert sums.cosine(0) == pytest.approx(
            m @ x / np.linalg.norm(m) / np.linalg.norm(x), abs=1e-5
        )
