"""`lbrx.compile(function, unit="neural-engine")`: a traced function as a Core ML program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import Array
from lbrx.errors import TraceError
from lbrx.graph import graph
from lbrx.graph.graph import Node
from lbrx.graph.traced_memory import stand_in
from lbrx.neural_engine.binding import mil_builder, mil_types
from lbrx.neural_engine.core_ml_model import CoreMLModel, compiled_model
from lbrx.neural_engine.mil_package import build_function, write_package
from lbrx.neural_engine.operation_refusals import refusal
from lbrx.neural_engine.operation_table import EMIT
from lbrx.neural_engine.views import reshaped, view
from lbrx.ops import Spec
from lbrx.tensors.compilation import INPUT_ALIGNMENT, metal_array, replaced, split_arguments
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.traced_number import traced_function, tracing

FLOATS = (dt.float16, dt.float32)


def compile_function(function: Callable[..., Any]) -> NeuralEngineFunction:
    """A version of a function of tensors that Core ML runs on the Neural Engine."""
    return NeuralEngineFunction(function)


@dataclass(frozen=True)
class _Output:
    """A tensor among the results: the program's output `name` as it was traced."""

    name: str
    spec: Spec


class NeuralEngineFunction:
    """A function that is compiled for the Neural Engine, as `lbrx.compile` returns it.

    It is traced once for each combination of shapes, dtypes and other arguments. Everything is
    computed in float16, whatever the dtype of the arguments; results have the dtype that they were
    traced with and are on the device of the first argument.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._programs: dict[object, _Program] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if traced_function() is not None:  # the outer trace records this call
            return self.function(*args, **kwargs)
        key, tensors = split_arguments((args, kwargs))
        if not tensors:
            raise TraceError("the Neural Engine needs a tensor to compute on: pass one")
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _Program(self.function, (args, kwargs), tensors)
        return program.run(tensors)

    def package(self, *args: Any, **kwargs: Any) -> Path:
        """The `.mlpackage` of the program for such arguments, which a call has compiled.

        Raises TraceError if no call had such arguments.
        """
        key, _ = split_arguments((args, kwargs))
        if key not in self._programs:
            raise TraceError("there is no program for such arguments: call the function first")
        return self._programs[key].package


class _Program:
    """The program of one combination of arguments."""

    def __init__(self, function: Callable[..., Any], given: Any, tensors: list[Tensor]) -> None:
        self.name = getattr(function, "__name__", repr(function))
        self._check_inputs(tensors)
        arrays = [metal_array(one.to_device("metal")) for one in tensors]
        self._inputs = [stand_in(array, self.name, INPUT_ALIGNMENT) for array in arrays]
        args, kwargs = replaced(given, list(map(Tensor, self._inputs)))
        with tracing(self.name):
            results = function(*args, **kwargs)
        found: list[Tensor] = []
        self._results = _numbered(results, found)
        self._outputs = [one.array for one in found]
        if not found:
            raise TraceError(f"{self.name} returns no tensor: return what it computes")
        self._folder = TemporaryDirectory(prefix="lbrx-neural-engine-")
        self.package = Path(self._folder.name) / "function.mlpackage"
        write_package(self.package, {"main": self._translated()})
        self._model = CoreMLModel(compiled_model(self.package), "main")
        del self._inputs, self._outputs

    def _check_inputs(self, tensors: Sequence[Tensor]) -> None:
        wrong = [
            f"argument {place} is {one.dtype}: cast it to float16"
            for place, one in enumerate(tensors)
            if one.dtype not in FLOATS
        ] + [
            f"argument {place} has the shape {one.shape}: give it 1 to 5 axes that are not empty"
            for place, one in enumerate(tensors)
            if not 1 <= len(one.shape) <= 5 or 0 in one.shape
        ]
        self._refuse(wrong)

    def _refuse(self, reasons: Sequence[str]) -> None:
        if reasons:
            listed = "".join(f"\n  {reason}" for reason in dict.fromkeys(reasons))
            raise TraceError(f"{self.name} cannot run on the Neural Engine:{listed}")

    def _translated(self) -> Any:
        """The MIL function. Raises TraceError with every operation that is refused."""
        nodes = graph.in_order(graph.nodes_of(one.storage for one in self._outputs))
        varying = self._varying(nodes)
        self._refuse([reason for node in varying if (reason := self._reason(node, varying))])
        mb, types = mil_builder(), mil_types()
        inputs = {
            f"x{place}": mb.placeholder(one.layout.shape, dtype=types.fp16)
            for place, one in enumerate(self._inputs)
        }
        emitter = _Emitter(self._inputs, set(varying))
        return build_function(inputs, lambda *given: emitter.run(given, varying, self._outputs))

    def _varying(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes that depend on an argument, in order."""
        arguments = {id(one.storage) for one in self._inputs}
        found: dict[Node, None] = {}
        for node in nodes:
            for one in node.inputs:
                if one is not None and (
                    id(one.storage) in arguments or graph.node_of(one) in found
                ):
                    found[node] = None
        return list(found)

    def _reason(self, node: Node, varying: Sequence[Node]) -> str | None:
        arguments = {id(one.storage) for one in self._inputs}
        specs = [None if x is None else Spec(x.layout.shape, x.dtype) for x in node.inputs]
        constant = [
            x is None or (id(x.storage) not in arguments and graph.node_of(x) not in varying)
            for x in node.inputs
        ]
        problem = refusal(node.op.name, specs, node.outputs, node.attributes, constant)
        if problem is None and node.op.name not in EMIT:
            problem = "it is not translated: compute it outside the function"
        return None if problem is None else f"{node.op.name}: {problem}"

    def run(self, tensors: Sequence[Tensor]) -> Any:
        given = {
            f"x{place}": np.ascontiguousarray(one.numpy(), np.float16)
            for place, one in enumerate(tensors)
        }
        made = self._model.predict(given)
        return _filled(self._results, made, tensors[0].device)


class _Emitter:
    """Emits the operations of a graph, and the constants and views that they read."""

    def __init__(self, inputs: Sequence[Array], varying: set[Node]) -> None:
        self._places = {id(one.storage): place for place, one in enumerate(inputs)}
        self._varying = varying
        self._made: dict[tuple[Node, int], Any] = {}
        self._given: Sequence[Any] = ()

    def run(self, given: Sequence[Any], nodes: Sequence[Node], outputs: Sequence[Array]) -> Any:
        self._given = given
        for node in nodes:
            operands = [None if x is None else self._operand(x) for x in node.inputs]
            result = EMIT[node.op.name](operands, node.attributes, node.outputs)
            several = result if isinstance(result, tuple) else (result,)
            for index, value in enumerate(several):
                self._made[node, index] = value
        mb = mil_builder()
        made = []
        for place, one in enumerate(outputs):
            value = self._operand(one)
            if one.dtype is dt.bool_:
                value = mb.cast(x=value, dtype="fp16")
            made.append(mb.identity(x=value, name=f"y{place}"))
        return tuple(made)

    def _operand(self, array: Array) -> Any:
        """The variable of an operand, or a numpy array for a constant."""
        base = self._base(array)
        if base is not None:
            return view(base, array.layout)
        values: NDArray[Any] = Tensor(array).numpy()
        if array.dtype.is_float:
            with np.errstate(over="ignore"):  # -1e9 in masks becomes -inf
                values = values.astype(np.float16)
        return np.ascontiguousarray(values) if values.ndim else values.reshape(1)

    def _base(self, array: Array) -> Any:
        """The contiguous variable that an array is a view of; None for a constant."""
        place = self._places.get(id(array.storage))
        if place is not None:
            return self._given[place]
        node = graph.node_of(array)
        if node is None or node not in self._varying:
            return None
        index = array.storage.index  # type: ignore[attr-defined]
        return reshaped(self._made[node, index], node.outputs[index].shape)


def _numbered(value: Any, found: list[Tensor]) -> Any:
    """A result with an `_Output` in place of each tensor."""
    if isinstance(value, Tensor):
        found.append(value)
        return _Output(f"y{len(found) - 1}", Spec(value.shape, value.dtype))
    if isinstance(value, list | tuple):
        items = [_numbered(item, found) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _numbered(item, found) for key, item in value.items()}
    return value


def _filled(value: Any, made: dict[str, NDArray[Any]], device: str) -> Any:
    """A result with tensors in place of each `_Output`."""
    if isinstance(value, _Output):
        array = made[value.name].reshape(value.spec.shape)
        return tensor(array, dtype=value.spec.dtype, device=device)
    if isinstance(value, list | tuple):
        items = [_filled(item, made, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _filled(item, made, device) for key, item in value.items()}
    return value
