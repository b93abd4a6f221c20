"""Tracing: a function is called with placeholders as inputs, and its commands are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lbrx import env
from lbrx.errors import TraceError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.kernels.arrays import whole_buffer
from lbrx.kernels.registry import DEFAULT, policy
from lbrx.metal import Buffer, context
from lbrx.metal.binding import checking_modes
from lbrx.metal.commands import Recorded, recorder, recording
from lbrx.scheduler import graph, replay
from lbrx.scheduler.graph import Node, Pending
from lbrx.storage import Array, Bytes, MetalStorage, NumberStorage, Storage


@dataclass(frozen=True, eq=False)
class Traced(MetalStorage):
    """Memory of an input or intermediate result of a traced function: it has no contents."""

    function: str

    def wait(self) -> None:
        raise _looks(self.function, "an input")

    def host(self) -> Bytes:
        """Raises TraceError: the values do not exist while a function is traced."""
        raise _looks(self.function, "an input")


def stand_in(array: Array, function: str) -> Array:
    """The placeholder of an input while a function is traced."""
    buffer = replay.stand_in(whole_buffer(array))
    return Array(Traced(buffer, 0, buffer.size, function), array.layout, array.dtype)


def setting() -> object:
    """Settings that, besides its arguments, decide how a function is recorded."""
    own = policy()
    named = None if own is DEFAULT else own  # which is hashed faster
    return named, env.kernel_setting(), env.fusion(), checking_modes()


def _looks(function: str, what: str) -> TraceError:
    return TraceError(
        f"{function} reads the value of {what}: a compiled function can only compute tensors "
        "from its inputs; return the value and read it outside"
    )


def _traced(array: Array | None) -> Traced | None:
    """The traced memory that an array is over; None if it is not traced."""
    storage = None if array is None else array.storage
    found = storage.storage if isinstance(storage, Pending) else storage
    return found if isinstance(found, Traced) else None


def refuse_inputs(nodes: Iterable[Node]) -> None:
    """Raise if a node that is about to run depends on an input of a traced function."""
    if recorder() is not None:
        return
    for node in nodes:
        for array in node.inputs:
            found = _traced(array)
            if found is not None:
                raise _looks(found.function, f"{node.op.name} of an input")


def _varying(order: Iterable[Node]) -> set[Node]:
    """The nodes that depend on inputs or on numbers that a replay may change."""
    varying: set[Node] = set()
    for node in order:
        for array in node.inputs:
            if array is not None and (
                isinstance(array.storage, NumberStorage)
                or _traced(array) is not None
                or graph.node_of(array) in varying
            ):
                varying.add(node)
    return varying


def recorded(outputs: Sequence[Array], inputs: Sequence[Array], function: str) -> replay.Recording:
    """Record the commands that compute the outputs from the inputs."""
    pending = [x.storage for x in outputs if isinstance(x.storage, Pending)]
    with UNINTERRUPTED, graph.LOCK:
        varying = _varying(graph.in_order(graph.nodes_of(pending)))
        # What does not depend on inputs is computed now, once: other tensors may hold it too.
        used = [x.storage for node in varying for x in node.arrays()]
        graph.realise(s for s in (*used, *pending) if _node(s) not in varying)
        with recording() as made:
            graph.realise(pending)
        own = [whole_buffer(graph.concrete(array)) for array in outputs]
        for node in varying:
            _leave(node, made, function)
    return replay.Recording(context(), made, [whole_buffer(x) for x in inputs], own)


def _node(storage: Storage) -> Node | None:
    return storage.node if isinstance(storage, Pending) else None


def _leave(node: Node, made: Recorded, function: str) -> None:
    """Mark results that are still referenced as traced: no command will write their memory."""
    for reference in node.pending:
        pending = reference()
        own = pending.storage if pending is not None else None
        if pending is None or own is None:
            continue
        if isinstance(own.buffer, Buffer) and id(own.buffer.block) in made.taken:
            pending.storage = Traced(own.buffer, own.offset, own.nbytes, function)
