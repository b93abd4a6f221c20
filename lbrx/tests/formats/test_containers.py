"""NumPy's, PyTorch's and ONNX's files, and folders."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from typing import ClassVar

import numpy as np
import pytest
from format_checks import same
from safetensors.numpy import save_file

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import LazyStorage, ViewStorage

# NumPy


@pytest.mark.parametrize("savez", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
def test_npz(savez, arrays, tmp_path):
    extra = {"fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "folder/a": np.ones(2)}
    savez(tmp_path / "m.npz", **arrays, **extra)
    model = lbrx.open_model(tmp_path / "m.npz")
    assert set(model) == {*arrays, *extra}
    for name, array in {**arrays, **extra}.items():
        same(model[name].numpy(), array)
    expected = ViewStorage if savez is np.savez else LazyStorage
    assert isinstance(model["fortran"].storage, expected)


def test_npz_is_what_numpy_reads(arrays, tmp_path):
    lbrx.save(
        tmp_path / "m.npz", {name: lbrx.tensor(a, device="cpu") for name, a in arrays.items()}
    )
    with np.load(tmp_path / "m.npz") as found:
        for name, array in arrays.items():
            bits = (
                found[name] if array.dtype != dt.bfloat16.numpy else found[name].view(array.dtype)
            )
            same(bits, array)
    model = lbrx.open_model(tmp_path / "m.npz")
    assert all(info.source.offset % 64 == 0 for info in model.files.tensors.values())
    for name, array in arrays.items():
        same(model[name].numpy(), array)


def test_an_empty_npz(tmp_path):
    lbrx.save(tmp_path / "m.npz", {})
    np.savez(tmp_path / "n.npz")
    with np.load(tmp_path / "m.npz") as found:
        assert found.files == []
    assert [len(lbrx.open_model(tmp_path / name)) for name in ("m.npz", "n.npz")] == [0, 0]


def test_npy(arrays, tmp_path):
    for name, array in arrays.items():
        np.save(tmp_path / "file.of.any.name", array)
        model = lbrx.open_model(tmp_path / "file.of.any.name.npy")
        assert list(model) == ["file.of.any.name"], name
        same(model["file.of.any.name"].numpy(), array)


# PyTorch: files are written here with the instructions that torch.save writes.


class _Global:
    def __init__(self, name):
        self.name = name


class _Pickler(pickle._Pickler):
    """Python's pickler with torch's names and storages."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def persistent_id(self, value):
        return value[1] if isinstance(value, tuple) and value[:1] == ("persistent",) else None

    def save_global_record(self, value):
        module, _, name = value.name.rpartition(".")
        self.write(b"c" + module.encode() + b"\n" + name.encode() + b"\n")

    dispatch[_Global] = save_global_record


class _Call:
    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments

    @staticmethod
    def write(pickler, call):
        pickler.save(_Global(call.name))
        pickler.save(call.arguments)
        pickler.write(b"R")


_Pickler.dispatch[_Call] = _Call.write

STORAGES = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}


def torch_view(key, dtype, shape, strides, offset, count):
    storage = ("storage", _Global(f"torch.{STORAGES[dtype]}Storage"), key, "cpu", count)
    hooks = _Call("collections.OrderedDict")
    arguments = ("persistent", storage), offset, shape, strides, False, hooks
    return _Call("torch._utils._rebuild_tensor_v2", *arguments)


def torch_save(path, value, storages):
    import io

    stream = io.BytesIO()
    _Pickler(stream, 2).dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", stream.getvalue())
        archive.writestr("m/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"m/data/{key}", data)


def contiguous(shape):
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def test_pytorch(arrays, tmp_path):
    known = {n: a for n, a in arrays.items() if n[2:] in STORAGES}
    tensors = {
        n: torch_view(str(i), n[2:], a.shape, contiguous(a.shape), 0, a.size)
        for i, (n, a) in enumerate(known.items())
    }
    storages = {str(i): a.tobytes() for i, a in enumerate(known.values())}
    torch_save(tmp_path / "m.bin", tensors, storages)
    model = lbrx.open_model(tmp_path / "m.bin")
    assert (model.format, list(model)) == ("pytorch", list(known))
    for name, array in known.items():
        same(model[name].numpy(), array)
        assert isinstance(model[name].storage, ViewStorage)


def test_pytorch_views_and_nesting(tmp_path):
    data = np.arange(24, dtype=np.float32)
    turned = torch_view("0", "float32", (4, 6), (1, 4), 0, 24)
    part = torch_view("0", "float32", (2, 3), (6, 2), 7, 24)
    value = {
        "model": {"turned": turned, "part": _Call("torch._utils._rebuild_parameter", part, True)},
        "epoch": 3,
        "rates": [0.1, torch_view("0", "float32", (), (), 5, 24), None],
        "empty": torch_view("0", "float32", (0, 3), (3, 1), 0, 24),
        "shared": turned,
    }
    torch_save(tmp_path / "m.pt", value, {"0": data.tobytes()})
    model = lbrx.open_model(tmp_path / "m.pt")
    expected = {
        "model.turned": data.reshape(6, 4).T,
        "model.part": data[7:].reshape(-1)[np.array([[0, 2, 4], [6, 8, 10]])],
        "rates.1": data[5],
        "empty": np.empty((0, 3), np.float32),
        "shared": data.reshape(6, 4).T,
    }
    assert set(model) == set(expected)
    for name, array in expected.items():
        same(model[name].numpy(), np.asarray(array))


def test_one_tensor_of_pytorch(tmp_path):
    torch_save(tmp_path / "w.pt", torch_view("0", "int8", (3,), (1,), 1, 4), {"0": b"\0\1\2\3"})
    same(lbrx.open_model(tmp_path / "w.pt")["w"].numpy(), np.array([1, 2, 3], np.int8))


# ONNX


def test_onnx(arrays, tmp_path):
    onnx = pytest.importorskip(
        "onnx", reason="the onnx package, which writes the files, is missing"
    )
    from onnx import TensorProto, helper, numpy_helper

    known = {n: a for n, a in arrays.items() if a.dtype != dt.bfloat16.numpy}
    tensors = [numpy_helper.from_array(array, name) for name, array in known.items()]
    typed = {
        "floats": (TensorProto.FLOAT, np.array([1.5, -2, 3], np.float32)),
        "doubles": (TensorProto.DOUBLE, np.array([1.5, -2])),
        "longs": (TensorProto.INT64, np.array([-1, 2**40, 3])),
        "bytes": (TensorProto.INT8, np.array([-1, 2, 127], np.int8)),
        "ulongs": (TensorProto.UINT64, np.array([1, 2**63], np.uint64)),
        "flags": (TensorProto.BOOL, np.array([True, False])),
    }
    tensors += [helper.make_tensor(n, k, a.shape, a.tolist()) for n, (k, a) in typed.items()]
    graph = helper.make_graph([], "g", [], [], tensors)
    model = helper.make_model(graph, producer_name="test")
    helper.set_model_props(model, {"license": "none"})
    onnx.save(model, tmp_path / "m.onnx")
    found = lbrx.open_model(tmp_path / "m.onnx")
    assert (found.format, found.metadata["producer_name"], found.metadata["license"]) == (
        "onnx",
        "test",
        "none",
    )
    expected = {**known, **{name: array for name, (_, array) in typed.items()}}
    assert set(found) == set(expected)
    for name, array in expected.items():
        same(found[name].numpy(), array)
    onnx.save(
        model, tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0
    )
    found = lbrx.open_model(tmp_path / "e.onnx")
    for name, array in known.items():
        same(found[name].numpy(), array)


# Folders


def test_a_folder(tmp_path):
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    files = {
        "config.json": {"model_type": "llama", "n": 1},
        "generation_config.json": {"temperature": 0.5},
        "tokenizer.json": {},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    model = lbrx.open_model(tmp_path)
    assert (model.config["n"], model.generation_config["temperature"]) == (1, 0.5)
    assert model.tokenizer == tmp_path / "tokenizer.json"
    assert model.path == tmp_path
    same(model["w"].numpy(), np.ones(3, np.float32))


@pytest.mark.parametrize("shards", [None, 100])
def test_a_file_of_a_folder(shards, tmp_path):
    """A file of weights has the configuration and the tokenizer beside it."""
    tensors = {f"w{n}": np.ones((8, 8), np.float32) for n in range(2)}
    config = {"model_type": "llama", "n": 1}
    lbrx.save(tmp_path, tensors, format="safetensors", config=config, max_shard_size=shards)
    (tmp_path / "tokenizer.json").write_text("{}")
    file = tmp_path / ("model.safetensors.index.json" if shards else "model.safetensors")
    model = lbrx.open_model(file)
    assert (model.path, model.config, model.tokenizer) == (
        file,
        config,
        tmp_path / "tokenizer.json",
    )
    assert set(model) == set(tensors)


@pytest.mark.parametrize("content", ["{// no JSON", "[]", '{"theme": "dark"}'])
def test_a_file_beside_the_settings_of_something_else(content, tmp_path):
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        (tmp_path / name).write_text(content)
    model = lbrx.open_model(tmp_path / "model.safetensors")
    assert (model.config, model.generation_config, model.tokenizer) == ({}, {}, None)
    assert list(lbrx.load(tmp_path / "model.safetensors")) == ["w"]


def test_files_without_an_index(tmp_path):
    for name in "ab":
        save_file({name: np.ones(3, np.float32)}, tmp_path / f"{name}.safetensors")
    assert set(lbrx.open_model(tmp_path)) == {"a", "b"}
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "c.safetensors")
    with pytest.raises(
        lbrx.FormatError, match=r"'a': is in two files, one is c.safetensors: open one"
    ):
        lbrx.open_model(tmp_path)


def test_a_shard_that_is_missing(tmp_path):
    for n in (1, 3):
        save_file({f"w{n}": np.ones(3, np.float32)}, tmp_path / f"m-0000{n}-of-00003.safetensors")
    with pytest.raises(lbrx.FormatError, match=r"but m-00002-of-00003\.safetensors is missing"):
        lbrx.open_model(tmp_path)
    save_file({"w2": np.ones(3, np.float32)}, tmp_path / "m-00002-of-00003.safetensors")
    assert set(lbrx.open_model(tmp_path)) == {"w1", "w2", "w3"}


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a":' * 9999], ids=["cut", "list", "deep"])
def test_a_broken_config(content, tmp_path):
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(lbrx.FormatError, match=r"config.json: JSON: "):
        lbrx.open_model(tmp_path)


def test_no_weights(tmp_path):
    with pytest.raises(lbrx.FormatError, match=r"has no weights: none of model.safetensors"):
        lbrx.open_model(tmp_path)
    with pytest.raises(lbrx.FormatError, match="no such file or folder"):
        lbrx.open_model(tmp_path / "nothing")


# MLX


def mlx_decoded(weight, scales, biases, bits, group):
    """MLX's affine layout, bit by bit: element i of a row starts at bit i * bits."""
    stream = np.unpackbits(weight.view(np.uint8), axis=-1, bitorder="little")
    codes = stream.reshape(*weight.shape[:-1], -1, bits)
    values = (codes * (1 << np.arange(bits))).sum(-1).reshape(*scales.shape, group)
    return (values * scales[..., None].astype("f4") + biases[..., None].astype("f4")).reshape(
        *scales.shape[:-1], -1
    )


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (2, 32), (3, 64), (6, 32), (8, 128)])
def test_mlx(bits, group, rng, tmp_path):
    shape = (6, 256)
    words = rng.integers(0, 2**32, (shape[0], shape[1] * bits // 32), np.uint32)
    scales, biases = rng.standard_normal((2, shape[0], shape[1] // group)).astype(np.float16)
    tensors = {
        "model.layers.0.mlp.up_proj.weight": words,
        "model.layers.0.mlp.up_proj.scales": scales,
        "model.layers.0.mlp.up_proj.biases": biases,
        "model.norm.weight": np.ones(6, np.float16),
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "mlx"})
    settings = {
        "group_size": 128,
        "bits": 8,
        "model.layers.0.mlp.up_proj": {"group_size": group, "bits": bits},
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization": settings}))
    model = lbrx.open_model(tmp_path)
    assert (model.format, set(model)) == ("mlx", set(tensors))
    same(model["model.layers.0.mlp.up_proj.weight"].numpy(), words)
    canonical = model.canonical()
    assert set(canonical) == {"model.layers.0.mlp.up_proj.weight", "model.norm.weight"}
    weight = canonical["model.layers.0.mlp.up_proj.weight"]
    assert (weight.shape, weight.metadata.quantization) == (shape, f"mlx:{bits}:{group}")
    expected = mlx_decoded(words, scales, biases, bits, group)
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)
    lbrx.save(tmp_path / "wide", canonical, format="safetensors", config=canonical.config)
    assert lbrx.open_model(tmp_path / "wide").format == "safetensors"
    same(lbrx.open_model(tmp_path / "wide")[weight.metadata.name].numpy(), weight.numpy())
    lbrx.save(tmp_path / "again", canonical, format="mlx", config={"model_type": "llama"})
    again = lbrx.open_model(tmp_path / "again")
    assert again.metadata == {"format": "mlx"}
    assert again.config["quantization"] == {"group_size": group, "bits": bits, "mode": "affine"}
    for name, array in tensors.items():
        same(again[name].numpy(), array)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 64, "bits": 7}, "config.json quantization: bits 7"),
        (
            {"group_size": 32, "bits": 4},
            "'w.weight': shape: shape .* is not 4 bits in groups of 32",
        ),
        (
            {"group_size": 64, "bits": 4, "mode": "mxfp4"},
            "bits 4, group_size 64, mode 'mxfp4' are not supported",
        ),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "'w.weight': "),
    ],
)
def test_mlx_that_does_not_fit(settings, message, tmp_path):
    tensors = {
        "w.weight": np.zeros((2, 8), np.uint32),
        "w.scales": np.zeros((2, 1), np.float32),
        "w.biases": np.zeros((2, 1), np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization": settings}))
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.open_model(tmp_path).canonical()


def test_content_decides_not_the_name(tmp_path):
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "m.gguf")
    assert lbrx.open_model(tmp_path / "m.gguf").format == "safetensors"
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    (tmp_path / "m.npz").rename(tmp_path / "m.safetensors")
    assert lbrx.open_model(tmp_path / "m.safetensors").format == "npz"
    (tmp_path / "m.npz").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    assert lbrx.open_model(tmp_path / "m.npz").format == "gguf"
