"""A file format that is registered in a process: that of the toy distribution."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from format_checks import same
from lbrx_toy.files import MAGIC, TOYS

import lbrx
from lbrx.convert import convert
from lbrx.convert.contents import contents
from lbrx.files import formats
from lbrx.files.formats import architecture_tables as tables
from lbrx.files.formats.conventions import Conventions
from lbrx.files.formats.recipe import renamed

del formats.FORMATS["toys"]  # the import has registered it


@pytest.fixture
def toys():
    yield formats.register(TOYS)
    del formats.FORMATS["toys"]


def test_files_of_it(toys, tmp_path, rng):
    values = rng.standard_normal((4, 64)).astype(np.float32)
    tensors = {
        "a": lbrx.tensor(np.arange(6, dtype=np.int16).reshape(2, 3), device="cpu"),
        "q": lbrx.quantize(lbrx.tensor(values, device="cpu"), "q8_0"),
        "k": lbrx.quantize(lbrx.tensor(values, device="cpu"), "q4_0"),
    }
    lbrx.save(tmp_path / "m.toys", tensors)
    for path in (tmp_path / "m.toys", tmp_path):
        found = lbrx.load(path)
        assert {n: t.metadata.quantization for n, t in found.items()} == {
            "a": None,
            "q": "q8_0",
            "k": None,
        }
        for name, tensor in tensors.items():
            same(found[name].numpy(), tensor.numpy())
    assert lbrx.open_model(tmp_path).format == "toys"
    with pytest.raises(lbrx.FormatError, match="toys store no metadata"):
        lbrx.save(tmp_path / "n.toys", tensors, {"a": "b"})
    with pytest.raises(lbrx.FormatError, match="'toys' exists already"):
        formats.register(TOYS)


def test_conversion_to_and_from_it(toys, tmp_path, rng):
    values = rng.standard_normal((40, 96)).astype(np.float32)
    lbrx.save(tmp_path / "m.safetensors", {"w": lbrx.tensor(values, device="cpu")})
    convert(tmp_path / "m.safetensors", tmp_path / "m.toys", device="cpu")
    convert(tmp_path / "m.toys", tmp_path / "m.npz", device="cpu")
    same(lbrx.load(tmp_path / "m.npz")["w"].numpy(), values)


def named_otherwise(tensors, config):
    names = {name: f"{config['model_type']}/{name}" for name in tensors}
    return {names[name]: renamed(recipe, names[name]) for name, recipe in tensors.items()}


def named_as_usual(files):
    return {name.partition("/")[2]: recipe for name, recipe in files.tensors.items()}


OTHERS = Conventions(
    config=lambda files: {"model_type": next(iter(files.tensors)).partition("/")[0]},
    tensors=named_as_usual,
    rename=named_otherwise,
    quantization=lambda files: f"{len(files.tensors)} tensors",
)


@pytest.fixture
def others():
    yield formats.register(replace(TOYS, conventions=OTHERS))
    del formats.FORMATS["toys"]


def test_its_conventions(others, tmp_path, rng):
    """Names, settings and quantization are those that the format says, wherever they are asked."""
    values = rng.standard_normal((4, 8)).astype(np.float32)
    lbrx.save(tmp_path / "hf", {"w": values}, format="safetensors", config={"model_type": "m"})
    convert(tmp_path / "hf", tmp_path / "m.toys", device="cpu")
    assert list(lbrx.load(tmp_path / "m.toys")) == ["m/w"]
    model = lbrx.open_model(tmp_path / "m.toys")
    same(model.canonical()["w"].numpy(), values)
    found = contents(model.files)
    assert (found.architecture, found.quantization) == ("m", "1 tensors")
    convert(tmp_path / "m.toys", tmp_path / "back", device="cpu")
    same(lbrx.load(tmp_path / "back")["w"].numpy(), values)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "m"


@pytest.mark.parametrize("beside", [False, True])
def test_its_neighbours(tmp_path, beside):
    formats.register(replace(TOYS, has_neighbours=beside))
    try:
        lbrx.save(tmp_path / "m.toys", {"w": lbrx.ones(2, device="cpu")})
        (tmp_path / "config.json").write_text('{"model_type": "m"}')
        assert lbrx.open_model(tmp_path / "m.toys").config == (
            {"model_type": "m"} if beside else {}
        )
    finally:
        del formats.FORMATS["toys"]


def test_without_it(tmp_path):
    (tmp_path / "m.toys").write_bytes(MAGIC + b"{}\n")
    with pytest.raises(
        lbrx.FormatError, match=r"starts with b'TOYS{}.*: it is not a file of gguf, pytorch"
    ):
        lbrx.open_model(tmp_path / "m.toys")
    with pytest.raises(lbrx.FormatError, match=r"m.toys does not end in .gguf, .npz, .safetensors"):
        lbrx.save(tmp_path / "m.toys", {})


def test_names_of_an_architecture_are_registered_once():
    with pytest.raises(lbrx.FormatError, match="'llama' exists already"):
        tables.register(tables.ARCHITECTURES["llama"])
