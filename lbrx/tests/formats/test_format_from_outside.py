"""A file format and an architecture's table that this file adds to the package's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from format_checks import same

import lbrx
from lbrx import formats
from lbrx.convert import convert
from lbrx.formats import ENCODINGS, FileFormat, FileRange, ModelFiles, TensorInfo, translate
from lbrx.formats import architecture_tables as tables
from lbrx.formats.architecture_tables import Architecture
from lbrx.formats.layout import FileLayout, Placed

MAGIC = b"TOYS"


def read(path):
    """A line of JSON with the place of each tensor, then the tensors."""
    with path.open("rb") as file:
        header = json.loads(file.readline()[len(MAGIC) :])
    if not isinstance(header, dict):
        raise lbrx.FormatError(f"{path}: header: is not an object")
    tensors = {
        name: TensorInfo(name, ENCODINGS[kind], tuple(shape), FileRange(path, at, nbytes))
        for name, (kind, shape, at, nbytes) in header.items()
    }
    return ModelFiles(path, "toys", tensors)


def layout(path, tensors, metadata):
    if metadata:
        raise lbrx.FormatError(f"{path}: toys store no metadata")
    at, placed, entries = 4096, [], {}
    for tensor in tensors:
        placed.append(Placed(tensor, at))
        entries[tensor.name] = (tensor.encoding.name, tensor.shape, at, tensor.nbytes)
        at += tensor.nbytes
    head = MAGIC + json.dumps(entries).encode() + b"\n"
    return FileLayout(at, tuple(placed), lambda file: [(0, head)])


TOYS = FileFormat(
    "toys",
    lambda path, head: head.startswith(MAGIC),
    read,
    patterns=("*.toys",),
    extension=".toys",
    layout=layout,
    holds=lambda encoding: encoding == "Q8_0",
)


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


def test_without_it(tmp_path):
    (tmp_path / "m.toys").write_bytes(MAGIC + b"{}\n")
    with pytest.raises(
        lbrx.FormatError, match=r"starts with b'TOYS{}.*: it is not a file of gguf, pytorch"
    ):
        lbrx.open_model(tmp_path / "m.toys")
    with pytest.raises(lbrx.FormatError, match=r"m.toys does not end in .gguf, .npz, .safetensors"):
        lbrx.save(tmp_path / "m.toys", {})


def test_a_table_of_it(tmp_path, rng):
    """Names and settings of an architecture, from config.json to GGUF and back."""
    table = tables.table
    tables.register(
        Architecture(
            model_type="toy",
            gguf="toyllm",
            class_name="ToyForCausalLM",
            rules=(*table.ends(), *table.NORMS, *table.attention(in_pairs=True), *table.MLP),
            settings=(*table.SIZES, *table.HEAD_SIZES, *table.VOCABULARY),
            aliases=("toy_vision",),
        )
    )
    try:
        heads, width = 2, 8
        weight = rng.standard_normal((width, width)).astype(np.float32)
        config = {"model_type": "toy_vision", "num_hidden_layers": 1, "hidden_size": width}
        config |= {"num_attention_heads": heads, "num_key_value_heads": heads}
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors = {name: lbrx.tensor(weight, device="cpu")}
        lbrx.save(tmp_path / "hf", tensors, format="safetensors", config=config)
        model = lbrx.open_model(tmp_path / "hf")
        recipes = translate.to_gguf(translate.to_huggingface(model.files), config)
        made = lbrx.StoredModel(model.files, recipes)
        pairs = weight.reshape(heads, 2, -1, width).swapaxes(1, 2).reshape(width, width)
        same(made["blk.0.attn_q.weight"].numpy(), pairs)
        lbrx.save(tmp_path / "m.gguf", made, {"general.architecture": "toyllm"})
        metadata = {"toyllm.attention.head_count": heads, "general.architecture": "toyllm"}
        lbrx.save(tmp_path / "m.gguf", made, {**metadata, "toyllm.attention.head_count_kv": heads})
        back = lbrx.open_model(tmp_path / "m.gguf")
        assert back.config["model_type"] == "toy"
        same(back.canonical()[name].numpy(), weight)
        with pytest.raises(lbrx.FormatError, match="'toy' exists already"):
            tables.register(tables.ARCHITECTURES["toy"])
    finally:
        tables.ARCHITECTURES.pop("toy")
