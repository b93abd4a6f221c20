"""GGUF, compared with the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from device_memory import shares_files
from gguf import GGMLQuantizationType as Kind

import lbrx
from lbrx.files.formats.containers.gguf import MetadataArray

ROWS = (3, 512)
QUANTIZED = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.BF16, Kind.TQ2_0]


def write(path, tensors, **options):
    """Write a file with the package: arrays, or (bytes, type)."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_uint32("a.u32", 7)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 1.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "hällo")
    writer.add_array("a.texts", ["x", "", "yß"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.reals", [0.5, -2.0])
    writer.add_array("a.flags", [True, False])
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=value[1])
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


METADATA = {
    "general.architecture": "llama",
    "a.u32": 7,
    "a.i64": -(2**40),
    "a.f32": 1.5,
    "a.bool": True,
    "a.text": "hällo",
    "a.texts": ["x", "", "yß"],
    "a.numbers": [1, -2, 3],
    "a.reals": [0.5, -2.0],
    "a.flags": [True, False],
}


@pytest.fixture
def tensors(rng):
    values = rng.standard_normal(ROWS).astype(np.float32)
    plain = {
        "f32": values,
        "f16": values.astype(np.float16),
        "i8": rng.integers(-9, 9, (5,), np.int8),
        "i32": rng.integers(-9, 9, (2, 3, 4, 5), np.int32),
        "f64": rng.standard_normal((1, 3)),
    }
    packed = {kind.name.lower(): (gguf.quantize(values, kind), kind) for kind in QUANTIZED}
    return {**plain, **packed}


def decoded(value):
    return gguf.dequantize(*value) if isinstance(value, tuple) else value


def check(model, tensors):
    assert list(model) == list(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(model[name].numpy().astype(np.float64), decoded(value))
        if isinstance(value, np.ndarray):
            assert model[name].numpy().dtype == value.dtype
        elif value[1] is not Kind.BF16:
            assert model[name].metadata.quantization == name


def test_reads_what_the_package_writes(tensors, tmp_path):
    write(tmp_path / "a", tensors)
    model = lbrx.open_model(tmp_path / "a")
    assert model.format == "gguf"
    assert dict(model.metadata) == METADATA
    check(model, tensors)


@pytest.mark.parametrize("version", [2, 3])
def test_versions(version, tensors, tmp_path):
    write(tmp_path / "a", tensors)
    data = bytearray((tmp_path / "a").read_bytes())
    data[4] = version
    (tmp_path / "a").write_bytes(data)
    check(lbrx.open_model(tmp_path / "a"), tensors)


def test_writes_what_the_package_reads(tensors, tmp_path):
    """Blocks that the package wrote are copied unchanged."""
    write(tmp_path / "a", tensors)
    model = lbrx.open_model(tmp_path / "a")
    lbrx.save(tmp_path / "b.gguf", model, METADATA)
    reader = gguf.GGUFReader(tmp_path / "b.gguf")
    assert [tensor.name for tensor in reader.tensors] == list(tensors)
    for tensor in reader.tensors:
        value = tensors[tensor.name]
        wanted = value[1] if isinstance(value, tuple) else None
        assert wanted in (None, tensor.tensor_type)
        found = gguf.dequantize(tensor.data, tensor.tensor_type) if wanted else tensor.data
        np.testing.assert_array_equal(found, decoded(value))
    for key, value in METADATA.items():
        assert reader.get_field(key).contents() == value
    check(lbrx.open_model(tmp_path / "b.gguf"), tensors)


def test_a_copy_has_every_byte(smollm2, tmp_path):
    model = lbrx.open_model(smollm2)
    lbrx.save(tmp_path / "copy.gguf", model, model.metadata)
    assert (tmp_path / "copy.gguf").read_bytes() == smollm2.read_bytes()


def test_a_copy_has_every_type(tmp_path):
    """Numbers of every width, nested arrays, and text that is not UTF-8."""
    numbers = {"u8": 1, "i8": -1, "u16": 2, "i16": 2, "i32": 3, "u64": 4, "i64": 4, "f64": 1e300}
    types = {"u": "uint", "i": "int", "f": "float"}
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "unknown")
    for name, value in numbers.items():
        getattr(writer, f"add_{types[name[0]]}{name[1:]}")(name, value)
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_array("texts", [b"\xff\xfe", b"a"])
    writer.add_tensor("w", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = lbrx.open_model(tmp_path / "a.gguf")
    assert {name: model.metadata[name] for name in numbers} == numbers
    lbrx.save(tmp_path / "b.gguf", model, model.metadata)
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def test_rows_of_blocks(tensors, tmp_path):
    """Whole rows of a quantized tensor are written as blocks; other views as values."""
    write(tmp_path / "a", tensors)
    w = lbrx.open_model(tmp_path / "a")["q4_0"]
    views = {"rows": w[1:], "one": w[2], "columns": w[:, 32:64], "turned": w.T, "steps": w[::2]}
    lbrx.save(tmp_path / "b.gguf", views)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "b.gguf").tensors}
    assert {n for n, t in found.items() if t.tensor_type is Kind.Q4_0} == {"rows", "one"}
    for name, view in views.items():
        data = gguf.dequantize(found[name].data, found[name].tensor_type)
        np.testing.assert_array_equal(data, view.numpy())


@shares_files
def test_a_device_shares_the_whole_file(smollm2):
    """All tensors, quantized ones too, are ranges of one buffer of the device."""
    from lbrx.metal import context

    model = lbrx.open_model(smollm2)
    norm = model["output_norm.weight"].numpy()
    blocks = model["blk.0.ffn_up.weight"].storage.parts["data"].numpy()
    shared = [context().share(array) for array in (norm, blocks)]
    assert shared[0].block is shared[1].block
    for buffer, array in zip(shared, (norm, blocks), strict=True):
        assert buffer.array().tobytes() == array.tobytes()


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment(alignment, tmp_path):
    tensors = {"a": lbrx.ones(3, device="cpu"), "b": lbrx.zeros((2, 5), device="cpu")}
    lbrx.save(tmp_path / "a.gguf", tensors, {"general.alignment": alignment})
    model = lbrx.open_model(tmp_path / "a.gguf")
    assert all(info.source.offset % alignment == 0 for info in model.files.tensors.values())
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
        np.testing.assert_array_equal(model[name].numpy(), tensor.numpy())


def test_split_files(tmp_path):
    tensors = {f"t{i}": np.full((4,), i, np.float32) for i in range(5)}
    write(tmp_path / "m.gguf", tensors, split_max_tensors=2)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for path in (*files, tmp_path):
        model = lbrx.open_model(path)
        check(model, tensors)
        assert model.metadata["a.text"] == "hällo"
    write(tmp_path / "other.gguf", {"x": np.ones(4, np.float32)})
    with pytest.raises(
        lbrx.FormatError, match=r"m-00001-of-00003.gguf and other.gguf are two models"
    ):
        lbrx.open_model(tmp_path)


def test_a_large_vocabulary_is_not_decoded(tmp_path):
    tokens = [f"token {i} ▁ü" for i in range(150_000)]
    writer = gguf.GGUFWriter(tmp_path / "a", "llama")
    writer.add_token_list(tokens)
    writer.add_token_merges(tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = lbrx.open_model(tmp_path / "a")
    found = model.metadata["tokenizer.ggml.tokens"]
    assert isinstance(found, MetadataArray)
    start = ", ".join(map(repr, tokens[:8]))
    assert repr(found) == f"[{start}, ... {len(found):,} values]"
    assert found._values is None
    assert (len(found), found[149_999]) == (150_000, tokens[-1])
    assert list(found) == tokens


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"w": lbrx.ones(3, "uint8", "cpu")}, {}, "'w': GGUF has no type for U8: convert it"),
        ({"w": lbrx.ones((1, 1, 1, 1, 2), device="cpu")}, {}, "'w': shape .* more than GGUF's 4"),
        ({"w" * 64: lbrx.ones(3, device="cpu")}, {}, "names have at most 63 bytes"),
        ({}, {"a": object()}, "metadata 'a': GGUF does not store values of type object"),
        ({}, {"a": ["x", 1]}, "metadata 'a': "),
        ({}, {"a": 1 << 70}, "metadata 'a': an integer of 71 bits does not fit 64 bits"),
        ({}, {"a": [-1, 1 << 63]}, "metadata 'a': a list does not fit int64"),
        ({}, {"a": 1e300}, "metadata 'a': 1e.300 does not fit float32"),
        ({}, {"split.no": -1}, "metadata 'split.no': -1 does not fit uint16"),
        ({}, {"general.alignment": 0}, "0 is not a power of two"),
        ({}, {"general.alignment": "x"}, "'x' is not a power of two"),
        (
            {"\ud800": lbrx.ones(3, device="cpu")},
            {},
            "is a name with half of a surrogate pair, which no file can store",
        ),
    ],
)
def test_what_cannot_be_written(tensors, metadata, message, tmp_path):
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.save(tmp_path / "a.gguf", tensors, metadata)
    assert list(tmp_path.iterdir()) == []
