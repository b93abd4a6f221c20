"""Running a prepared function: frames of values, steps, and the rounding of every result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softcoreml import acceleration, mil
from softcoreml.errors import InputError, ModelError, SoftCoreMLError
from softcoreml.interpreter import control
from softcoreml.interpreter.constants import Constant
from softcoreml.interpreter.control import StateCell
from softcoreml.interpreter.rounding import Precision, as_argument, conform, held_dtype

Watch = Callable[[mil.Operation, Mapping[str, Any], tuple[Any, ...]], None]
"""Called after each operation with its arguments and its results."""


@dataclass(frozen=True)
class Slot:
    """A place in the frame of a call."""

    index: int


Argument = Slot | Constant


@dataclass
class Step:
    """One operation with everything resolved; `execute` is None for the interpreter's own."""

    operation: mil.Operation
    where: str
    execute: Callable[..., Any] | None
    arguments: Mapping[str, Argument | tuple[Argument, ...]]
    bodies: tuple[Body, ...]
    slots: tuple[Slot, ...]
    frees: tuple[int, ...] = field(default=())

    def reads(self) -> set[int]:
        """The slots that this step reads, in nested blocks too."""
        found = set()
        for given in self.arguments.values():
            several = given if isinstance(given, tuple) else (given,)
            found |= {one.index for one in several if isinstance(one, Slot)}
        for body in self.bodies:
            found |= {one.index for one in body.outputs if isinstance(one, Slot)}
            for step in body.steps:
                found |= step.reads()
        return found


@dataclass(frozen=True)
class Body:
    """A block: the slots of its inputs, its steps, and where its outputs are."""

    parameters: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Argument, ...]


@dataclass(frozen=True)
class Prepared:
    """A function that is ready to run."""

    inputs: tuple[tuple[mil.NamedType, Slot], ...]
    body: Body
    slots: int
    output_names: tuple[str, ...]
    precision: Precision

    def states(self) -> dict[str, StateCell]:
        """New states of zeros for every input that is a state."""
        return {
            one.name: StateCell.zeros(one.type, self.precision)
            for one, _ in self.inputs
            if isinstance(one.type, mil.StateType)
        }

    def run(
        self,
        inputs: Mapping[str, Any],
        states: Mapping[str, StateCell] | None = None,
        watch: Watch | None = None,
    ) -> dict[str, Any]:
        """Run the function once.

        Inputs are arrays of the shapes that the function declares, in any type of numbers. States
        are changed when the whole function has run, and not at all if it fails. The outputs share
        no memory with inputs, states or weights.

        Raises:
            InputError: an input or a state is missing or has the wrong shape.
            ModelError: an operation cannot run on these values; names it.
        """
        frame: list[Any] = [None] * self.slots
        used: list[StateCell] = []
        for declared, slot in self.inputs:
            if isinstance(declared.type, mil.StateType):
                cell = _state(declared.name, declared.type, states)
                used.append(cell)
                frame[slot.index] = cell.begin()
            else:
                frame[slot.index] = self._input(declared, inputs)
        with np.errstate(all="ignore"):
            results = Run(frame, self.precision, watch).body(self.body)
        outputs = {
            name: _owned(value) for name, value in zip(self.output_names, results, strict=True)
        }
        for cell in used:
            cell.commit()
        return outputs

    def _input(self, declared: mil.NamedType, inputs: Mapping[str, Any]) -> Any:
        if declared.name not in inputs:
            known = ", ".join(one.name for one, _ in self.inputs)
            raise InputError(f"input {declared.name!r} is missing: the function takes {known}")
        kind, value = declared.type, inputs[declared.name]
        if not isinstance(kind, mil.TensorType) or kind.dtype == "string":
            return value
        array = np.asarray(value)
        if not kind.admits(array.shape):
            raise InputError(
                f"input {declared.name!r} has the shape {array.shape} instead of {kind}"
            )
        view = array.astype(held_dtype(kind.dtype, self.precision), copy=False).view()
        view.flags.writeable = False
        return as_argument(view)


def _state(name: str, kind: mil.StateType, states: Mapping[str, StateCell] | None) -> StateCell:
    if states is None or name not in states:
        raise InputError(f"state {name!r} is missing: predict with a state of this model")
    cell = states[name]
    if not kind.wrapped.admits(cell.buffer.shape):
        raise InputError(f"state {name!r} has the shape {cell.buffer.shape}, not {kind.wrapped}")
    return cell


def _owned(value: Any) -> Any:
    """An output that nothing else refers to."""
    if isinstance(value, StateCell | list):
        raise ModelError("a function's output is a state or a list: only tensors leave a model")
    if not isinstance(value, np.ndarray):
        return np.asarray(value) if isinstance(value, np.generic | bool) else value
    if value.flags.owndata and value.flags.writeable and value.flags.c_contiguous:
        return value
    return np.array(value, order="C")


class Run:
    """One call: the values of its slots."""

    def __init__(self, frame: list[Any], precision: Precision, watch: Watch | None) -> None:
        self._frame = frame
        self.precision: Precision = precision
        self._watch = watch

    def body(self, body: Body, given: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """Run a block with these values for its inputs."""
        if len(given) != len(body.parameters):
            raise ModelError(
                f"a block of {len(body.parameters)} inputs is given {len(given)} values"
            )
        for slot, value in zip(body.parameters, given, strict=True):
            self._frame[slot.index] = value
        for step in body.steps:
            self._step(step)
        return tuple(self._get(one) for one in body.outputs)

    def _get(self, argument: Argument) -> Any:
        if isinstance(argument, Slot):
            return self._frame[argument.index]
        return argument.get()

    def _step(self, step: Step) -> None:
        results = self._results(step)
        for slot, value in zip(step.slots, results, strict=True):
            self._frame[slot.index] = as_argument(value)
        for index in step.frees:
            self._frame[index] = None

    def _results(self, step: Step) -> tuple[Any, ...]:
        arguments: dict[str, Any] = {}
        for name, given in step.arguments.items():
            if isinstance(given, tuple):
                arguments[name] = tuple(self._get(one) for one in given)
            else:
                arguments[name] = self._get(given)
        one, result = step.operation, self._call(step, arguments)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(one.outputs):
            raise ModelError(
                f"{step.where} gives {len(results)} values for {len(one.outputs)} names"
            )
        rounded = tuple(
            conform(value, out.type, self.precision, step.where)
            for value, out in zip(results, one.outputs, strict=True)
        )
        if self._watch is not None:
            self._watch(one, arguments, rounded)
        return rounded

    def _call(self, step: Step, arguments: dict[str, Any]) -> Any:
        one = step.operation
        if step.bodies:
            return control.run_blocks(self, one.type, arguments, step.bodies)
        if one.type == "cast" and self.precision == "float32" and arguments.get("dtype") == "fp16":
            arguments["dtype"] = "fp32"
        try:
            if step.execute is None:
                return control.run(one.type, arguments)
            return acceleration.run(one.type, step.execute, arguments)
        except SoftCoreMLError as problem:
            raise ModelError(f"{step.where}: {problem}") from problem
        except Exception as problem:
            raise ModelError(f"{step.where}: {type(problem).__name__}: {problem}") from problem
