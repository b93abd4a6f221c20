"""`lbrx.compile`: a function of tensors, traced once per combination of shapes and dtypes, then
replayed as one list of commands."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array, MetalStorage
from lbrx.errors import DeviceError, TraceError
from lbrx.tensors import wrapping
from lbrx.tensors.core import Tensor
from lbrx.tensors.traced_number import TracedNumber, traced_function, tracing
from lbrx.trees import set_tree, tree_map

if TYPE_CHECKING:
    from lbrx.scheduler.replay import Recording

log = logging.getLogger("lbrx")
WARN_EVERY = 8  # traces of one function
INPUT_ALIGNMENT = 16  # bytes: of the widest vectors


UNITS = {"neural-engine": "lbrx.neural_engine.compiled_function"}
"""Units besides the GPU, with the module that compiles for each: named, as it is a layer above."""


P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(function: Callable[P, R]) -> Compiled[P, R]: ...
@overload
def compile(
    function: Callable[P, R], unit: str = "gpu", *, inputs: Any = None, outputs: Any = None
) -> Callable[P, R]: ...


def compile(
    function: Callable[P, R], unit: str = "gpu", *, inputs: Any = None, outputs: Any = None
) -> Callable[P, R]:
    """A version of a function of tensors whose later calls replay its kernels as one list.

    The function is traced once for each combination of shapes, dtypes and other arguments.
    Tensors must be on metal; arguments and results may be lists, tuples and dictionaries of them.
    Floats may change without a new trace, unless the function reads their value; other arguments
    must be hashable. Side effects of the function happen only during a trace, and tensors that it
    refers to without taking them as arguments keep the value that they had then.

    Reading the values of tensors or drawing random numbers within the function, and quantized
    tensors as arguments, raise TraceError; tensors on the cpu raise DeviceError.

    >>> step = lbrx.compile(lambda x, scale: (x * scale).sum())
    >>> step(lbrx.ones(3, device="metal"), 2.0).item()
    6.0

    inputs and outputs are what the function reads and changes besides its arguments: modules,
    states of optimizers, and lists of these. Every call takes their tensors as they are then, and
    puts new ones into the outputs.

    With unit="neural-engine" the function becomes a Core ML program, which computes in float16
    (docs/neural_engine.md). Operations that the Neural Engine does not have raise TraceError at
    the first call, all of them with a remedy each.
    """
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called: give a function of tensors")
    if inputs is not None or outputs is not None:
        if unit != "gpu":
            raise DeviceError(f"unit={unit!r} takes no inputs or outputs: give arguments")
        return Stateful(function, inputs, outputs)
    if unit == "gpu":
        return Compiled(function)
    if unit not in UNITS:
        raise DeviceError(f"{unit!r} is not a unit: give 'gpu' or {', '.join(map(repr, UNITS))}")
    compiled: Callable[P, R] = import_module(UNITS[unit]).compile_function(function)
    return compiled


def split_arguments(given: Any) -> tuple[object, list[Tensor]]:
    """What must be equal for a trace of arguments to be reused, with floats by their value, and
    the tensors among them."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    key = _trace_key(given, tensors, numbers)
    return (key, tuple(numbers)), tensors


def replaced(given: Any, tensors: list[Tensor]) -> Any:
    """Arguments with other tensors in place of theirs, in the order of `split_arguments`."""
    numbers: list[float] = []
    _trace_key(given, [], numbers)
    return _with_stand_ins(given, iter(tensors), iter(numbers))


@dataclass(frozen=True)
class _Trace:
    """The recorded commands of a function for one kind of arguments."""

    recording: Recording
    results: Any
    """What the function returned, with a _Result in place of each tensor."""
    read_numbers: dict[int, float]
    """The float arguments whose value the function read, by index."""

    def fits(self, numbers: list[float]) -> bool:
        return all(numbers[i] == value for i, value in self.read_numbers.items())


@dataclass(frozen=True)
class _Result:
    """A tensor among the results: the output buffer at `index`, seen through a layout."""

    index: int
    layout: Layout
    dtype: Dtype


class Compiled(Generic[P, R]):
    """A compiled function, as `lbrx.compile` returns it. `function` is the original one."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self._traces: dict[object, list[_Trace]] = {}
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<lbrx.compile {getattr(self.function, '__qualname__', repr(self.function))}>"

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """Bind a compiled method: the object becomes the first argument and must be hashable."""
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # An outer trace records this call, and so does a gradient.
        if traced_function() is not None or wrapping.is_inside():
            return self.function(*args, **kwargs)
        tensors: list[Tensor] = []
        numbers: list[float] = []
        traces_of, _, buffer_of = _backend()
        key = traces_of.setting(), _trace_key((args, kwargs), tensors, numbers)
        arrays = [metal_array(tensor) for tensor in tensors]
        traces = self._traces.setdefault(key, [])
        trace = next((t for t in traces if t.fits(numbers)), None)
        if trace is None:
            trace = self._traced((args, kwargs), arrays, numbers)
            traces.append(trace)
            self._warn()
        arrays_of_results = trace.recording.run([buffer_of(array) for array in arrays], numbers)
        results: R = _with_results(trace.results, arrays_of_results)
        return results

    def _traced(self, given: Any, arrays: list[Array], numbers: list[float]) -> _Trace:
        traces, stand_in, _ = _backend()
        name = getattr(self.function, "__name__", repr(self.function))
        inputs = [stand_in(array, name, INPUT_ALIGNMENT) for array in arrays]
        slots = [TracedNumber(value, i) for i, value in enumerate(numbers)]
        args, kwargs = _with_stand_ins(given, iter(map(Tensor, inputs)), iter(slots))
        with tracing(name):
            results = self.function(*args, **kwargs)
        outputs: list[Tensor] = []
        structure = _without_tensors(results, outputs)
        recording = traces.recorded([t.array for t in outputs], inputs, name)
        read_numbers = {slot.index: slot.value for slot in slots if slot.was_read}
        return _Trace(recording, structure, read_numbers)

    def _warn(self) -> None:
        count = sum(map(len, self._traces.values()))
        if count % WARN_EVERY == 0:
            log.warning(
                "%s has been traced %d times: shapes, dtypes or arguments keep changing",
                getattr(self.function, "__name__", self.function),
                count,
            )


class Stateful(Generic[P, R]):
    """A compiled function with inputs and outputs besides its arguments and results."""

    def __init__(self, function: Callable[P, R], inputs: Any, outputs: Any) -> None:
        self.function = function
        self._inputs = inputs
        self._outputs = outputs
        self._compiled = Compiled(self._pure)
        functools.update_wrapper(self, function)

    def _pure(self, state: Any, args: Any, kwargs: Any) -> tuple[R, Any]:
        """The function with its inputs as an argument and its outputs as a result."""
        set_tree(self._inputs, state)
        return self.function(*args, **kwargs), tree_map(lambda x: x, self._outputs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        structure = tree_map(lambda x: x, self._inputs)
        try:
            result, changed = self._compiled(structure, args, kwargs)
        finally:  # a trace leaves its placeholders in them
            set_tree(self._inputs, structure)
        set_tree(self._outputs, changed)
        return result


@functools.cache
def _backend() -> tuple[ModuleType, Callable[..., Array], Callable[[Array], Any]]:
    """What records functions, what makes placeholders, and the buffer of an array. It imports the
    Metal backend."""
    from lbrx.graph.traced_memory import stand_in
    from lbrx.kernels.arrays import whole_buffer
    from lbrx.scheduler import tracing as traces

    return traces, stand_in, whole_buffer


def metal_array(tensor: Tensor) -> Array:
    """The tensor's elements, computed and contiguous in a Metal buffer."""
    if tensor.device != "metal":
        raise DeviceError(
            f"a compiled function takes tensors on 'metal', not {tensor.device!r}: "
            "move them with to_device('metal')"
        )
    plain = tensor.contiguous()
    storage = plain.storage
    if not isinstance(storage, MetalStorage):
        raise TraceError(
            "a compiled function takes no quantized tensors as arguments: "
            "refer to them as variables from outside the function"
        )
    # A replay binds buffers: those of two views of one tensor must start at their first elements,
    # and at multiples of the vectors with which kernels may read them.
    skipped = plain.array.layout.offset * plain.dtype.itemsize
    if (storage.address + skipped) % INPUT_ALIGNMENT:
        return metal_array(plain._call("copy", plain))
    nbytes = plain.size * plain.dtype.itemsize
    if skipped or storage.nbytes != nbytes:  # every input of a shape has as many bytes
        storage = replace(storage, offset=storage.offset + skipped, nbytes=nbytes)
    return Array(storage, sh.contiguous(plain.shape), plain.dtype)


def _trace_key(value: Any, tensors: list[Tensor], numbers: list[float]) -> object:
    """What must be equal for a trace to be reused; appends the tensors and floats it finds."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.shape, value.dtype.name
    if isinstance(value, float | np.floating):
        numbers.append(float(value))
        return float
    if isinstance(value, list | tuple):
        return type(value), tuple(_trace_key(item, tensors, numbers) for item in value)
    if isinstance(value, dict):
        return tuple((k, _trace_key(v, tensors, numbers)) for k, v in value.items())
    if value.__hash__ is None:
        raise TraceError(
            f"an argument of a compiled function is {type(value).__name__}, which is not hashable: "
            "give tensors, numbers, strings, and lists, tuples and dictionaries of them"
        )
    return type(value), value


def _with_stand_ins(value: Any, tensors: Any, numbers: Any) -> Any:
    """The arguments with stand-ins for tensors and floats, in the order of `_trace_key`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, float | np.floating):
        return next(numbers)
    if isinstance(value, list | tuple):
        return _same_sequence(value, [_with_stand_ins(item, tensors, numbers) for item in value])
    if isinstance(value, dict):
        return {k: _with_stand_ins(v, tensors, numbers) for k, v in value.items()}
    return value


def _same_sequence(value: Any, items: list[Any]) -> Any:
    """The items as the same type as the value: list, tuple or named tuple."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _without_tensors(value: Any, outputs: list[Tensor]) -> Any:
    """A result with `_Result` in place of its tensors, which are appended to `outputs`."""
    if isinstance(value, Tensor):
        if value.device != "metal":
            return value
        outputs.append(value)
        return _Result(len(outputs) - 1, value.array.layout, value.dtype)
    if isinstance(value, TracedNumber):
        return float(value)
    if isinstance(value, list | tuple):
        return _same_sequence(value, [_without_tensors(item, outputs) for item in value])
    if isinstance(value, dict):
        return {k: _without_tensors(v, outputs) for k, v in value.items()}
    return value


def _with_results(value: Any, buffers: list[Any]) -> Any:
    """A result with tensors over these buffers in place of each `_Result`."""
    if isinstance(value, _Result):
        buffer = buffers[value.index]
        storage = MetalStorage(buffer, 0, buffer.size)
        return Tensor(Array(storage, value.layout, value.dtype))
    if isinstance(value, list | tuple):
        return _same_sequence(value, [_with_results(item, buffers) for item in value])
    if isinstance(value, dict):
        return {k: _with_results(v, buffers) for k, v in value.items()}
    return value
