"""Tensors that are computed from several sources: whole, by rows, and through a conversion."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.convert import Settings, make_plan, perform
from lbrx.convert.source import TensorReader
from lbrx.files import formats
from lbrx.files.formats import plain
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor, ReorderedHeads, renamed
from lbrx.merging.merge_function import MergeFunction, frozen
from lbrx.scheduler import graph_plan

SHAPES = [(8,), (8, 6), (3, 4, 5), (1,), ()]


@dataclass(frozen=True)
class WeightedSum:
    """A function for tests: the sum of the sources times 1, 2, 3 ..."""

    is_elementwise: bool

    def __call__(self, sources: Sequence[lbrx.Tensor]) -> lbrx.Tensor:
        total = sources[0].astype("float32")
        for i, source in enumerate(sources[1:], 2):
            total = total + source.astype("float32") * i
        return total


def stored(path: Path, tensors: dict[str, np.ndarray], scheme: str | None = None):
    made = {name: lbrx.tensor(array, device="cpu") for name, array in tensors.items()}
    if scheme:
        made = {name: lbrx.quantize(tensor, scheme) for name, tensor in made.items()}
    lbrx.save(path, made)
    return formats.read(path).tensors


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_and_by_rows(tmp_path, rng, shape, elementwise, device):
    values = [rng.standard_normal(shape).astype(t) for t in (np.float32, ml_dtypes.bfloat16)]
    infos = stored(tmp_path / "m.safetensors", dict(zip("ab", values, strict=True)))
    recipe = ComputedTensor(
        "r", (infos["a"], infos["b"]), plain(dt.float32), shape, WeightedSum(elementwise)
    )
    expected = (values[0] + 2 * values[1].astype(np.float32)).reshape(-1, shape[-1] if shape else 1)
    reader = TensorReader(device)
    for rows in (slice(0, 1), slice(len(expected) // 2, len(expected))):
        np.testing.assert_allclose(reader.values(recipe, rows), expected[rows], rtol=1e-6)
    whole = TensorReader(device).values(recipe, slice(0, len(expected)))
    np.testing.assert_array_equal(reader.values(recipe, slice(0, len(expected))), whole)


@pytest.mark.parametrize("elementwise", [True, False])
def test_computed_from_blocks_and_reordered(tmp_path, rng, elementwise):
    values = {name: rng.standard_normal((8, 64)).astype(np.float32) for name in "ab"}
    infos = stored(tmp_path / "m.gguf", values, "q8_0")
    known = {name: lbrx.load(tmp_path / "m.gguf")[name].numpy() for name in "ab"}
    recipe = ComputedTensor(
        "r", (infos["a"], infos["b"]), plain(dt.float32), (8, 64), WeightedSum(elementwise)
    )
    pairs = ReorderedHeads("p", recipe, 2, True)
    expected = (known["a"] + 2 * known["b"]).reshape(2, 2, 2, 64).swapaxes(1, 2).reshape(8, 64)
    for rows in (slice(0, 8), slice(3, 5)):
        found = TensorReader("cpu").values(pairs, rows)
        np.testing.assert_allclose(found, expected[rows], rtol=1e-6)


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_sources_with_strides_and_float64(tmp_path, rng, elementwise, device):
    """PyTorch stores transposed tensors with strides; Metal has no float64."""
    values = {
        n: rng.standard_normal((6, 8)).astype(t) for n, t in (("a", np.float32), ("b", np.float64))
    }
    save_file(values, tmp_path / "m.safetensors")
    infos = formats.read(tmp_path / "m.safetensors").tensors
    turned = replace(infos["a"], shape=(8, 6), strides=(1, 8))
    other = replace(infos["b"], shape=(8, 6), strides=(6, 1))
    function = WeightedSum(elementwise)
    recipe = ComputedTensor("r", (turned, other), plain(dt.float32), (8, 6), function)
    expected = values["a"].T + 2 * values["b"].reshape(8, 6)
    for rows in (slice(0, 8), slice(3, 5)):
        found = TensorReader(device).values(recipe, rows)
        np.testing.assert_allclose(found, expected[rows], rtol=1e-5, atol=1e-6)


def test_result_of_another_shape_is_refused(tmp_path):
    infos = stored(tmp_path / "m.safetensors", {"a": np.ones((2, 3), np.float32)})
    recipe = ComputedTensor("r", (infos["a"],), plain(dt.float32), (3, 2), WeightedSum(False))
    with pytest.raises(lbrx.ShapeError, match=r"tensor 'r': \(2, 3\) was computed instead of"):
        TensorReader("cpu").values(recipe, slice(0, 3))


def test_a_computed_model_is_converted_and_resumes(tmp_path, rng, monkeypatch):
    """Rounded once to the recipe's type; verified against a second computation."""
    values = {n: rng.standard_normal((40, 16)).astype(ml_dtypes.bfloat16) for n in ("a", "b")}
    infos = stored(tmp_path / "in.safetensors", values)
    function = MergeFunction(
        "linear", "w", False, frozen({"normalize": True}), (frozen({"weight": 1.0}),) * 2
    )
    merged = ComputedTensor("w", tuple(infos.values()), plain(dt.bfloat16), (40, 16), function)
    assert pickle.loads(pickle.dumps(merged)) == merged
    model = ComputedModel(
        tmp_path / "merged",
        "safetensors",
        infos,
        recipes={"w": merged, "kept": renamed(infos["a"], "kept")},
        companions={"README.md": b"# a card\n"},
    )
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 64)
    plan = make_plan(model, tmp_path / "out", Settings())
    perform(plan, device="cpu", verifying=lambda written: None)
    found = lbrx.open_model(tmp_path / "out")
    mean = values["a"].astype(np.float32) * 0.5 + values["b"].astype(np.float32) * 0.5
    np.testing.assert_array_equal(found["w"].numpy(), mean.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found["kept"].numpy(), values["a"])
    assert (tmp_path / "out" / "README.md").read_bytes() == b"# a card\n"
    other = replace(function, parameters=frozen({"normalize": False}))
    changed = replace(model, recipes={**model.recipes, "w": replace(merged, function=other)})
    from lbrx.convert.fingerprint import fingerprint

    again = make_plan(changed, tmp_path / "out", Settings())
    assert fingerprint(plan, "cpu", 64) != fingerprint(again, "cpu", 64)


def test_pieces_of_one_shape_are_planned_once(tmp_path, rng, monkeypatch):
    """Each reads its own rows, on several threads."""
    values = [rng.standard_normal((64, 1024)).astype(ml_dtypes.bfloat16) for _ in range(2)]
    infos = stored(tmp_path / "m.safetensors", dict(zip("ab", values, strict=True)))
    own = tuple(frozen({"weight": weight}) for weight in (0.25, 0.75))
    function = MergeFunction("linear", "w", False, frozen({"normalize": False}), own)
    recipe = ComputedTensor("w", tuple(infos.values()), plain(dt.bfloat16), (64, 1024), function)
    expected = values[0].astype(np.float32) * 0.25 + values[1].astype(np.float32) * 0.75
    reader = TensorReader("metal")

    def check(first: int) -> None:
        rows = slice(first, first + 4)
        found = reader.values(recipe, rows)
        np.testing.assert_array_equal(found, expected[rows].astype(ml_dtypes.bfloat16))

    plans = []
    make = graph_plan.general_plan
    monkeypatch.setattr(graph_plan, "general_plan", lambda *given: plans.append(0) or make(*given))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(check, [*range(0, 64, 4), *range(0, 60, 7)]))
    assert len(plans) == 1
