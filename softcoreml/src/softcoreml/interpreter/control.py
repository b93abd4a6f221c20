"""Operations that are the interpreter's own: control flow, lists and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.interpreter.rounding import Precision, held_dtype

if TYPE_CHECKING:
    from softcoreml.interpreter.run import Body, Run

BLOCKS = {"cond": "pred", "while_loop": "loop_vars"}
"""The operations that have two nested blocks, and the input that each must have."""

VARIADIC = {
    ("while_loop", "loop_vars"),
    ("concat", "values"),
    ("stack", "values"),
    ("einsum", "values"),
    ("make_list", "elem_shape"),
}
"""Inputs that are passed as a tuple even when a program gives only one value."""

MAX_LIST = 1 << 24


class StateCell:
    """A state: `buffer` is what lives on, and what `MLState` shows.

    During a prediction a write replaces the value and leaves the buffer alone, so a value that was
    read before stays what it was. The buffer is written once, when the prediction has succeeded.
    """

    def __init__(self, buffer: np.ndarray[Any, Any]) -> None:
        self.buffer = buffer
        self._value = buffer

    @classmethod
    def zeros(cls, kind: mil.StateType, precision: Precision) -> StateCell:
        dims = kind.wrapped.dims
        if dims is None or None in dims:
            raise ModelError(f"a state of type {kind} has no fixed shape")
        try:
            shape = [size or 0 for size in dims]
            return cls(np.zeros(shape, held_dtype(kind.wrapped.dtype, precision)))
        except (MemoryError, ValueError) as problem:
            raise ModelError(f"no memory for a state of type {kind}: {problem}") from None

    def begin(self) -> StateCell:
        self._value = self.buffer
        return self

    def read(self) -> np.ndarray[Any, Any]:
        view = self._value.view()
        view.flags.writeable = False
        return view

    def write(self, value: np.ndarray[Any, Any]) -> None:
        array = np.asarray(value)
        if array.shape != self.buffer.shape:
            raise ModelError(f"a value of shape {array.shape} for a state of {self.buffer.shape}")
        self._value = array.astype(self.buffer.dtype, copy=False)

    def commit(self) -> None:
        if self._value is not self.buffer:
            np.copyto(self.buffer, self._value)
            self._value = self.buffer


def run(name: str, given: dict[str, Any]) -> Any:
    """The results of an operation of this module that has no blocks."""
    return _TABLE[name](**given)


def run_blocks(call: Run, name: str, given: dict[str, Any], bodies: tuple[Body, ...]) -> Any:
    """The results of an operation with blocks, whose own operations name themselves in errors."""
    if name == "cond":
        return call.body(bodies[0] if given["pred"] else bodies[1])
    return _while(call, given["loop_vars"], bodies)


def _while(call: Run, values: tuple[Any, ...], bodies: tuple[Body, ...]) -> tuple[Any, ...]:
    condition, body = bodies
    while True:
        again = call.body(condition, values)
        if len(again) != 1:
            raise ModelError(f"the condition of a while_loop gives {len(again)} values, not one")
        if not again[0]:
            return values
        values = call.body(body, values)


def _make_list(
    elem_shape: tuple[Any, ...],
    init_length: Any = 1,
    dynamic_length: bool = True,
    dtype: str = "fp32",
) -> list[Any]:
    """Elements are zeros until they are written; with an unknown shape they have no value."""
    del dynamic_length  # a list may always grow here
    length = int(init_length)
    if not 0 <= length <= MAX_LIST:
        raise ModelError(f"a list of {length} elements: at most {MAX_LIST} are possible")
    sizes = [size for part in elem_shape for size in np.atleast_1d(part).tolist()]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        return [None] * length
    zero = np.zeros(sizes, mil.DTYPES[dtype])
    zero.flags.writeable = False
    return [zero] * length


def _element(ls: list[Any], index: Any) -> Any:
    place = int(index)
    if not 0 <= place < len(ls):
        raise ModelError(f"index {place} of a list of {len(ls)}")
    if ls[place] is None:
        raise ModelError(f"element {place} of a list is read before it is written")
    return ls[place]


def _list_read(ls: list[Any], index: Any) -> Any:
    return _element(ls, index)


def _list_write(ls: list[Any], index: Any, value: Any) -> list[Any]:
    return _list_scatter(ls, np.array([index]), np.asarray(value)[None])


def _list_gather(ls: list[Any], indices: Any) -> Any:
    return np.stack([_element(ls, index) for index in np.atleast_1d(indices)])


def _list_scatter(ls: list[Any], indices: Any, value: Any) -> list[Any]:
    places = [int(index) for index in np.atleast_1d(indices)]
    if places and not 0 <= min(places) <= max(places) < MAX_LIST:
        raise ModelError(f"indices {min(places)} to {max(places)} of a list of {len(ls)}")
    changed = ls + [None] * (max(places, default=-1) + 1 - len(ls))
    for place, one in zip(places, value, strict=True):
        changed[place] = one
    return changed


def _list_length(ls: list[Any]) -> Any:
    return np.int32(len(ls))


def _read_state(input: StateCell) -> Any:
    return input.read()


def _write_state(input: StateCell, data: Any) -> tuple[()]:
    input.write(data)
    return ()


_TABLE: dict[str, Callable[..., Any]] = {
    "make_list": _make_list,
    "list_read": _list_read,
    "list_write": _list_write,
    "list_gather": _list_gather,
    "list_scatter": _list_scatter,
    "list_length": _list_length,
    "read_state": _read_state,
    "write_state": _write_state,
}

OPERATIONS = frozenset(_TABLE) | BLOCKS.keys()
"""The names of the interpreter's own operations."""
