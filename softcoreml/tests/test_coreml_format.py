"""The reader of packages: what it reads, and that malformed files are refused without harm."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coreml_models import counter, dense, two_functions
from coremltools.proto import MIL_pb2, Model_pb2
from seeds import SEED

import softcoreml
from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.format.package import read_memory, specification_path
from softcoreml.format.packing import pack, unpack
from softcoreml.format.read import read_model
from softcoreml.format.weights import FolderWeights, WeightFile
from softcoreml.format.wire import Field, Message, decode


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("format") / "dense.mlpackage")


def message(**fields: Any) -> Message:
    made = Message("M")
    made.define(
        {number: Field(name, kind, repeated) for name, (number, kind, repeated) in fields.items()}
    )
    return made


def test_the_wire_format_is_that_of_the_protobuf_package() -> None:
    spec = Model_pb2.Model(specificationVersion=9)
    one = spec.description.input.add(name="ünïcode", shortDescription="s")
    one.type.multiArrayType.shape.extend([1, 2**40, 300])
    one.type.multiArrayType.dataType = 65568
    one.type.multiArrayType.floatDefaultValue = 0.5
    ints = spec.mlProgram.attributes["a"].immediateValue.tensor.ints.values
    ints.extend([-1, 0, 2**31 - 1, -(2**31)])
    spec.mlProgram.attributes["a"].type.tensorType.dataType = 23
    from softcoreml.format.schema import MODEL

    found = decode(memoryview(spec.SerializeToString()), MODEL)
    array = found["description"]["input"][0]["type"]["multiArrayType"]
    assert found["description"]["input"][0]["name"] == "ünïcode"
    assert np.concatenate(array["shape"]).tolist() == [1, 2**40, 300]
    assert array["floatDefaultValue"] == 0.5
    tensor = found["mlProgram"]["attributes"][0]["value"]["immediateValue"]["tensor"]
    assert tensor["ints"]["values"][0].tolist() == [-1, 0, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize(("sizes", "given", "expected"), [([0], [], []), ([2], [7, 8], [7, 8])])
def test_constants_may_be_empty(sizes: list[int], given: list[int], expected: list[int]) -> None:
    value = MIL_pb2.Value()
    value.type.tensorType.dataType = MIL_pb2.INT32
    value.type.tensorType.rank = len(sizes)
    for size in sizes:
        value.type.tensorType.dimensions.add().constant.size = size
    value.immediateValue.tensor.ints.values.extend(given)
    spec = Model_pb2.Model(specificationVersion=8)
    spec.description.output.add(name="y").type.int64Type.SetInParent()
    function = spec.mlProgram.functions["main"]
    function.opset = "CoreML7"
    block = function.block_specializations["CoreML7"]
    one = block.operations.add(type="const")
    one.outputs.add(name="y").type.CopyFrom(value.type)
    one.attributes["val"].CopyFrom(value)
    block.outputs.append("y")
    found = softcoreml.LoadedModel(read_memory(spec.SerializeToString(), {})).predict({})["y"]
    assert found.tolist() == expected
    block.operations[0].attributes["val"].type.tensorType.dimensions[0].constant.size = 5
    with pytest.raises(ModelError, match="a constant of type"):
        read_memory(spec.SerializeToString(), {})


def test_numbers_of_a_repeated_field_may_be_packed_or_not() -> None:
    table = message(n=(1, "int32", True))
    separate = decode(memoryview(b"\x08\x05\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), table)
    packed = decode(memoryview(b"\x0a\x0b\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), table)
    assert [x for part in separate["n"] for x in part] == [5, -1]
    assert [x for part in packed["n"] for x in part] == [5, -1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x08", "ends inside a number"),
        (b"\x0a\x05ab", "5 bytes at byte 2 where 2 are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bytes at byte"),
        (b"\x08" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x0b\x00", "wire type 3"),
        (b"\x00\x00", "field number 0"),
        (b"\x0a\x02\xff\xff", "ends inside a number"),
        (b"\x15\x00\x00", "4 bytes at byte 1 where 2 are left"),
        (b"\x12\x02\xff\xfe", "not UTF-8"),
        (b"\x10\x01", "wire type 0 instead of 2"),
    ],
)
def test_malformed_wire_data_is_refused(data: bytes, says: str) -> None:
    table = message(n=(1, "int32", True), s=(2, "string", False))
    with pytest.raises(ModelError, match=says):
        decode(memoryview(data), table)


def test_messages_nested_without_end_are_refused() -> None:
    table = Message("Loop")
    table.define({1: Field("inner", table)})
    data = b""
    for _ in range(200):
        size = len(data)
        data = (
            b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
        )
    with pytest.raises(ModelError, match="nested more than"):
        decode(memoryview(data), table)


def test_a_model_that_is_cut_anywhere_is_refused(package: Path) -> None:
    path = specification_path(package)
    data, weights = path.read_bytes(), (path.parent / "weights" / "weight.bin").read_bytes()
    files = {"weights/weight.bin": weights}
    whole = softcoreml.LoadedModel(read_memory(data, files))
    assert whole.description.inputs[0].name == "x"
    for size in range(0, len(data), 7):
        with pytest.raises(ModelError):
            softcoreml.LoadedModel(read_memory(data[:size], files))


def changed(data: bytes, source: random.Random) -> bytes:
    """The data with a few bytes replaced, removed or added."""
    made = bytearray(data)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(made))
        kind = source.random()
        if kind < 0.7:
            made[place] = source.randrange(256)
        elif kind < 0.85:
            del made[place : place + source.randint(1, 4)]
        else:
            made[place:place] = source.randbytes(source.randint(1, 4))
    return bytes(made)


@pytest.mark.parametrize("rounds", [300, pytest.param(20_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("make", [counter, dense])
def test_random_changes_of_a_model_raise_errors_of_this_package_only(
    tmp_path: Path, make: Callable[[Path], Path], rounds: int
) -> None:
    path = specification_path(make(tmp_path / "m.mlpackage"))
    file = path.parent / "weights" / "weight.bin"
    data, weights = path.read_bytes(), file.read_bytes() if file.exists() else b""
    inputs = {"x": np.ones((2, 32) if make is counter else (3, 12))}
    source = random.Random(SEED)
    refused = 0
    for number in range(rounds):
        part = changed(data, source) if number % 5 else data
        blobs = changed(weights[:256], source) + weights[256:] if weights else b""
        try:
            model = softcoreml.LoadedModel(read_memory(part, {"weights/weight.bin": blobs}))
            model.predict(inputs, model.new_states())
        except softcoreml.SoftCoreMLError:
            refused += 1
    assert refused > rounds / 4


@pytest.mark.parametrize(
    ("dtype", "values", "packed"),
    [
        ("uint3", [0, 1, 2, 3, 4, 5, 6, 7, 1], "88c6fa01"),
        ("int4", [-1, 2, -3, -8, 7], "2f8d07"),
        ("uint1", [1, 0, 0, 0, 0, 0, 0, 0, 1, 1], "0103"),
        ("uint2", [0, 1, 2, 3, 3], "e403"),
        ("uint4", [15, 1, 8], "1f08"),
        ("uint6", [63, 0, 33], "3f1002"),
    ],
)
def test_values_under_a_byte(dtype: str, values: list[int], packed: str) -> None:
    data = np.frombuffer(bytes.fromhex(packed), np.uint8)
    assert unpack(data, dtype, len(values)).tolist() == values
    assert pack(np.array(values), dtype).tobytes() == data.tobytes()


def blob(code: int, data: bytes, **changed: int) -> bytes:
    """A weight file with one record at offset 64."""
    fields = {"sentinel": 0xDEADBEEF, "code": code, "size": len(data), "offset": 128} | changed
    record = struct.pack("<IIQQQ", *fields.values(), 0).ljust(64, b"\0")
    return struct.pack("<II", 1, 2).ljust(64, b"\0") + record + data


def test_weights_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    path.write_bytes(blob(2, np.arange(6, dtype="<f4").tobytes()))
    file = WeightFile(path)
    array = file.array(mil.TensorType("fp32", (2, 3)), 64)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.shares_memory(array, file._bytes)
    assert not array.flags.writeable
    path.unlink()
    assert array.sum() == 15


def test_weights_reach_operations_without_a_copy(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = softcoreml.load(package)
    seen = {}

    def spy(**given: Any) -> Any:
        seen.update(given)
        return NotImplemented

    remove = softcoreml.accelerate("linear", spy)
    model.predict({"x": np.ones((3, 12), np.float32)})
    remove()
    weights = model.file.weights
    assert isinstance(weights, FolderWeights)
    (file,) = weights._files.values()
    assert np.shares_memory(seen["weight"], file._bytes)


@pytest.mark.parametrize(
    ("kind", "offset", "file", "says"),
    [
        (mil.TensorType("fp32", (2,)), 64, blob(2, b"\0" * 4), "4 bytes at offset 64"),
        (mil.TensorType("fp32", (1,)), 64, blob(1, b"\0" * 4), "fp16 at offset 64 instead of fp32"),
        (mil.TensorType("fp32", (1,)), 0, blob(2, b"\0" * 4), "no record begins at offset 0"),
        (mil.TensorType("fp32", (1,)), 1 << 60, blob(2, b"\0" * 4), "no record at offset"),
        (mil.TensorType("fp32", (1,)), 64, blob(99, b"\0" * 4), "unknown data type 99"),
        (mil.TensorType("fp32", (1,)), 64, blob(2, b"\0" * 4, offset=130), "names 4 bytes at 130"),
        (mil.TensorType("fp32", (1,)), 64, blob(2, b"\0" * 4, offset=2**63), "names 4 bytes"),
        (mil.TensorType("fp32", (2**40,)), 64, blob(2, b"", size=2**42), "names"),
        (mil.TensorType("fp32", (1,)), 64, b"", "no record at offset 64 of 0"),
    ],
)
def test_malformed_weight_files_are_refused(
    tmp_path: Path, kind: mil.TensorType, offset: int, file: bytes, says: str
) -> None:
    path = tmp_path / "weight.bin"
    path.write_bytes(file)
    with pytest.raises(ModelError, match=says):
        WeightFile(path).array(kind, offset)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "@model_path/../../secret"])
def test_weights_outside_the_model_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(blob(2, b"\0" * 4))
    inside = tmp_path / "model"
    inside.mkdir()
    with pytest.raises(ModelError, match="outside the model's folder"):
        FolderWeights(inside).array(mil.TensorType("fp32", (1,)), mil.Blob(name, 64))


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not an object"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "does not name a root model"),
        ({"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../x"}}}, "leaves"),
        ({"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "x"}}}, "cannot read"),
    ],
)
def test_malformed_manifests_are_refused(tmp_path: Path, manifest: Any, says: str) -> None:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (tmp_path / "Manifest.json").write_text(text)
    with pytest.raises(ModelError, match=says):
        read_model(tmp_path)


def test_other_kinds_of_models_are_named() -> None:
    spec = Model_pb2.Model(specificationVersion=4)
    spec.neuralNetwork.layers.add(name="l")
    with pytest.raises(ModelError, match="neuralNetwork: softcoreml runs models of type mlProgram"):
        read_memory(spec.SerializeToString(), {})


def test_missing_and_empty_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model at"):
        softcoreml.load(tmp_path / "none.mlpackage")
    (tmp_path / "empty.mlmodel").write_bytes(b"")
    with pytest.raises(ModelError, match="is empty"):
        softcoreml.load(tmp_path / "empty.mlmodel")


def test_functions_of_a_model_share_their_weights(tmp_path: Path) -> None:
    path = two_functions(tmp_path / "two.mlpackage")
    x = np.ones((4, 40), np.float32)
    plus, times = softcoreml.load(path), softcoreml.load(path, "times")
    shared = times.predict({"x": x})["out"]
    np.testing.assert_array_equal(plus.predict({"x": x})["out"], shared + 1)
    file = specification_path(path).parent / "weights" / "weight.bin"
    assert file.stat().st_size < 2 * shared.nbytes
    with pytest.raises(ModelError, match="no function 'minus': its functions are plus, times"):
        softcoreml.load(path, "minus")
