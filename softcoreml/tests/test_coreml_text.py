"""MIL text: what is written is read back the same, and text in the form of Apple's compiler runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coreml_models import (
    HALF,
    RNG,
    WEIGHT,
    built,
    counter,
    ct,
    dense,
    flexible,
    mb,
    two_functions,
    written,
)

import softcoreml
from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.format.read import compile_model, read_model
from softcoreml.format.text_parser import parse
from softcoreml.format.text_writer import write

APPLE = """program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-component-MIL", "3304.5.2"}, {"coremlc-version", "3304.6.2"}})]
{
    func main<ios16>(tensor<fp16, [2, 3]> x) {
            tensor<string, []> type_0 = const()[name = tensor<string, []>("type_0"), val = tensor<string, []>("fp32")];
            tensor<fp16, [3]> w = const()[name = tensor<string, []>("w"), val = tensor<fp16, [3]>([0x1p+1, -0x1.8p-1, 0.25])];
            tensor<bool, []> keep = const()[name = tensor<string, []>("keep"), val = tensor<bool, []>(true)];
            tensor<int32, [1]> axes = const()[name = tensor<string, []>("axes"), val = tensor<int32, [1]>([-1])];
            tensor<int32, []> axis = const()[name = tensor<string, []>("axis"), val = tensor<int32, []>(1)];
            tensor<bool, []> no = const()[name = tensor<string, []>("no"), val = tensor<bool, []>(false)];
            tensor<fp16, [2, 3]> y = mul(x = x, y = w)[name = tensor<string, []>("y")];
            tensor<fp16, [2, 1]> s = reduce_sum(axes = axes, keep_dims = keep, x = y)[name = tensor<string, []>("s")];
            tensor<fp16, [2, 4]> both = concat(axis = axis, interleave = no, values = (y, s))[name = tensor<string, []>("both")];
            tensor<fp16, [2, 2]> left, tensor<fp16, [2, 2]> right = split(axis = axis, num_splits = tensor<int32, []>(2), x = both)[name = tensor<string, []>("op")];
            tensor<fp32, [2, 2]> out = cast(dtype = type_0, x = right)[name = tensor<string, []>("out")];
        } -> (out);
}
"""


def packages(folder: Path) -> list[Path]:
    def control(x: Any) -> Any:
        many = mb.mul(x=x, y=np.array([[np.inf, -np.inf, np.nan, 1e-7]], np.float32))
        kept = mb.cond(
            pred=mb.less(x=mb.reduce_sum(x=many, axes=[0, 1], keep_dims=False), y=np.float32(0)),
            _true_fn=lambda: mb.relu(x=many),
            _false_fn=lambda: mb.abs(x=many),
        )
        parts = mb.split(x=kept, num_splits=2, axis=1)
        return mb.concat(values=[parts[1], parts[0]], axis=1, name="out")

    return [
        dense(folder / "a.mlpackage", HALF, ct.target.iOS15),
        counter(folder / "b.mlpackage"),
        flexible(folder / "c.mlpackage", ct.Shape((ct.RangeDim(1, 5), 4))),
        two_functions(folder / "d.mlpackage"),
        written(built(control, (2, 4)), folder / "e.mlpackage"),
    ]


def same(first: mil.Value, second: mil.Value) -> bool:
    if first.type != second.type or type(first.data) is not type(second.data):
        return False
    if isinstance(first.data, np.ndarray):
        return np.array_equal(first.data, second.data, equal_nan=first.data.dtype.kind == "f")
    if isinstance(first.data, dict):
        return first.data.keys() == second.data.keys() and all(
            same(one, second.data[key]) for key, one in first.data.items()
        )
    return bool(first.data == second.data)


def test_text_is_read_back_as_the_same_program(tmp_path: Path) -> None:
    for path in packages(tmp_path):
        program = read_model(path).program
        again = parse(write(program))
        assert write(again) == write(program)
        for name, function in program.functions.items():
            assert again.functions[name].inputs == function.inputs
            pairs = zip(
                mil.walk(function.block), mil.walk(again.functions[name].block), strict=True
            )
            for one, other in pairs:
                assert (one.type, one.outputs) == (other.type, other.outputs)
                for key, value in one.attributes.items():
                    assert same(value, other.attributes[key]), (one.name, key)


def test_a_compiled_model_predicts_the_same(tmp_path: Path) -> None:
    for path in packages(tmp_path):
        folder = path.with_suffix(".mlmodelc")
        compile_model(path, folder)
        source, compiled = softcoreml.load(path), softcoreml.load(folder)
        assert compiled.description == source.description
        inputs = {
            one.name: RNG.standard_normal(one.type.shape).astype(np.float32)  # type: ignore[union-attr]
            for one in source.description.inputs
        }
        expected = source.predict(inputs, source.new_states())
        for name, value in compiled.predict(inputs, compiled.new_states()).items():
            np.testing.assert_array_equal(value, expected[name])


def test_a_compiled_model_outlives_its_source(tmp_path: Path) -> None:
    package = dense(tmp_path / "a.mlpackage")
    folder = tmp_path / "a.mlmodelc"
    compile_model(package, folder)
    package.rename(tmp_path / "gone")
    x = np.ones((3, 12), np.float32)
    found = softcoreml.load(folder).predict({"x": x})["out"]
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHT.T, 0), rtol=1e-5)


def apple_folder(folder: Path, text: str = APPLE, **metadata: Any) -> Path:
    folder.mkdir()
    (folder / "model.mil").write_text(text)
    (folder / "coremldata.bin").write_bytes(b"not read")
    if metadata:
        (folder / "metadata.json").write_text(json.dumps([metadata]))
    return folder


def test_text_in_the_form_of_apples_compiler_runs(tmp_path: Path) -> None:
    model = softcoreml.load(apple_folder(tmp_path / "m.mlmodelc"))
    x = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
    y = x * [2, -0.75, 0.25]
    expected = np.concatenate([y, y.sum(1, keepdims=True)], 1)[:, 2:]
    np.testing.assert_allclose(model.predict({"x": x})["out"], expected, rtol=1e-3)


def test_features_of_apples_compiled_models_come_from_their_metadata(tmp_path: Path) -> None:
    text = APPLE.replace("tensor<fp16, [2, 3]> x", "tensor<fp16, [?, 3]> x").replace("[2, ", "[?, ")
    described = {
        "name": "x",
        "type": "MultiArray",
        "dataType": "Float16",
        "shape": "[2, 3]",
        "shapeRange": "[[1, 4], [3, 3]]",
    }
    model = softcoreml.load(
        apple_folder(tmp_path / "m.mlmodelc", text, inputSchema=[described], author="me")
    )
    (feature,) = model.description.inputs
    assert feature.type.ranges == ((1, 4), (3, 3))  # type: ignore[union-attr]
    assert model.file.description.author == "me"
    assert model.predict({"x": np.ones((4, 3))})["out"].shape == (4, 2)
    with pytest.raises(softcoreml.InputError, match="dimension 0 is 5"):
        model.predict({"x": np.ones((5, 3))})


FLEXIBLE = """program(1.0)
{
    func main<ios17>(tensor<int32, [1]> n, tensor<fp32, [1, ?]> x) [FlexibleShapeInformation = tuple<tuple<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>, tuple<tensor<string, []>, %s>>((("DefaultShapes", {{"x", [1, 3]}}), %s))] {
            tensor<fp32, [1, ?]> out = relu(x = x)[name = tensor<string, []>("out")];
        } -> (out);
}
"""


@pytest.mark.parametrize(
    ("kind", "value", "fits", "misfit"),
    [
        (
            "dict<tensor<string, []>, list<tensor<int32, [2]>, ?>>",
            '("RangeDims", {{"x", [[1, 1], [1, 5]]}})',
            [1, 5],
            "dimension 1 is 6",
        ),
        (
            "dict<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>",
            '("EnumeratedShapes", {{"79ae", {{"x", [1, 3]}}}, {"b01c", {{"x", [1, 4]}}}})',
            [3, 4],
            "is not one of",
        ),
    ],
)
def test_flexible_shapes_come_from_the_function_without_metadata(
    tmp_path: Path, kind: str, value: str, fits: list[int], misfit: str
) -> None:
    model = softcoreml.load(apple_folder(tmp_path / "m.mlmodelc", FLEXIBLE % (kind, value)))
    assert model.description.input("x").type.shape == (1, 3)  # type: ignore[union-attr]
    for size in fits:
        found = model.predict({"x": -np.ones((1, size)), "n": np.ones(1)})["out"]
        np.testing.assert_array_equal(found, np.zeros((1, size)))
    with pytest.raises(softcoreml.InputError, match=misfit):
        model.predict({"x": np.ones((1, 6)), "n": np.ones(1)})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("program(1.0)", "", "where 'program' is expected"),
        ("program(1.0)", "program(one)", "where a number is expected"),
        ("program(1.0)", "program(inf)", "version inf of MIL"),
        ("-> (out);", "-> (out)", "';' is expected"),
        ("tensor<fp16, [3]>([0x1p+1, -0x1.8p-1, 0.25])", "tensor<fp16, [3]>([1])", "of shape"),
        ("[0x1p+1, -0x1.8p-1, 0.25]", "[0x1p+1, [1], 0.25]", "of shape"),
        ("[-1]", "[" * 100 + "1" + "]" * 100, "more than 64 dimensions"),
        ("tensor<int32, []>(1)", "tensor<int32, []>(one)", "where a number is expected"),
        ("tensor<int32, []>(1)", "tensor<int32, []>(99999999999)", "a constant of type"),
        ("tensor<fp16, [2, 3]> x)", "tensor<fp17, [2, 3]> x)", "'fp17' is not a type"),
        ("[2, 3]> x)", "[2, 99999999999999999999]> x)", "is not a size"),
        ("}\n", "", "'func' is expected|'}' is expected|is expected"),
        ('"fp32"', '"\\q"', "unknown escape"),
        ("func main", "func main<ios16>() {} -> (); func main", "a second function"),
        (APPLE, "", "'program' is expected"),
        ("x = x, y = w", "x = " + "tuple<" * 200, "nested more than"),
        ("split(", "§(", "unexpected"),
    ],
)
def test_malformed_text_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in APPLE
    with pytest.raises(ModelError, match=says):
        parse(APPLE.replace(old, new))


def test_text_that_is_cut_anywhere_is_refused() -> None:
    for size in range(0, len(APPLE) - 2, 13):
        with pytest.raises(ModelError):
            parse(APPLE[:size])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no model.mil"),
        ({"model.mil": b"\xff\xff"}, "cannot read"),
        ({"model.mil": APPLE.encode(), "metadata.json": b"{"}, "is not JSON"),
    ],
)
def test_malformed_folders_are_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match=says):
        read_model(tmp_path)
