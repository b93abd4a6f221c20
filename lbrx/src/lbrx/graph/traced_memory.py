"""Placeholders for the inputs of a function while it is traced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lbrx.arrays.storage import Array, Bytes, MetalStorage
from lbrx.command_lists.planned_memory import planned_buffer
from lbrx.errors import TraceError
from lbrx.graph.graph import Node, Pending


@dataclass(frozen=True, eq=False)
class Traced(MetalStorage):
    """Memory of an input of a traced function: it has no contents."""

    function: str

    def wait(self) -> None:
        raise looked_at(self.function, "an input")

    def host(self) -> Bytes:
        """Raises TraceError: the values do not exist while a function is traced."""
        raise looked_at(self.function, "an input")


def stand_in(array: Array, function: str, alignment: int) -> Array:
    """The placeholder of an input, which will be at multiples of `alignment` bytes."""
    buffer = planned_buffer(array.storage.nbytes, alignment)
    return Array(Traced(buffer, 0, buffer.size, function), array.layout, array.dtype)


def looked_at(function: str, what: str) -> TraceError:
    """The error of reading `what`, which has no value while a function is traced."""
    return TraceError(
        f"{function} reads the value of {what}: a compiled function can only compute tensors "
        "from its inputs; return the value and read it outside"
    )


def traced(array: Array | None) -> Traced | None:
    """The traced memory that an array is over; None if it is not traced."""
    storage = None if array is None else array.storage
    memory = storage.storage if isinstance(storage, Pending) else storage
    return memory if isinstance(memory, Traced) else None


def refuse_inputs(nodes: Iterable[Node]) -> None:
    """Raise if a node that is about to run depends on an input of a traced function."""
    for node in nodes:
        for array in node.inputs:
            input_memory = traced(array)
            if input_memory is not None:
                raise looked_at(input_memory.function, f"{node.op.name} of an input")
