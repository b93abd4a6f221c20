"""A compiled Core ML program: loading, states and predictions through PyObjC's names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lbrx.errors import DeviceError
from lbrx.neural_engine.binding import core_ml, file_url

CPU_AND_NEURAL_ENGINE = 3
DATA_TYPES: dict[int, np.dtype[Any]] = {
    65552: np.dtype(np.float16),
    65568: np.dtype(np.float32),
    131104: np.dtype(np.int32),
}
"""MLMultiArrayDataType by number: the types that programs of lbrx have."""
_NUMBERS = {dtype: number for number, dtype in DATA_TYPES.items()}


def compiled_model(package: Path) -> Path:
    """The compiled form of a package, kept beside it until the package is written again. On a Mac
    compiling takes long."""
    folder = package.with_suffix(".mlmodelc")
    if folder.exists():
        if folder.stat().st_mtime_ns >= package.stat().st_mtime_ns:
            return folder
        shutil.rmtree(folder)
    url = _checked(core_ml().MLModel.compileModelAtURL_error_(file_url(str(package)), None))
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.move(str(url.path()), unfinished)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


class CoreMLModel:
    """One function of a compiled program.

    model = CoreMLModel(compiled_model(package), "prefill")
    state = model.new_state()
    outputs = model.predict({"tokens": tokens, "position": position}, state)
    """

    def __init__(self, compiled: Path, function: str | None = None) -> None:
        module = core_ml()
        settings = module.MLModelConfiguration.alloc().init()
        settings.setComputeUnits_(CPU_AND_NEURAL_ENGINE)
        if function is not None:
            settings.setFunctionName_(function)
        url = file_url(str(compiled))
        self._model = _checked(
            module.MLModel.modelWithContentsOfURL_configuration_error_(url, settings, None)
        )
        description = self._model.modelDescription()
        self.outputs = tuple(str(name) for name in description.outputDescriptionsByName())

    def new_state(self) -> Any:
        """New states of zeros, for a series of predictions."""
        return self._model.newState()

    def predict(
        self, inputs: Mapping[str, NDArray[Any]], state: Any = None
    ) -> dict[str, NDArray[Any]]:
        """One prediction, from arrays to arrays by name. It changes the state."""
        module = core_ml()
        values = {
            name: module.MLFeatureValue.featureValueWithMultiArray_(_multi_array(array))
            for name, array in inputs.items()
        }
        provider = module.MLDictionaryFeatureProvider.alloc()
        features = _checked(provider.initWithDictionary_error_(values, None))
        if state is None:
            made = self._model.predictionFromFeatures_error_(features, None)
        else:
            made = self._model.predictionFromFeatures_usingState_error_(features, state, None)
        results = _checked(made)
        return {
            name: read_multi_array(results.featureValueForName_(name).multiArrayValue())
            for name in self.outputs
        }


def read_state(state: Any, name: str, part: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """A copy of what `part` gives of a state's memory, which is only seen during the call."""
    found: list[NDArray[Any]] = []
    state.getMultiArrayForStateNamed_handler_(
        name, lambda array: found.append(read_multi_array(array, part))
    )
    return found[0]


def read_multi_array(
    array: Any, part: Callable[[NDArray[Any]], NDArray[Any]] | None = None
) -> NDArray[Any]:
    """The values of an MLMultiArray as a new array, or a part of them."""
    dtype = DATA_TYPES[int(array.dataType())]
    shape, strides = (tuple(map(int, sizes)) for sizes in (array.shape(), array.strides()))
    found: list[NDArray[Any]] = []

    def copy(data: Any, size: int) -> None:
        flat = np.frombuffer(data, dtype, size // dtype.itemsize)
        seen = as_strided(flat, shape, [step * dtype.itemsize for step in strides])
        found.append(np.array(seen if part is None else part(seen)))

    array.getBytesWithHandler_(copy)
    return found[0]


def _multi_array(values: NDArray[Any]) -> Any:
    """An MLMultiArray with a copy of the values: Core ML chooses strides that suit its units."""
    empty = core_ml().MLMultiArray.alloc()
    shape = [int(size) for size in values.shape]
    made = _checked(empty.initWithShape_dataType_error_(shape, _NUMBERS[values.dtype], None))

    def fill(data: Any, size: int, strides: Any) -> None:
        flat = np.frombuffer(data, values.dtype, size // values.itemsize)
        steps = [int(step) * values.itemsize for step in strides]
        as_strided(flat, shape, steps)[...] = values

    made.getMutableBytesWithHandler_(fill)
    return made


def _checked(made: Any) -> Any:
    """The result of a method with an `error:` argument. Raises DeviceError if there is none."""
    result, problem = made
    if result is None:
        raise DeviceError(f"Core ML: {problem.localizedDescription()}")
    return result
