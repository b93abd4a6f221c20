"""Core ML's classes as a program on a Mac uses them through PyObjC."""

from __future__ import annotations

import ctypes
import gc
import importlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
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
from softcoreml.api.feature_values import PixelBuffer

softcoreml.install()
CoreML = importlib.import_module("CoreML")

X = RNG.standard_normal((3, 12)).astype(np.float32)
EXPECTED = np.maximum(X @ WEIGHT.T, 0)
FLOAT32 = CoreML.MLMultiArrayDataTypeFloat32


def url(path: Path) -> Any:
    return CoreML.NSURL.fileURLWithPath_(str(path))


def compiled(path: Path) -> Any:
    found, error = CoreML.MLModel.compileModelAtURL_error_(url(path), None)
    assert error is None
    return found


def loaded(path: Path, **settings: Any) -> Any:
    configuration = CoreML.MLModelConfiguration.alloc().init()
    for name, value in settings.items():
        getattr(configuration, f"set{name[0].upper()}{name[1:]}_")(value)
    load = CoreML.MLModel.modelWithContentsOfURL_configuration_error_
    model, error = load(compiled(path), configuration, None)
    assert error is None, error
    return model


def multi_array(array: np.ndarray) -> Any:
    """As a program makes one over memory of its own."""
    codes = {"float16": CoreML.MLMultiArrayDataTypeFloat16, "float32": FLOAT32}
    make = CoreML.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
    strides = [step // array.itemsize for step in array.strides]
    # An address: the buffer of an array that is not contiguous cannot be passed.
    pointer, kind = array.ctypes.data, codes[array.dtype.name]
    made, error = make(pointer, list(array.shape), kind, strides, lambda _, keep=array: None, None)
    assert error is None, error
    return made


def features(**values: Any) -> Any:
    make = CoreML.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_
    found, error = make(
        {
            name: multi_array(value) if isinstance(value, np.ndarray) else value
            for name, value in values.items()
        },
        None,
    )
    assert error is None, error
    return found


def numpy_of(provider: Any, name: str) -> np.ndarray:
    """Through `getBytesWithHandler:`, as a program on a Mac reads a result."""
    array = provider.featureValueForName_(name).multiArrayValue()
    codes = {FLOAT32: np.float32, CoreML.MLMultiArrayDataTypeFloat16: np.float16}
    found = []
    array.getBytesWithHandler_(lambda data, size: found.append(bytes(data[:size])))
    return np.frombuffer(found[0], codes[array.dataType()]).reshape(array.shape())


def waited(start: Any) -> tuple[Any, Any, str]:
    """Result, error and thread of a call with a completion handler."""
    done, results = threading.Event(), []

    def handler(value: Any, error: Any) -> None:
        results.append((value, error, threading.current_thread().name))
        done.set()

    start(handler)
    assert done.wait(60)
    return results[0]


def test_prediction(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    found, error = model.predictionFromFeatures_error_(features(x=X), None)
    assert error is None
    assert found.featureNames() == {"out"}
    np.testing.assert_allclose(numpy_of(found, "out"), EXPECTED, rtol=1e-5)


def test_only_compiled_models_are_loaded(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage")
    load = CoreML.MLModel.modelWithContentsOfURL_configuration_error_
    model, error = load(url(path), None, None)
    assert model is None
    assert "is not compiled" in error.localizedDescription()
    model, error = load(url(tmp_path / "none.mlmodelc"), None, None)
    assert (model, error.domain(), error.code()) == (
        None,
        "com.apple.CoreML",
        CoreML.MLModelErrorIO,
    )
    found, error = CoreML.MLModel.compileModelAtURL_error_(url(tmp_path / "none.mlpackage"), None)
    assert found is None
    assert "there is no model" in error.localizedDescription()
    with pytest.raises(ValueError, match="pass None for `error`"):
        load(url(path), None, "error")
    with pytest.raises(TypeError, match="is not an NSURL"):
        load(str(path), None, None)


def test_errors_of_predictions(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    found, error = model.predictionFromFeatures_error_(features(x=X[:2]), None)
    assert found is None
    assert error.code() == CoreML.MLModelErrorFeatureType
    assert "(2, 12)" in error.localizedDescription()
    found, error = model.predictionFromFeatures_error_(features(x="text"), None)
    assert "is a multi-array" in error.localizedDescription()


def test_calls_with_completion_handlers(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage")
    folder, error, thread = waited(
        lambda handler: CoreML.MLModel.compileModelAtURL_completionHandler_(url(path), handler)
    )
    assert error is None
    assert thread != threading.current_thread().name
    load = CoreML.MLModel.loadContentsOfURL_configuration_completionHandler_
    model, error, _ = waited(lambda handler: load(folder, None, handler))
    assert error is None
    start = model.predictionFromFeatures_completionHandler_
    found, error, _ = waited(lambda handler: start(features(x=X), handler))
    np.testing.assert_allclose(numpy_of(found, "out"), EXPECTED, rtol=1e-5)
    options = CoreML.MLPredictionOptions.alloc().init()
    start = model.predictionFromFeatures_options_completionHandler_
    found, error, _ = waited(lambda handler: start(features(x=X), options, handler))
    np.testing.assert_allclose(numpy_of(found, "out"), EXPECTED, rtol=1e-5)
    _, error, _ = waited(lambda handler: load(url(tmp_path / "none"), None, handler))
    assert "there is no model" in error.localizedDescription()
    with pytest.raises(TypeError, match="a completion handler"):
        load(folder, None, None)


def test_output_backings_take_the_results(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    memory = np.full((3, 20), -1, np.float32)
    backing = multi_array(memory[:, :16])
    options = CoreML.MLPredictionOptions.alloc().init()
    options.setOutputBackings_({"out": backing})
    found, error = model.predictionFromFeatures_options_error_(features(x=X), options, None)
    assert error is None
    assert found.featureValueForName_("out").multiArrayValue() is backing
    np.testing.assert_allclose(memory[:, :16], EXPECTED, rtol=1e-5)
    assert (memory[:, 16:] == -1).all()
    for wrong, says in (
        (multi_array(memory), "has the shape [3, 20]"),
        (multi_array(np.zeros((3, 16), np.float16)), "holds float16"),
        ("text", "is not an MLMultiArray"),
    ):
        options.setOutputBackings_({"out": wrong})
        found, error = model.predictionFromFeatures_options_error_(features(x=X), options, None)
        assert found is None
        assert says in error.localizedDescription()


def test_batches(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    batch = CoreML.MLArrayBatchProvider.alloc().initWithFeatureProviderArray_(
        [features(x=X), features(x=2 * X)]
    )
    found, error = model.predictionsFromBatch_error_(batch, None)
    assert error is None
    assert found.count() == 2
    np.testing.assert_allclose(numpy_of(found.featuresAtIndex_(1), "out"), 2 * EXPECTED, rtol=1e-5)
    columns = {"x": [multi_array(X), multi_array(3 * X)]}
    batch, error = CoreML.MLArrayBatchProvider.alloc().initWithDictionary_error_(columns, None)
    found, error = model.predictionsFromBatch_error_(batch, None)
    np.testing.assert_allclose(numpy_of(found.array()[1], "out"), 3 * EXPECTED, rtol=1e-5)


def test_states(tmp_path: Path) -> None:
    model = loaded(counter(tmp_path / "m.mlpackage"))
    state = model.newState()
    ones = np.ones((2, 32), np.float16)
    options = CoreML.MLPredictionOptions.new()
    for step in (1, 2):
        found, error = model.predictionFromFeatures_usingState_error_(features(x=ones), state, None)
        assert error is None
        assert numpy_of(found, "new").max() == step
    predict = model.predictionFromFeatures_usingState_options_error_
    found, error = predict(features(x=ones), state, options, None)
    assert numpy_of(found, "new").max() == 3
    start = model.predictionFromFeatures_usingState_options_completionHandler_
    found, error, _ = waited(lambda handler: start(features(x=ones), state, options, handler))
    assert numpy_of(found, "new").max() == 4

    def change(array: Any) -> None:
        assert array.shape() == [2, 32]
        array[0] = 100

    state.getMultiArrayForStateNamed_handler_("total", change)
    found, error = model.predictionFromFeatures_usingState_error_(features(x=ones), state, None)
    assert numpy_of(found, "old")[0, 0] == 100
    found, error = model.predictionFromFeatures_error_(features(x=ones), None)
    assert "state 'total' is missing" in error.localizedDescription()
    described = model.modelDescription().stateDescriptionsByName()["total"]
    assert described.type() == CoreML.MLFeatureTypeState
    assert described.stateConstraint().bufferShape() == [2, 32]
    assert described.stateConstraint().dataType() == CoreML.MLMultiArrayDataTypeFloat16


def test_functions(tmp_path: Path) -> None:
    path = two_functions(tmp_path / "two.mlpackage")
    x = np.ones((4, 40), np.float32)
    plus, _ = loaded(path).predictionFromFeatures_error_(features(x=x), None)
    times, _ = loaded(path, functionName="times").predictionFromFeatures_error_(features(x=x), None)
    np.testing.assert_allclose(numpy_of(plus, "out"), numpy_of(times, "out") + 1)
    asset, error = CoreML.MLModelAsset.modelAssetWithURL_error_(compiled(path), None)
    assert error is None
    names, _, _ = waited(asset.functionNamesWithCompletionHandler_)
    assert names == ["plus", "times"]
    described, _, _ = waited(asset.modelDescriptionWithCompletionHandler_)
    assert set(described.inputDescriptionsByName()) == {"x"}


def test_assets_in_memory(tmp_path: Path) -> None:
    inside = dense(tmp_path / "m.mlpackage") / "Data" / "com.apple.CoreML"
    data = (inside / "model.mlmodel").read_bytes()
    weights = (inside / "weights" / "weight.bin").read_bytes()
    make = CoreML.MLModelAsset.modelAssetWithSpecificationData_blobMapping_error_
    asset, error = make(data, {url(Path("weights/weight.bin")): weights}, None)
    assert error is None
    load = CoreML.MLModel.loadModelAsset_configuration_completionHandler_
    model, error, _ = waited(lambda handler: load(asset, None, handler))
    found, _ = model.predictionFromFeatures_error_(features(x=X), None)
    np.testing.assert_allclose(numpy_of(found, "out"), EXPECTED, rtol=1e-5)
    asset, error = CoreML.MLModelAsset.modelAssetWithSpecificationData_error_(data, None)
    _, error, _ = waited(lambda handler: load(asset, None, handler))
    assert "needs the weights" in error.localizedDescription()


def test_descriptions(tmp_path: Path) -> None:
    description = loaded(dense(tmp_path / "m.mlpackage")).modelDescription()
    x = description.inputDescriptionsByName()["x"]
    assert (x.name(), x.type(), x.isOptional()) == ("x", CoreML.MLFeatureTypeMultiArray, False)
    constraint = x.multiArrayConstraint()
    assert (constraint.shape(), constraint.dataType()) == ([3, 12], FLOAT32)
    assert x.isAllowedValue_(features(x=X).featureValueForName_("x"))
    assert not x.isAllowedValue_(features(x=X[:2]).featureValueForName_("x"))
    assert description.predictedFeatureName() is None
    metadata = description.metadata()[CoreML.MLModelCreatorDefinedKey]
    assert metadata["com.github.apple.coremltools.version"] == ct.__version__


def test_descriptions_of_flexible_shapes(tmp_path: Path) -> None:
    shapes = ct.EnumeratedShapes(shapes=[(1, 4), (3, 4)], default=(1, 4))
    path = flexible(tmp_path / "a.mlpackage", shapes)
    x = loaded(path).modelDescription().inputDescriptionsByName()["x"].multiArrayConstraint()
    assert x.shapeConstraint().type() == CoreML.MLMultiArrayShapeConstraintTypeEnumerated
    assert x.shapeConstraint().enumeratedShapes() == [[1, 4], [3, 4]]
    path = flexible(tmp_path / "b.mlpackage", ct.Shape((ct.RangeDim(2, 5), 4)))
    x = loaded(path).modelDescription().inputDescriptionsByName()["x"].multiArrayConstraint()
    assert x.shapeConstraint().type() == CoreML.MLMultiArrayShapeConstraintTypeRange
    assert x.shapeConstraint().sizeRangeForDimension() == [(2, 4), (4, 1)]


def test_images_go_in_and_come_out(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        return mb.sub(x=np.float32(255), y=x, name="out")

    for layout in ("RGB", "BGR"):
        path = written(
            built(main, (1, 3, 4, 6)),
            tmp_path / f"{layout}.mlpackage",
            inputs=[ct.ImageType(name="x", shape=(1, 3, 4, 6), color_layout=layout)],
        )
        file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
        spec = ct.utils.load_spec(str(file))
        spec.description.output[0].type.CopyFrom(spec.description.input[0].type)
        file.write_bytes(spec.SerializeToString())
        model = loaded(path)
        constraint = model.modelDescription().inputDescriptionsByName()["x"].imageConstraint()
        assert (constraint.pixelsWide(), constraint.pixelsHigh()) == (6, 4)
        pixels = RNG.integers(0, 256, (4, 6, 3)).astype(np.uint8)
        found, error = model.predictionFromFeatures_error_(features(x=PixelBuffer(pixels)), None)
        assert error is None, error
        image = found.featureValueForName_("out").imageBufferValue()
        np.testing.assert_array_equal(image.array, 255 - pixels)
        small = PixelBuffer(pixels[:2])
        found, error = model.predictionFromFeatures_error_(features(x=small), None)
        assert "6x2 pixels where the model takes 6x4" in error.localizedDescription()


@pytest.mark.parametrize("code", ["Double", "Float32", "Float16", "Int32", "Int8"])
def test_multi_arrays_of_their_own_memory(code: str) -> None:
    kind = getattr(CoreML, f"MLMultiArrayDataType{code}")
    array, error = CoreML.MLMultiArray.alloc().initWithShape_dataType_error_([2, 3], kind, None)
    assert error is None
    assert (array.shape(), array.strides(), array.count()) == ([2, 3], [3, 1], 6)
    assert array.dataType() == kind
    array[4] = 7
    array.setObject_forKeyedSubscript_(5, [0, 2])
    assert (array[[1, 1]], array[2], array.objectAtIndexedSubscript_(0)) == (7, 5, 0)
    with pytest.raises(IndexError):
        array.objectForKeyedSubscript_([1])


def test_multi_arrays_over_memory_of_the_program() -> None:
    memory = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = multi_array(memory[:, ::2])
    assert (array.shape(), array.strides()) == ([3, 2], [4, 2])
    assert np.shares_memory(array.array, memory)
    assert array[[2, 1]] == 10
    array[[2, 1]] = 99
    assert memory[2, 2] == 99
    pointer = array.dataPointer()
    assert np.frombuffer(pointer.as_buffer(8), np.float32).tolist() == [0, 1]
    assert pointer[0] == b"\0"

    def write(data: Any, size: int, strides: list[int]) -> None:
        assert (size, strides) == (44, [4, 2])
        np.frombuffer(data, np.float32)[0] = -5

    array.getMutableBytesWithHandler_(write)
    assert memory[0, 0] == -5
    other, _ = CoreML.MLMultiArray.alloc().initWithShape_dataType_error_([3, 2], FLOAT32, None)
    array.transferToMultiArray_(other)
    np.testing.assert_array_equal(other.array, memory[:, ::2])


@pytest.mark.parametrize("as_pointer", [bytearray, lambda data: ctypes.addressof(data), memoryview])
def test_pointers_of_many_kinds(as_pointer: Any) -> None:
    data = (ctypes.c_float * 6)(*range(6))
    given = as_pointer(data)
    make = CoreML.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
    array, error = make(given, [2, 3], FLOAT32, [3, 1], None, None)
    assert error is None, error
    assert array[5] == 5


def test_the_deallocator_is_called_when_the_array_dies() -> None:
    freed: list[Any] = []
    memory = bytearray(24)
    make = CoreML.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
    array, _ = make(memory, [2, 3], FLOAT32, [3, 1], freed.append, None)
    assert freed == []
    del array, make
    gc.collect()
    assert freed == [memory]


@pytest.mark.parametrize(
    ("pointer", "shape", "kind", "strides", "says"),
    [
        (bytearray(20), [2, 3], FLOAT32, [3, 1], "20 bytes for 6 elements"),
        (bytearray(24), [2, 3], 1, [3, 1], "is not an MLMultiArrayDataType"),
        (bytearray(24), [2, 3], FLOAT32, [1], "do not fit the shape"),
        (bytearray(24), [], FLOAT32, [], "is not a shape"),
        (bytearray(24), [2, -3], FLOAT32, [3, 1], "is not a shape"),
        ("text", [2, 3], FLOAT32, [3, 1], "is not memory"),
    ],
)
def test_malformed_multi_arrays_are_errors(
    pointer: Any, shape: list[int], kind: int, strides: list[int], says: str
) -> None:
    make = CoreML.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
    array, error = make(pointer, shape, kind, strides, None, None)
    assert array is None
    assert says in error.localizedDescription()


def test_multi_arrays_with_strides_and_concatenation() -> None:
    strided = CoreML.MLMultiArray.alloc().initWithShape_dataType_strides_([2, 3], FLOAT32, [8, 1])
    assert strided.strides() == [8, 1]
    strided[[1, 2]] = 4
    join = CoreML.MLMultiArray.multiArrayByConcatenatingMultiArrays_alongAxis_dataType_
    both = join([strided, strided], 0, CoreML.MLMultiArrayDataTypeInt32)
    assert (both.shape(), both[[3, 2]]) == ([4, 3], 4)
    assert both.dataType() == CoreML.MLMultiArrayDataTypeInt32


def test_inputs_are_not_copied_on_their_way_to_an_operation(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    memory, seen = X.copy(), []
    remove = softcoreml.accelerate(
        "linear", lambda **given: seen.append(given["x"]) or NotImplemented
    )
    model.predictionFromFeatures_error_(features(x=memory), None)
    remove()
    assert np.shares_memory(seen[0], memory)


def test_predictions_on_several_threads_are_those_of_one(tmp_path: Path) -> None:
    model = loaded(dense(tmp_path / "m.mlpackage"))
    inputs = [RNG.standard_normal((3, 12)).astype(np.float32) for _ in range(16)]

    def predict(x: np.ndarray) -> np.ndarray:
        found, error = model.predictionFromFeatures_error_(features(x=x), None)
        assert error is None
        return numpy_of(found, "out")

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(predict, inputs))
    for x, found in zip(inputs, together, strict=True):
        np.testing.assert_array_equal(found, predict(x))


def test_feature_values() -> None:
    value = CoreML.MLFeatureValue
    number = value.featureValueWithInt64_(5)
    assert (number.type(), number.int64Value(), number.doubleValue()) == (1, 5, 0.0)
    assert value.featureValueWithDouble_(0.5).doubleValue() == 0.5
    assert value.featureValueWithString_("a").stringValue() == "a"
    table, error = value.featureValueWithDictionary_error_({"a": 1.5}, None)
    assert (table.dictionaryValue(), error) == ({"a": 1.5}, None)
    table, error = value.featureValueWithDictionary_error_({"a": 1.5, 2: 1}, None)
    assert table is None
    nothing = value.undefinedFeatureValueWithType_(CoreML.MLFeatureTypeMultiArray)
    assert nothing.isUndefined()
    assert nothing.multiArrayValue() is None
    assert number.isEqualToFeatureValue_(value.featureValueWithInt64_(5))
    one, other = (value.featureValueWithMultiArray_(multi_array(X.copy())) for _ in range(2))
    assert one.isEqualToFeatureValue_(other)
    made, error = CoreML.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(
        {"a": object()}, None
    )
    assert made is None
    assert "is not a value of a feature" in error.localizedDescription()


def test_configurations() -> None:
    configuration = CoreML.MLModelConfiguration.alloc().init()
    assert configuration.computeUnits() == CoreML.MLComputeUnitsAll
    configuration.setComputeUnits_(CoreML.MLComputeUnitsCPUAndNeuralEngine)
    hints = configuration.optimizationHints()
    hints.setReshapeFrequency_(CoreML.MLReshapeFrequencyHintInfrequent)
    other = configuration.copy()
    other.setComputeUnits_(CoreML.MLComputeUnitsCPUOnly)
    assert configuration.computeUnits() == CoreML.MLComputeUnitsCPUAndNeuralEngine
    assert configuration.respondsToSelector_("setFunctionName:")
    assert not configuration.respondsToSelector_("setNothing:")
    with pytest.raises(ValueError, match="is not one of MLComputeUnits"):
        configuration.setComputeUnits_(7)


def test_compute_plans(tmp_path: Path) -> None:
    def main(x: Any) -> Any:
        return mb.cumsum(x=mb.relu(x=mb.linear(x=x, weight=WEIGHT)), axis=1, name="out")

    folder = compiled(written(built(main, (3, 12)), tmp_path / "m.mlpackage", precision=HALF))
    load = CoreML.MLComputePlan.loadContentsOfURL_configuration_completionHandler_
    configuration = CoreML.MLModelConfiguration.alloc().init()
    plan, error, _ = waited(lambda handler: load(folder, configuration, handler))
    assert error is None
    function = plan.modelStructure().program().functions()["main"]
    assert [one.name() for one in function.inputs()] == ["x"]
    found = {}
    for one in function.block().operations():
        usage = plan.computeDeviceUsageForMLProgramOperation_(one)
        if usage is None:
            assert one.operatorName() == "const"
            assert plan.estimatedCostOfMLProgramOperation_(one) is None
        else:
            found[one.operatorName()] = usage
            assert plan.estimatedCostOfMLProgramOperation_(one).weight() > 0
    linear = found["ios18.linear"].preferredComputeDevice()
    assert isinstance(linear, CoreML.MLNeuralEngineComputeDevice)
    assert linear.totalCoreCount() == 16
    supported = found["ios18.cumsum"].supportedComputeDevices()
    assert not any(isinstance(one, CoreML.MLNeuralEngineComputeDevice) for one in supported)
    names = one.inputs()["x"].bindings()[0].name()
    assert isinstance(names, str)


def test_devices() -> None:
    assert len(CoreML.MLAllComputeDevices()) == 3
    assert CoreML.MLModel.availableComputeDevices() == CoreML.MLAllComputeDevices()


def test_compiled_folders_are_removed_at_the_end(tmp_path: Path) -> None:
    path = dense(tmp_path / "m.mlpackage")
    program = f"""
import softcoreml; softcoreml.install()
import CoreML
url, error = CoreML.MLModel.compileModelAtURL_error_(CoreML.NSURL.fileURLWithPath_({str(path)!r}), None)
print(url.path())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip().endswith("m.mlmodelc")
    assert not Path(result.stdout.strip()).parent.exists()


def test_another_foundation_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("Foundation")
    monkeypatch.setitem(sys.modules, "Foundation", other)
    softcoreml.install()
    assert sys.modules["Foundation"] is other


def test_urls() -> None:
    one = CoreML.NSURL.fileURLWithPath_("/a b/c.mlmodelc")
    assert one.absoluteString() == "file:///a%20b/c.mlmodelc"
    assert CoreML.NSURL.URLWithString_(one.absoluteString()) == one
    assert (one.lastPathComponent(), one.pathExtension()) == ("c.mlmodelc", "mlmodelc")
    assert one.URLByDeletingLastPathComponent().path() == "/a b"
    assert one.URLByAppendingPathComponent_("d").path() == "/a b/c.mlmodelc/d"
    assert CoreML.NSURL.URLWithString_("https://example.org/x") is None
    import Foundation

    assert Foundation.NSURL.fileURLWithPath_("/a").path() == "/a"
