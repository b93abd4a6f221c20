"""A compiled Core ML program: loading, states and predictions through PyObjC's names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
T = TypeVar("T")
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
        self.inputs = tuple(str(name) for name in description.inputDescriptionsByName())
        self.outputs = tuple(str(name) for name in description.outputDescriptionsByName())
        self.has_states = bool(len(description.stateDescriptionsByName()))

    def new_state(self) -> Any:
        """New states of zeros, for a series of predictions."""
        return self._model.newState()

    def predict(
        self, inputs: Mapping[str, NDArray[Any]], state: Any = None
    ) -> dict[str, NDArray[Any]]:
        """One prediction, from arrays to arrays by name. It changes the state."""
        results = self.run({name: feature_value(array) for name, array in inputs.items()}, state)
        return {name: _values(value) for name, value in results.items()}

    def run(self, values: Mapping[str, Any], state: Any = None) -> dict[str, Any]:
        """The same from feature values to feature values, of which nothing is copied here."""
        provider = core_ml().MLDictionaryFeatureProvider.alloc()
        features = _checked(provider.initWithDictionary_error_(dict(values), None))
        if state is None:
            made = self._model.predictionFromFeatures_error_(features, None)
        else:
            made = self._model.predictionFromFeatures_usingState_error_(features, state, None)
        results = _checked(made)
        return {name: results.featureValueForName_(name) for name in self.outputs}


class CoreMLChain:
    """Programs that run one after the other. Each takes by name what was given at first and what
    the programs before it gave."""

    def __init__(self, models: Sequence[CoreMLModel]) -> None:
        self.models = models

    def new_state(self) -> list[Any]:
        """New states of zeros for each program that has some, else None."""
        return [model.new_state() if model.has_states else None for model in self.models]

    def predict(
        self, inputs: Mapping[str, NDArray[Any]], states: Sequence[Any]
    ) -> dict[str, NDArray[Any]]:
        """One prediction: the arrays of the last program. It changes the states."""
        known = {name: feature_value(array) for name, array in inputs.items()}
        results: dict[str, Any] = {}
        for model, state in zip(self.models, states, strict=True):
            results = model.run({name: known[name] for name in model.inputs}, state)
            known |= results
        return {name: _values(value) for name, value in results.items()}


def feature_value(array: NDArray[Any]) -> Any:
    """A feature value with a copy of an array."""
    return core_ml().MLFeatureValue.featureValueWithMultiArray_(_multi_array(array))


def _values(value: Any) -> NDArray[Any]:
    return read_multi_array(value.multiArrayValue())


def use_state(state: Any, name: str, use: Callable[[NDArray[Any]], T]) -> T:
    """What `use` makes of a state's own memory, which may be seen during the call alone."""
    found: list[T] = []

    def seen(array: Any) -> None:
        _use_multi_array(array, lambda values: found.append(use(values)))

    state.getMultiArrayForStateNamed_handler_(name, seen)
    return found[0]


def read_state(state: Any, name: str) -> NDArray[Any]:
    """A copy of a state."""
    return use_state(state, name, np.array)


def read_multi_array(array: Any) -> NDArray[Any]:
    """The values of an MLMultiArray as a new array."""
    found: list[NDArray[Any]] = []
    _use_multi_array(array, lambda values: found.append(np.array(values)))
    return found[0]


def _use_multi_array(array: Any, use: Callable[[NDArray[Any]], object]) -> None:
    dtype = DATA_TYPES[int(array.dataType())]
    shape, strides = (tuple(map(int, sizes)) for sizes in (array.shape(), array.strides()))

    def view(data: Any, size: int) -> None:
        flat = np.frombuffer(data, dtype, size // dtype.itemsize)
        use(as_strided(flat, shape, [step * dtype.itemsize for step in strides]))

    array.getBytesWithHandler_(view)


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
