"""`lbrx.compile`: a function of tensors, traced once for each kind of arguments, then replayed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx.dtype import Dtype
from lbrx.errors import DeviceError, TraceError
from lbrx.shape import Layout
from lbrx.storage import Array, MetalStorage
from lbrx.tensor.core import Tensor
from lbrx.tensor.number import TracedNumber, traced_function, tracing

if TYPE_CHECKING:
    from lbrx.scheduler.replay import Recording

log = logging.getLogger("lbrx")
MANY = 8  # traces, before somebody is told


def compile(function: Callable[..., Any]) -> Compiled:
    """The function, fast to call again.

    It is traced once for each combination of shapes, dtypes and other arguments, and its kernels
    are replayed as one list after that. Floats may change without a new trace, unless the function
    looks at their value. It may not look at the values of tensors or draw random numbers, and
    what it does beside computing tensors happens only when it is traced.
    """
    return Compiled(function)


@dataclass(frozen=True)
class _Trace:
    recording: Recording
    results: Any  # the structure, with _Result in place of tensors
    looked_at: dict[int, float]  # floats whose values the function used, by number

    def fits(self, numbers: list[float]) -> bool:
        return all(numbers[i] == value for i, value in self.looked_at.items())


@dataclass(frozen=True)
class _Result:
    index: int
    layout: Layout
    dtype: Dtype


class Compiled:
    """What `lbrx.compile` returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traces: dict[object, list[_Trace]] = {}
        functools.update_wrapper(self, function)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """As a method: the object it is called on is one of the other arguments."""
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if traced_function() is not None:  # its trace takes this in
            return self.function(*args, **kwargs)
        tensors: list[Tensor] = []
        numbers: list[float] = []
        from lbrx.kernels.arrays import whole_buffer
        from lbrx.scheduler.tracing import setting

        key = setting(), _key((args, kwargs), tensors, numbers)
        arrays = [_plain(tensor) for tensor in tensors]
        traces = self._traces.setdefault(key, [])
        trace = next((t for t in traces if t.fits(numbers)), None)
        if trace is None:
            trace = self._traced((args, kwargs), arrays, numbers)
            traces.append(trace)
            self._warn()
        made = trace.recording.run([whole_buffer(array) for array in arrays], numbers)
        return _filled(trace.results, made)

    def _traced(self, given: Any, arrays: list[Array], numbers: list[float]) -> _Trace:
        from lbrx.scheduler import tracing as traces

        name = getattr(self.function, "__name__", repr(self.function))
        inputs = [traces.stand_in(array, name) for array in arrays]
        slots = [TracedNumber(value, i) for i, value in enumerate(numbers)]
        args, kwargs = _replaced(given, iter(map(Tensor, inputs)), iter(slots))
        with tracing(name):
            results = self.function(*args, **kwargs)
        outputs: list[Tensor] = []
        structure = _outlined(results, outputs)
        recording = traces.recorded([t.array for t in outputs], inputs, name)
        looked_at = {slot.index: slot.value for slot in slots if slot.looked_at}
        return _Trace(recording, structure, looked_at)

    def _warn(self) -> None:
        count = sum(map(len, self._traces.values()))
        if count % MANY == 0:
            log.warning(
                "%s has been traced %d times: shapes, dtypes or arguments keep changing",
                getattr(self.function, "__name__", self.function),
                count,
            )


def _plain(tensor: Tensor) -> Array:
    """A contiguous array in real memory of the Metal device."""
    if tensor.device != "metal":
        raise DeviceError(
            f"a compiled function takes tensors on 'metal', not {tensor.device!r}: "
            "move them with to_device('metal')"
        )
    plain = tensor.contiguous()
    storage = plain.storage
    if not isinstance(storage, MetalStorage):
        raise TraceError(
            "a compiled function takes no quantized tensors: let it use one from outside"
        )
    return Array(storage, plain.array.layout, plain.dtype)


def _key(value: Any, tensors: list[Tensor], numbers: list[float]) -> object:
    """What must be alike for a trace to be used again; collects the tensors and floats."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.shape, value.dtype
    if isinstance(value, float | np.floating):
        numbers.append(float(value))
        return float
    if isinstance(value, list | tuple):
        return type(value), tuple(_key(item, tensors, numbers) for item in value)
    if isinstance(value, dict):
        return tuple((k, _key(v, tensors, numbers)) for k, v in value.items())
    if value.__hash__ is None:
        raise TraceError(
            f"a compiled function is given {type(value).__name__}, which no trace can be found by: "
            "give tensors, numbers, strings, and lists, tuples and dictionaries of them"
        )
    return type(value), value


def _replaced(value: Any, tensors: Any, numbers: Any) -> Any:
    """The same arguments with stand-ins for tensors and floats, met in the order of `_key`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, float | np.floating):
        return next(numbers)
    if isinstance(value, list | tuple):
        return _alike(value, [_replaced(item, tensors, numbers) for item in value])
    if isinstance(value, dict):
        return {k: _replaced(v, tensors, numbers) for k, v in value.items()}
    return value


def _alike(value: Any, items: list[Any]) -> Any:
    """Items as a list, tuple or named tuple, as the value is."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _outlined(value: Any, outputs: list[Tensor]) -> Any:
    """A result with its tensors taken out."""
    if isinstance(value, Tensor):
        if value.device != "metal":
            return value
        outputs.append(value)
        return _Result(len(outputs) - 1, value.array.layout, value.dtype)
    if isinstance(value, TracedNumber):
        return float(value)
    if isinstance(value, list | tuple):
        return _alike(value, [_outlined(item, outputs) for item in value])
    if isinstance(value, dict):
        return {k: _outlined(v, outputs) for k, v in value.items()}
    return value


def _filled(value: Any, buffers: list[Any]) -> Any:
    """A result with tensors over these buffers put in."""
    if isinstance(value, _Result):
        buffer = buffers[value.index]
        storage = MetalStorage(buffer, 0, buffer.size)
        return Tensor(Array(storage, value.layout, value.dtype))
    if isinstance(value, list | tuple):
        return _alike(value, [_filled(item, buffers) for item in value])
    if isinstance(value, dict):
        return {k: _filled(v, buffers) for k, v in value.items()}
    return value
