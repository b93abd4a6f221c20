"""The native module of coremltools (`libcoremlpython`), which its wheels have for macOS only.

`install()` puts this one in its place: `MLModel.predict`, `make_state`, compiled models and
`MLComputePlan` of coremltools then run here.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any
from weakref import finalize

import numpy as np

from softcoreml.api import configuration as settings
from softcoreml.api import devices, structure
from softcoreml.api.configuration import MLModelConfiguration
from softcoreml.api.feature_values import (
    MLArrayBatchProvider,
    MLFeatureTypeDictionary,
    MLFeatureTypeImage,
    MLFeatureTypeMultiArray,
    MLFeatureValue,
    PixelBuffer,
    provider,
)
from softcoreml.api.foundation import NSURL
from softcoreml.api.mlmodel import MLModel, MLModelAsset, MLState
from softcoreml.api.multiarray import DATA_TYPES, MLMultiArray
from softcoreml.api.plan import MLComputePlan
from softcoreml.errors import SoftCoreMLError
from softcoreml.format.package import NEWEST_SPECIFICATION

MACOS_VERSION = (26, 0)
"""The version that coremltools is told, because it asks before it calls its native module."""

_UNITS = {
    "CPU_ONLY": devices.MLComputeUnitsCPUOnly,
    "CPU_AND_GPU": devices.MLComputeUnitsCPUAndGPU,
    "ALL": devices.MLComputeUnitsAll,
    "CPU_AND_NE": devices.MLComputeUnitsCPUAndNeuralEngine,
}


def _checked(result: tuple[Any, Any]) -> Any:
    """The result of a call with an out-argument; coremltools expects a RuntimeError."""
    value, error = result
    if error is not None:
        raise RuntimeError(error.localizedDescription())
    return value


def _waited(start: Callable[[Callable[[Any, Any], None]], None]) -> Any:
    """The result of a call with a completion handler."""
    done, results = Event(), []

    def handler(value: Any, error: Any) -> None:
        results.append((value, error))
        done.set()

    start(handler)
    done.wait()
    return _checked(results[0])


def _url(path: str) -> NSURL:
    return NSURL.fileURLWithPath_(path)


def _configuration(
    units: str, function: str = "", hints: Mapping[str, str] | None = None
) -> MLModelConfiguration:
    if units not in _UNITS:
        raise RuntimeError(f"{units!r} is not one of {', '.join(_UNITS)}")
    return MLModelConfiguration(
        computeUnits=_UNITS[units],
        functionName=function or None,
        optimizationHints=_hints(hints or {}),
        allowLowPrecisionAccumulationOnGPU=(hints or {}).get("allowLowPrecisionAccumulationOnGPU")
        == "True",
    )


def _hints(hints: Mapping[str, str]) -> settings.MLOptimizationHints:
    return settings.MLOptimizationHints(
        reshapeFrequency=int(hints.get("reshapeFrequency") == "Infrequent"),
        specializationStrategy=int(hints.get("specializationStrategy") == "FastPrediction"),
    )


class _State:
    """A model's states."""

    def __init__(self, state: MLState) -> None:
        self.state = state

    def read_state(self, name: str) -> np.ndarray[Any, Any]:
        found: list[Any] = []
        self._with(name, lambda array: found.append(_to_python_array(array)))
        return np.array(found[0])

    def write_state(self, name: str, value: Any) -> None:
        given = np.asarray(value)
        self._with(name, lambda array: _transfer(given, array))

    def _with(self, name: str, handler: Callable[[MLMultiArray], Any]) -> None:
        try:
            self.state.getMultiArrayForStateNamed_handler_(name, handler)
        except (SoftCoreMLError, ValueError) as problem:
            raise RuntimeError(str(problem)) from None


def _transfer(given: np.ndarray[Any, Any], array: MLMultiArray) -> None:
    if given.shape != array.array.shape:
        raise ValueError(f"shape {given.shape} does not fit a state of {array.array.shape}")
    np.copyto(array.array, given, casting="unsafe")


class _MLModelAssetProxy:
    def __init__(self, asset: MLModelAsset) -> None:
        self.asset = asset


class _MLCPUComputeDeviceProxy:
    pass


class _MLGPUComputeDeviceProxy:
    pass


class _MLNeuralEngineComputeDeviceProxy:
    def get_total_core_count(self) -> int:
        return devices.NEURAL_ENGINE_CORES


class _MLModelProxy:
    """A loaded model, with the methods that coremltools calls."""

    def __init__(
        self,
        path: str,
        units: str,
        function: str = "",
        hints: Mapping[str, str] | None = None,
        asset: _MLModelAssetProxy | None = None,
    ) -> None:
        chosen = _configuration(units, function, hints)
        self._path = ""
        started = time.monotonic_ns()
        if asset is not None:
            load = MLModel.loadModelAsset_configuration_completionHandler_
            self._model: MLModel = _waited(lambda handler: load(asset.asset, chosen, handler))
        else:
            self._path = self._compiled(path)
            self._model = _checked(
                MLModel.modelWithContentsOfURL_configuration_error_(_url(self._path), chosen, None)
            )
        self._load_duration = time.monotonic_ns() - started
        self._predict_duration: int | None = None

    def _compiled(self, path: str) -> str:
        if path.rstrip("/").endswith(".mlmodelc"):
            return path
        compiled = self.compileModel(path)
        finalize(self, shutil.rmtree, Path(compiled).parent, ignore_errors=True)
        return compiled

    def predict(self, inputs: Mapping[str, Any], state: _State | None = None) -> dict[str, Any]:
        started = time.monotonic_ns()
        features = _features(inputs)
        if state is None:
            result = self._model.predictionFromFeatures_error_(features, None)
        else:
            predict = self._model.predictionFromFeatures_usingState_error_
            result = predict(features, state.state, None)
        outputs = _checked(result)
        self._predict_duration = time.monotonic_ns() - started
        return _to_python(outputs)

    def batchPredict(self, batch: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        started = time.monotonic_ns()
        given = MLArrayBatchProvider.alloc().initWithFeatureProviderArray_(
            [_features(one) for one in batch]
        )
        results = _checked(self._model.predictionsFromBatch_error_(given, None))
        self._predict_duration = time.monotonic_ns() - started
        return [_to_python(one) for one in results.array()]

    def newState(self) -> _State:
        return _State(self._model.newState())

    def get_compiled_model_path(self) -> str:
        return self._path

    def get_load_duration_in_nano_seconds(self) -> int:
        return self._load_duration

    def get_last_predict_duration_in_nano_seconds(self) -> int | None:
        return self._predict_duration

    @staticmethod
    def maximum_supported_specification_version() -> int:
        return NEWEST_SPECIFICATION

    @staticmethod
    def auto_set_specification_version(specification: Any) -> Any:
        raise RuntimeError("softcoreml does not lower the specification version of a model")

    @staticmethod
    def compileModel(path: str) -> str:
        return str(_checked(MLModel.compileModelAtURL_error_(_url(path), None)).path())

    @staticmethod
    def create_model_asset_from_path(path: str) -> Any:
        asset = _checked(MLModelAsset.modelAssetWithURL_error_(_url(path), None))
        return _module("coremltools.models.model").MLModelAsset(_MLModelAssetProxy(asset))

    @staticmethod
    def create_model_asset_from_memory(data: bytes, blobs: Mapping[str, bytes]) -> Any:
        make = MLModelAsset.modelAssetWithSpecificationData_blobMapping_error_
        asset = _checked(make(data, blobs, None))
        return _module("coremltools.models.model").MLModelAsset(_MLModelAssetProxy(asset))

    @staticmethod
    def get_available_compute_devices() -> list[Any]:
        return [_device(one) for one in MLModel.availableComputeDevices()]

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        return [_device(one) for one in devices.MLAllComputeDevices()]

    @staticmethod
    def get_model_structure(path: str) -> Any:
        load = structure.MLModelStructure.loadContentsOfURL_completionHandler_
        return _structure(_waited(lambda handler: load(_url(path), handler)))

    @staticmethod
    def get_compute_plan(path: str, units: str) -> Any:
        load = MLComputePlan.loadContentsOfURL_configuration_completionHandler_
        chosen = _configuration(units)
        plan = _waited(lambda handler: load(_url(path), chosen, handler))
        made = _MLComputePlanProxy(plan)
        return _module("coremltools.models.compute_plan").MLComputePlan(made)


class _MLComputePlanProxy:
    def __init__(self, plan: MLComputePlan | None = None) -> None:
        self._plan = plan
        self.model_structure = None if plan is None else _structure(plan.modelStructure())

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        usage = self._loaded().computeDeviceUsageForMLProgramOperation_(operation.__proxy__)
        if usage is None:
            return None
        values = usage._values
        return _module("coremltools.models.compute_plan").MLComputePlanDeviceUsage(
            _device(values["preferredComputeDevice"]),
            [_device(one) for one in values["supportedComputeDevices"]],
        )

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        cost = self._loaded().estimatedCostOfMLProgramOperation_(operation.__proxy__)
        if cost is None:
            return None
        return _module("coremltools.models.compute_plan").MLComputePlanCost(cost._values["weight"])

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> None:
        self._loaded().computeDeviceUsageForNeuralNetworkLayer_(layer)

    def _loaded(self) -> MLComputePlan:
        if self._plan is None:
            raise RuntimeError("the compute plan is empty: load it from a compiled model")
        return self._plan


def _module(name: str) -> Any:
    return import_module(name)


def _device(device: Any) -> Any:
    kinds = _module("coremltools.models.compute_device")
    if isinstance(device, devices.MLNeuralEngineComputeDevice):
        return kinds.MLNeuralEngineComputeDevice(_MLNeuralEngineComputeDeviceProxy())
    if isinstance(device, devices.MLGPUComputeDevice):
        return kinds.MLGPUComputeDevice(_MLGPUComputeDeviceProxy())
    return kinds.MLCPUComputeDevice(_MLCPUComputeDeviceProxy())


def _structure(found: structure.MLModelStructure) -> Any:
    kinds = _module("coremltools.models.compute_plan")
    functions = {
        name: kinds.MLModelStructureProgramFunction(
            [_named(kinds, one) for one in function.inputs()], _block(kinds, function.block())
        )
        for name, function in found._values["program"].functions().items()
    }
    return kinds.MLModelStructure(None, kinds.MLModelStructureProgram(functions), None)


def _named(kinds: Any, one: Any) -> Any:
    kind = kinds.MLModelStructureProgramValueType()
    return kinds.MLModelStructureProgramNamedValueType(one.name(), kind)


def _block(kinds: Any, block: Any) -> Any:
    return kinds.MLModelStructureProgramBlock(
        [_named(kinds, one) for one in block.inputs()],
        [_operation(kinds, one) for one in block.operations()],
        block.outputNames(),
    )


def _operation(kinds: Any, one: Any) -> Any:
    inputs = {}
    for name, argument in one.inputs().items():
        bindings = [
            kinds.MLModelStructureProgramBinding(
                each.name(), None if each.name() else kinds.MLModelStructureProgramValue()
            )
            for each in argument.bindings()
        ]
        inputs[name] = kinds.MLModelStructureProgramArgument(bindings)
    return kinds.MLModelStructureProgramOperation(
        inputs=inputs,
        operator_name=one.operatorName(),
        outputs=[_named(kinds, each) for each in one.outputs()],
        blocks=[_block(kinds, each) for each in one.blocks()],
        __proxy__=one,
    )


def _features(inputs: Mapping[str, Any]) -> Any:
    try:
        return provider({name: _feature(value) for name, value in inputs.items()})
    except SoftCoreMLError as problem:
        raise RuntimeError(str(problem)) from None


def _feature(value: Any) -> Any:
    if hasattr(value, "mode") and hasattr(value, "tobytes") and not isinstance(value, np.ndarray):
        return _from_image(value)
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value.item()
        return MLMultiArray.over(value if value.dtype in DATA_TYPES else _narrowed(value))
    return value


def _narrowed(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in a type that a multi-array can hold."""
    if value.dtype.kind in "iub":
        if value.size and not -(2**31) <= int(value.min()) <= int(value.max()) < 2**31:
            raise RuntimeError(f"integers of {value.dtype} beyond int32 cannot be passed")
        return value.astype(np.int32)
    return value.astype(np.float32)


def _from_image(image: Any) -> PixelBuffer:
    """A picture of PIL."""
    if image.mode == "F":
        return PixelBuffer(np.asarray(image, np.float32).astype(np.float16))
    return PixelBuffer(np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB")))


def _to_python(outputs: Any) -> dict[str, Any]:
    return {
        name: _plain(outputs.featureValueForName_(name)) for name in sorted(outputs.featureNames())
    }


def _plain(value: MLFeatureValue) -> Any:
    if value.type() == MLFeatureTypeMultiArray:
        return _to_python_array(value.multiArrayValue())
    if value.type() == MLFeatureTypeImage:
        return _to_image(value.imageBufferValue())
    if value.type() == MLFeatureTypeDictionary:
        return value.dictionaryValue()
    return value._value


def _to_python_array(array: MLMultiArray | None) -> Any:
    """As coremltools' native module does, float16 comes out as float32."""
    if array is None:
        return None
    half = array.array.dtype == np.float16
    return array.array.astype(np.float32) if half else array.array


def _to_image(pixels: PixelBuffer | None) -> Any:
    if pixels is None:
        return None
    image = _module("PIL.Image")
    half = pixels.array.dtype == np.float16
    return image.fromarray(pixels.array.astype(np.float32) if half else pixels.array)


_NAMES = (
    _MLModelProxy,
    _MLModelAssetProxy,
    _MLComputePlanProxy,
    _MLCPUComputeDeviceProxy,
    _MLGPUComputeDeviceProxy,
    _MLNeuralEngineComputeDeviceProxy,
    _State,
)


def install() -> None:
    """Put this module in the place of coremltools' native one, loaded before or after."""
    native = ModuleType("coremltools.libcoremlpython", __doc__)
    for one in _NAMES:
        setattr(native, one.__name__, one)
    sys.modules["coremltools.libcoremlpython"] = native
    tools = import_module("coremltools")
    tools.libcoremlpython = native  # type: ignore[attr-defined]
    for name in (
        "coremltools.models.model",
        "coremltools.models.utils",
        "coremltools.models.compute_device",
        "coremltools.models.compute_plan",
        "coremltools.models._compiled_model",
    ):
        module: Any = import_module(name)
        for one in _NAMES:
            if hasattr(module, one.__name__):
                setattr(module, one.__name__, one)
        if hasattr(module, "_macos_version"):
            module._macos_version = lambda: MACOS_VERSION
        if hasattr(module, "_is_macos"):
            module._is_macos = lambda: True
