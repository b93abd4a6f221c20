"""The graph of operations that are not computed yet.

An operation on the Metal device creates a node. Its results are arrays whose storage is pending: it
is computed when its bytes are requested. Views are layouts over a storage, as elsewhere, so they
need no nodes. A pending storage holds a reference to its node and a node to its inputs, and nothing
else does: results that are no longer referenced are never computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from lbrx import shape as sh
from lbrx.interrupt import UNINTERRUPTED
from lbrx.kernels.registry import policy
from lbrx.metal import Buffer
from lbrx.ops import TABLE, Attributes, Op, Spec
from lbrx.storage import Array, Bytes, MetalStorage, NumberStorage, Storage, Unrealised

# Held while nodes are created or computed: tensors may be used by several threads.
LOCK = threading.RLock()


class Node:
    """One operation, computed when needed. Equal pending operations are one object."""

    __slots__ = (
        *("__weakref__", "attributes", "depth", "inputs", "key"),
        *("op", "outputs", "pending", "policy"),
    )

    def __init__(
        self,
        key: object,
        op: Op,
        inputs: tuple[Array | None, ...],
        attributes: Attributes,
        outputs: tuple[Spec, ...],
    ) -> None:
        self.key = key
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.outputs = outputs
        self.policy = policy()
        self.pending: list[weakref.ref[Pending]] = []
        self.depth: int = 1 + max((n.depth for n in self.below()), default=0)

    def __repr__(self) -> str:
        return f"<Node {self.op.name} -> {', '.join(map(str, self.outputs))}>"

    def below(self) -> list[Node]:
        """The nodes that the inputs depend on."""
        nodes = (node_of(x) for x in self.inputs if x is not None)
        return [node for node in nodes if node is not None]

    def arrays(self) -> list[Array]:
        """The inputs that are not None; computed ones have their actual storage."""
        return [concrete(x) for x in self.inputs if x is not None]


class Pending(Unrealised):
    """Result `index` of a node as a storage; accessing its bytes computes it."""

    __slots__ = ("__weakref__", "index", "nbytes", "node", "storage")

    device = "metal"

    def __init__(self, node: Node, index: int, nbytes: int) -> None:
        self.node: Node | None = node
        self.index = index
        self.nbytes = nbytes
        self.storage: MetalStorage | None = None

    @property
    def buffer(self) -> Buffer:
        """The buffer of the computed result."""
        return self.realised().buffer  # type: ignore[return-value]

    @property
    def address(self) -> int:
        """The address of the computed result."""
        return self.realised().address

    def host(self) -> Bytes:
        """The bytes of the computed result, on the host."""
        return self.realised().host()

    def realised(self) -> MetalStorage:
        """The storage of the result, which is computed first if need be."""
        if self.storage is None:
            realise([self])
        assert self.storage is not None
        return self.storage

    def __repr__(self) -> str:
        return f"<Pending {self.node}>" if self.storage is None else repr(self.storage)


_nodes: weakref.WeakValueDictionary[object, Node] = weakref.WeakValueDictionary()


def add(op: Op, inputs: Sequence[Array | None], attributes: Attributes) -> tuple[Array, ...]:
    """The pending results of an operation. Raises if its operands are not valid."""
    specs = tuple(None if x is None else Spec(x.layout.shape, x.dtype) for x in inputs)
    outputs = _inferred(op.name, specs, tuple(attributes.items()))
    with LOCK:
        key = _key(op, inputs, attributes)
        node = _nodes.get(key)
        if node is None:
            node = _nodes[key] = Node(key, op, tuple(inputs), attributes, outputs)
        return tuple(_result(node, i) for i in range(len(outputs)))


@lru_cache(sh.KNOWN)
def _inferred(
    op: str, specs: tuple[Spec | None, ...], attributes: tuple[tuple[str, Any], ...]
) -> tuple[Spec, ...]:
    return TABLE[op].infer(specs, dict(attributes))


def _key(op: Op, inputs: Sequence[Array | None], attributes: Attributes) -> object:
    """Pending nodes with the same key compute the same."""
    operands = tuple(None if x is None else identity(x) for x in inputs)
    return op.name, operands, tuple(attributes.items()), policy()


def identity(array: Array) -> object:
    """A key for an operand: host numbers are compared by value, other storages by identity."""
    storage = array.storage
    if storage.device == "cpu" and not isinstance(storage, NumberStorage):
        return array.dtype, array.numpy().tobytes(), array.layout.shape
    return id(storage), array.layout, array.dtype


def _result(node: Node, index: int) -> Array:
    spec = node.outputs[index]
    layout = sh.contiguous(spec.shape)
    return Array(pending_of(node, index), layout, spec.dtype)


def pending_of(node: Node, index: int) -> Pending:
    """The storage of a node's result: the same object as long as it is referenced."""
    for reference in node.pending:
        known = reference()
        if known is not None and known.index == index:
            return known
    spec = node.outputs[index]
    size = spec.dtype.itemsize
    for n in spec.shape:
        size *= n
    made = Pending(node, index, size)
    node.pending.append(weakref.ref(made))
    return made


def settle(node: Node, results: Sequence[Array]) -> None:
    """After a node is computed: set the memory of its storages and drop its inputs."""
    for reference in node.pending:
        pending = reference()
        if pending is not None:
            storage = results[pending.index].storage
            assert isinstance(storage, MetalStorage)
            pending.storage = storage
            pending.node = None
    # An equal operation creates a new node from now on, even if a traceback still holds this one.
    _nodes.pop(node.key, None)
    node.inputs = ()


def settle_result(node: Node, index: int, result: Array) -> None:
    """Set the memory of one result of a node whose other results are not computed."""
    for reference in node.pending:
        pending = reference()
        if pending is not None and pending.index == index:
            assert isinstance(result.storage, MetalStorage)
            pending.storage = result.storage
            pending.node = None


def concrete(array: Array) -> Array:
    """The array over actual memory if its storage has been computed, else unchanged."""
    storage = array.storage
    if isinstance(storage, Pending) and storage.storage is not None:
        return Array(storage.storage, array.layout, array.dtype)
    return array


def node_of(array: Array) -> Node | None:
    """The node that computes an array; None if it is in memory."""
    storage = array.storage
    return storage.node if isinstance(storage, Pending) else None


def in_order(targets: Iterable[Node]) -> list[Node]:
    """The targets and the nodes that they depend on, each after its inputs. The deepest input comes
    first, so that the results of the others do not occupy memory meanwhile."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(targets))]
    while stack:
        node, expanded = stack.pop()
        if node in order:
            continue
        if expanded:
            order[node] = None
            continue
        stack.append((node, True))
        below = [n for n in node.below() if n not in order]
        below.reverse()
        below.sort(key=lambda n: n.depth)
        stack += [(n, False) for n in below]
    return list(order)


def nodes_of(storages: Iterable[Storage]) -> list[Node]:
    """The nodes that compute storages, each once."""
    pending = (s.node for s in storages if isinstance(s, Pending))
    return list(dict.fromkeys(node for node in pending if node is not None))


def realise(storages: Iterable[Storage]) -> None:
    """Encode the computation of those storages that are pending; does not wait for the device."""
    from lbrx.scheduler.dispatcher import run  # avoids a cycle

    with UNINTERRUPTED, LOCK:
        nodes = nodes_of(storages)
        if nodes:
            run(nodes)
