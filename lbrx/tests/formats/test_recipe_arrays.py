"""Recipes as arrays: whole, and by ranges of rows, against numpy."""

from __future__ import annotations

import tracemalloc
import zipfile

import numpy as np
import pytest
from format_checks import same

import lbrx
from lbrx import quant
from lbrx.arrays.storage import PackedStorage
from lbrx.convert.source import TensorReader
from lbrx.files import formats
from lbrx.files.formats.containers import mlx
from lbrx.files.formats.recipe import ReorderedHeads, ShiftedTensor, StackEntry, TensorStack
from lbrx.files.stored import recipe_arrays
from lbrx.files.stored.recipe_arrays import RecipeArrays
from lbrx.tensors.derived import RowStorage, read_rows, row_count, stored_arrays

SCHEMES = [None, "q4_0", "mlx:4:64"]
RANGES = [slice(0, 0), slice(0, 3), slice(5, 12), slice(15, 16), np.array([7, 0, 7, 11])]


@pytest.fixture(params=SCHEMES, ids=str)
def tensors(request, tmp_path, rng):
    """Three matrices and a stack of three, stored plainly or quantized, and their values."""
    scheme = request.param
    values = {name: rng.standard_normal((16, 64)).astype(np.float32) for name in "abc"}
    values["stack"] = rng.standard_normal((3, 16, 64)).astype(np.float32)
    made = {name: lbrx.tensor(array, device="cpu") for name, array in values.items()}
    if scheme:
        made = {name: lbrx.quantize(tensor, scheme) for name, tensor in made.items()}
        values = {name: tensor.numpy() for name, tensor in made.items()}
    target = {None: "m.safetensors", "q4_0": "m.gguf"}.get(scheme, "mlx")
    lbrx.save(tmp_path / target, made, format="mlx" if target == "mlx" else None)
    files = formats.read(tmp_path / target)
    return mlx.packed_weights(files) if target == "mlx" else files.tensors, values


def pairs(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows i and i + half of each head side by side, along the first axis."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


CASES = {
    "stored": lambda t: (t["a"], lambda v: v["a"]),
    "heads": lambda t: (ReorderedHeads("r", t["a"], 4, True), lambda v: pairs(v["a"], 4)),
    "heads of a stack": lambda t: (
        ReorderedHeads("r", TensorStack("s", (t["a"], t["b"])), 1, True),
        lambda v: np.stack([v["a"], v["b"]]),
    ),
    "entry": lambda t: (StackEntry("r", t["stack"], 2), lambda v: v["stack"][2]),
    "heads of an entry": lambda t: (
        ReorderedHeads("r", StackEntry("s", t["stack"], 1), 2, True),
        lambda v: pairs(v["stack"][1], 2),
    ),
    "stack": lambda t: (
        TensorStack("r", (t["a"], t["b"], t["c"])),
        lambda v: np.stack([v["a"], v["b"], v["c"]]),
    ),
    "stack of entries": lambda t: (
        TensorStack("r", (StackEntry("x", t["stack"], 2), t["b"])),
        lambda v: np.stack([v["stack"][2], v["b"]]),
    ),
    "entry of a stack": lambda t: (
        StackEntry("r", TensorStack("s", (t["a"], t["b"])), 1),
        lambda v: v["b"],
    ),
    "shifted": lambda t: (ShiftedTensor("r", t["a"], -1.5), lambda v: v["a"] - np.float32(1.5)),
    "entry of shifted": lambda t: (
        StackEntry("r", ShiftedTensor("s", t["stack"], 1), 1),
        lambda v: v["stack"][1] + np.float32(1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_and_by_rows(case, tensors):
    infos, values = tensors
    recipe, oracle = CASES[case](infos)
    expected = oracle(values)
    rows = expected.reshape(-1, expected.shape[-1])
    arrays = RecipeArrays()
    array = arrays.array(recipe)
    assert (array.layout.shape, row_count(recipe.shape)) == (expected.shape, len(rows))
    for index in RANGES:
        same(read_rows(array, index), rows[index])
    whole = arrays.array(recipe)
    same(whole.numpy(), expected)
    for index in RANGES:  # now from memory
        same(read_rows(whole, index), rows[index])


@pytest.mark.parametrize("case", CASES)
def test_stored_rows_decode_to_the_values(case, tensors):
    """What conversion copies unchanged: the parts of a quantized tensor, row by row."""
    infos, values = tensors
    recipe, oracle = CASES[case](infos)
    expected = oracle(values)
    array = RecipeArrays().array(recipe)
    parts = {name: read_rows(part, slice(1, 9)) for name, part in stored_arrays(array).items()}
    data = parts.pop("data")
    if isinstance(array.storage, PackedStorage):
        data = quant.dequantize(data, quant.describe(array.storage.scheme, **parts))
    same(data, expected.reshape(-1, expected.shape[-1])[1:9])


def test_vectors(tmp_path):
    bias = np.arange(12, dtype=np.float32)
    lbrx.save(tmp_path / "m.safetensors", {"b": lbrx.tensor(bias, device="cpu")})
    info = formats.read(tmp_path / "m.safetensors").tensors["b"]
    array = RecipeArrays().array(ReorderedHeads("r", info, 2, True))
    wanted = np.array([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11], np.float32)
    same(read_rows(array, slice(0, 1)), wanted[None])
    same(array.numpy(), wanted)


def test_rows_are_read_alone(tmp_path):
    """A range of a reordered stack takes memory for the range, not for the tensor."""
    large = {n: lbrx.tensor(np.zeros((2048, 1024), np.float32), device="cpu") for n in "ab"}
    lbrx.save(tmp_path / "m.safetensors", large)
    infos = formats.read(tmp_path / "m.safetensors").tensors
    heads = tuple(ReorderedHeads(n, infos[n], 8, True) for n in "ab")
    array = RecipeArrays().array(ShiftedTensor("x", TensorStack("s", heads), 1))
    tracemalloc.start()
    try:
        rows = read_rows(array, slice(2000, 2064))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.shape == (64, 1024)
    assert (rows == 1).all()
    assert peak < 6 * rows.nbytes
    assert isinstance(array.storage, RowStorage)
    assert not array.storage.is_made


def test_deflated_arrays_are_inflated_once(tmp_path, monkeypatch):
    values = np.arange(60, dtype=np.float32).reshape(12, 5)
    np.savez_compressed(tmp_path / "m.npz", w=values)
    assert zipfile.ZipFile(tmp_path / "m.npz").infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    calls = []
    inflated = recipe_arrays._inflated
    monkeypatch.setattr(recipe_arrays, "_inflated", lambda s: calls.append(s) or inflated(s))
    info = formats.read(tmp_path / "m.npz").tensors["w"]
    reader = TensorReader()
    for start in range(0, 12, 4):
        rows = slice(start, start + 4)
        same(reader.values(info, rows), values[rows])
        same(reader.read(info, rows)["data"], values[rows])
    assert len(calls) == 1
    reader.forget(info)
    same(reader.values(info, slice(0, 2)), values[:2])
    assert len(calls) == 2
