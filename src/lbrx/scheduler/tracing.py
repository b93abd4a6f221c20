"""Tracing: a function is called with stand-ins for its inputs, and its graph recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from lbrx.errors import TraceError
from lbrx.kernels.arrays import whole_buffer
from lbrx.metal import context
from lbrx.metal.commands import recording
from lbrx.scheduler import graph, replay
from lbrx.scheduler.graph import Node, Pending
from lbrx.storage import Array, Bytes, MetalStorage

# The function that is being traced, and the storages of its inputs.
_traced: ContextVar[tuple[str, frozenset[int]] | None] = ContextVar("traced", default=None)


class _Input(MetalStorage):
    """The memory of an input while the function is traced."""

    def host(self) -> Bytes:
        traced = _traced.get()
        if traced is not None:
            raise _looks(traced[0], "an input")
        return super().host()


def stand_in(array: Array) -> Array:
    """An input while a function is traced."""
    buffer = replay.stand_in(whole_buffer(array))
    return replace(array, storage=_Input(buffer, 0, buffer.size))


def _looks(function: str, what: str) -> TraceError:
    return TraceError(
        f"{function} looks at the value of {what}: a compiled function can only compute tensors "
        "from its inputs; return the value and look at it outside"
    )


@contextmanager
def tracing(function: Callable[..., Any], inputs: Sequence[Array]) -> Iterator[None]:
    """Within it, nothing that depends on the inputs can be looked at."""
    name = getattr(function, "__name__", repr(function))
    token = _traced.set((name, frozenset(id(array.storage) for array in inputs)))
    try:
        yield
    finally:
        _traced.reset(token)


def refuse_inputs(nodes: Iterable[Node]) -> None:
    """Raise if one of these nodes is computed from an input of the function being traced."""
    traced = _traced.get()
    if traced is None:
        return
    name, inputs = traced
    for node in nodes:
        for array in node.inputs:
            if array is not None and id(array.storage) in inputs:
                raise _looks(name, f"{node.op.name} of an input")


def recorded(outputs: Sequence[Array], inputs: Sequence[Array]) -> replay.Recording:
    """The commands that compute the outputs from the inputs."""
    pending = [x.storage for x in outputs if isinstance(x.storage, Pending)]
    with recording() as recorded:
        graph.realise(pending)
    own = [whole_buffer(graph.concrete(array)) for array in outputs]
    return replay.Recording(context(), recorded, [whole_buffer(x) for x in inputs], own)
