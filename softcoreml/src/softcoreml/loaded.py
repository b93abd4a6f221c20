"""A model that is loaded: features go in and come out, checked against its description."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from softcoreml import mil
from softcoreml.description import ArrayFeature, Feature, FunctionDescription
from softcoreml.errors import InputError, ModelError
from softcoreml.format.package import ModelFile
from softcoreml.format.read import read_model
from softcoreml.interpreter import Prepared, StateCell, Watch, prepare
from softcoreml.interpreter.prepare import check_operations
from softcoreml.interpreter.rounding import Precision


class States:
    """The states of one model for a series of predictions, by name. Not for two threads at once."""

    def __init__(self, cells: dict[str, StateCell]) -> None:
        self.cells = cells
        self._lock = threading.Lock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps a second prediction away; Core ML does not allow one either."""
        if not self._lock.acquire(blocking=False):
            raise InputError("a state is used by two predictions at once: make one for each")
        try:
            yield
        finally:
            self._lock.release()

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """The buffer of a state, which may be written."""
        if name not in self.cells:
            raise InputError(f"{name!r} is not a state: the states are {', '.join(self.cells)}")
        return self.cells[name].buffer

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


class LoadedModel:
    """One function of a model, ready to predict.

    Example:
        model = softcoreml.load("net.mlpackage")
        model.predict({"x": np.zeros((1, 3), np.float32)})["y"]
    """

    def __init__(
        self, file: ModelFile, function: str | None = None, precision: Precision = "declared"
    ) -> None:
        if precision not in ("declared", "float32"):
            raise ValueError(f'precision is "declared" or "float32", not {precision!r}')
        self.file = file
        self.description: FunctionDescription = file.description.function(function)
        self.precision: Precision = precision
        name = self.description.name
        if name not in file.program.functions:
            raise ModelError(f"the program has no function {name!r}, which its description names")
        check_operations(file.program)
        self.function: mil.Function = file.program.functions[name]
        self._prepared: Prepared = prepare(self.function, file.weights, precision)
        self._check_features()

    def _check_features(self) -> None:
        """The description and the function must speak of the same values."""
        inputs = {one.name: one.type for one, _ in self._prepared.inputs}
        described = {one.name for one in (*self.description.inputs, *self.description.states)}
        if described != inputs.keys():
            raise ModelError(
                f"the description has the inputs {sorted(described)} and the function "
                f"{sorted(inputs)}"
            )
        for state in self.description.states:
            if not isinstance(inputs[state.name], mil.StateType):
                raise ModelError(f"{state.name!r} is a state of the description only")
        for output in self.description.outputs:
            if output.name not in self._prepared.output_names:
                raise ModelError(f"the function has no output {output.name!r}")

    def new_states(self) -> States:
        """States of zeros, to be passed to `predict`."""
        return States(self._prepared.states())

    def predict(
        self,
        inputs: Mapping[str, Any],
        states: States | None = None,
        watch: Watch | None = None,
    ) -> dict[str, Any]:
        """One prediction from arrays to arrays, by the names of the features.

        Raises:
            InputError: an input is missing, unknown, or of a shape the model does not take.
            ModelError: the program cannot be run on these inputs.
        """
        for name in inputs:
            self.description.input(name)
        given = {one.name: self._given(one, inputs) for one in self.description.inputs}
        self._check_enumerations(given)
        if states is None:
            results = self._prepared.run(given, None, watch)
        else:
            with states.in_use():
                results = self._prepared.run(given, states.cells, watch)
        return {one.name: self._result(one, results[one.name]) for one in self.description.outputs}

    def _given(self, feature: Feature, inputs: Mapping[str, Any]) -> Any:
        kind = feature.type
        if feature.name not in inputs:
            if isinstance(kind, ArrayFeature) and kind.default is not None:
                return np.full(kind.shape, kind.default, mil.DTYPES[kind.dtype])
            if isinstance(kind, ArrayFeature) and feature.optional:
                return np.zeros(kind.shape, mil.DTYPES[kind.dtype])
            raise InputError(f"input {feature.name!r} is missing")
        value = inputs[feature.name]
        if isinstance(kind, ArrayFeature):
            array = np.asarray(value)
            if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
                raise InputError(f"input {feature.name!r} holds {array.dtype}, not numbers")
            if reason := kind.misfit(array.shape):
                raise InputError(f"input {feature.name!r}: {reason}")
            return array
        return value

    def _check_enumerations(self, given: Mapping[str, Any]) -> None:
        """Enumerated shapes of several inputs belong together by their place in the lists."""
        possible: set[int] | None = None
        for one in self.description.inputs:
            if isinstance(one.type, ArrayFeature) and one.type.enumerated:
                shape = np.shape(given[one.name])
                here = {place for place, each in enumerate(one.type.enumerated) if each == shape}
                possible = here if possible is None else possible & here
        if possible is not None and not possible:
            raise InputError("the enumerated shapes of the inputs do not belong together")

    def _result(self, feature: Feature, value: Any) -> Any:
        if not isinstance(feature.type, ArrayFeature):
            return value
        array = np.asarray(value)
        # MLMultiArray has no rank 0: a scalar comes out as one element.
        array = array.reshape(1) if array.ndim == 0 else array
        if self.precision == "float32" and feature.type.dtype == "fp16":
            return array
        return array.astype(mil.DTYPES[feature.type.dtype], copy=False)


def load(
    path: str | Path, function: str | None = None, precision: Precision = "declared"
) -> LoadedModel:
    """Load a `.mlpackage`, `.mlmodel` or `.mlmodelc`.

    Args:
        function: for a model of several functions, which one; else its default.
        precision: `declared` rounds each result as the program says, `float32` keeps fp16 results
            in float32, to see what the rounding does.

    Raises:
        ModelError: the files are not an ML program that can be used.
        UnsupportedOperation: the program has operations that softcoreml lacks; names them all.
    """
    return LoadedModel(read_model(Path(path)), function, precision)
