"""The graph of operations that are not computed yet.

An operation on the Metal device creates a node. Its results are arrays whose storage is pending: it
is computed when its bytes are requested. Views are layouts over a storage, as elsewhere, so they
need no nodes. A pending storage holds a reference to its node and a node to its inputs, and nothing
else does: results that are no longer referenced are never computed.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from gc import is_finalized
from itertools import repeat
from operator import attrgetter
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import (
    Array,
    Bytes,
    ConstantStorage,
    MetalStorage,
    NumberStorage,
    Storage,
    Unrealised,
)
from lbrx.errors import DtypeError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.kernels.registry import DEFAULT, Policy, policy
from lbrx.metal import Buffer, context
from lbrx.ops import Attributes, Op, Spec

# Held while nodes are created or computed: tensors may be used by several threads.
LOCK = threading.RLock()


class Signature:
    """An operation with its attributes and the shapes and dtypes of its operands: one object for
    all nodes that agree in these, so that `is` compares them."""

    __slots__ = ("op", "outputs", "results")

    def __init__(self, op: Op, outputs: tuple[Spec, ...]) -> None:
        self.op = op
        self.outputs = outputs
        # The layout, dtype and bytes of each result.
        self.results = [
            (sh.contiguous(s.shape), s.dtype, math.prod(s.shape) * s.dtype.itemsize)
            for s in outputs
        ]


class Node:
    """One operation, computed when needed. Equal pending operations are one object."""

    __slots__ = (
        *("__weakref__", "attributes", "depth", "form", "inputs", "key"),
        *("op", "outputs", "pending", "policy", "reference", "signature"),
    )

    def __init__(
        self,
        key: tuple[object, ...],
        form: tuple[object, ...],
        inputs: tuple[Array | None, ...],
        attributes: Attributes,
        policy: Policy,
        signature: Signature,
        depth: int,
    ) -> None:
        self.key = key
        self.form = form
        """What it has in common with others: signature, policy, and how inputs lie in memory."""
        self.signature = signature
        self.op = signature.op
        self.inputs = inputs
        self.attributes = attributes
        self.outputs = signature.outputs
        self.policy = policy
        self.pending: list[weakref.ref[Pending]] = []
        self.depth = depth
        """The number of nodes that are computed one after the other, with this one."""
        self.reference: weakref.ref[Node] | None
        """None once the collector has found it in a dead cycle: if something else of the cycle has
        kept results, `pending` does not know them any more."""
        self.reference = _nodes[key] = weakref.ref(self)

    # Runs at any moment on any thread: it takes no lock.
    def __del__(self) -> None:
        if _nodes is None:  # the interpreter ends
            return
        if _nodes.get(self.key) is self.reference:
            _nodes.pop(self.key, None)
        if is_finalized(self):
            self.reference = None

    def __repr__(self) -> str:
        return f"<Node {self.op.name} -> {', '.join(map(str, self.outputs))}>"

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
        if self.storage is None:
            # The copy from memory that the host does not see is submitted with the work.
            realise([self], submit=context().info.unified_memory)
        assert self.storage is not None
        return self.storage.host()

    def realised(self) -> MetalStorage:
        """The storage of the result, which is computed first if need be."""
        if self.storage is None:
            realise([self])
        assert self.storage is not None
        return self.storage

    def __repr__(self) -> str:
        return f"<Pending {self.node}>" if self.storage is None else repr(self.storage)


# Nodes by what they compute; a WeakValueDictionary takes several times as long.
_nodes: dict[tuple[object, ...], weakref.ref[Node]] = {}


def add(op: Op, inputs: Sequence[Array | None], attributes: Attributes) -> tuple[Array, ...]:
    """The pending results of an operation. Raises if its operands are not valid."""
    signature, wanted = _signature(op, inputs, attributes), policy()
    # Pending nodes with the same key compute the same. All of its parts are hashed by C.
    common: list[object] = [signature, None if wanted is DEFAULT else wanted]
    operands: list[object] = []
    depth = 1
    for x in inputs:
        if x is not None:
            storage, layout = x.storage, x.layout
            common += (layout.strides, layout.offset)
            if isinstance(storage, Pending):
                below = storage.node
                if below is not None and below.depth >= depth:
                    depth = below.depth + 1
            elif storage.device == "cpu" and not isinstance(storage, NumberStorage):
                operands.append(number_bytes(x))
                continue
            operands.append(id(storage))
    form = tuple(common)
    key = (form, *operands)
    with LOCK:
        reference = _nodes.get(key)
        node = reference() if reference is not None else None
        if node is None:
            node = Node(key, form, tuple(inputs), attributes, wanted, signature, depth)
        results: list[Array] = []
        for layout, dtype, _ in signature.results:
            results.append(Array(pending_of(node, len(results)), layout, dtype))
        return tuple(results)


_signatures: dict[tuple[object, ...], Signature] = {}


def _signature(op: Op, inputs: Sequence[Array | None], attributes: Attributes) -> Signature:
    """What a call has in common with others. Raises if operands or attributes are not valid."""
    key: list[object] = [op, exact(attributes) if attributes else None]
    for x in inputs:
        if x is None:
            key.append(None)
        else:
            key += (x.layout.shape, x.dtype.name)
    known = tuple(key)
    signature = _signatures.get(known)
    if signature is None:
        specs = [None if x is None else Spec(x.layout.shape, x.dtype) for x in inputs]
        signature = Signature(op, op.infer(specs, attributes))
        for spec in (*specs, *signature.outputs):
            if spec is not None:
                refuse_float64(op, spec)
        if len(_signatures) >= sh.KNOWN:
            _signatures.clear()
        _signatures[known] = signature
    return signature


def exact(attributes: Attributes) -> tuple[object, ...]:
    """Attributes as a key that tells apart what Python finds equal: 1, 1.0 and True, 0.0 and
    -0.0."""
    return tuple(zip(attributes, map(_exact, attributes.values()), strict=True))


def _exact(value: Any) -> object:
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    return type(value), repr(value) if isinstance(value, float) else value


def refuse_float64(op: Op, spec: Spec) -> None:
    """Raise DtypeError for an operand or a result that kernels cannot have."""
    if spec.dtype is dt.float64:
        raise DtypeError(f"{op.name} of {spec}: Metal has no float64, cast to float32 or use 'cpu'")


def number_bytes(array: Array) -> bytes:
    """The bytes of an operand on the host, which is always a scalar."""
    storage = array.storage
    return storage.value if isinstance(storage, ConstantStorage) else array.numpy().tobytes()


def _is_number(storage: Storage) -> bool:
    """Whether an operand on the host is compared by its value."""
    return storage.device == "cpu" and not isinstance(storage, NumberStorage)


def identity(array: Array) -> object:
    """A key for an operand: host numbers are compared by value, other storages by identity."""
    storage, layout = array.storage, array.layout
    if _is_number(storage):
        return array.dtype.name, number_bytes(array), layout.shape
    return id(storage), layout.shape, layout.strides, layout.offset, array.dtype.name


def pending_of(node: Node, index: int) -> Pending:
    """The storage of a node's result: the same object as long as it is referenced."""
    for reference in node.pending:
        known = reference()
        if known is not None and known.index == index:
            return known
    pending = Pending(node, index, node.signature.results[index][2])
    node.pending.append(weakref.ref(pending))
    return pending


def settle(node: Node, storages: Mapping[int, Storage], whole: bool = True) -> None:
    """Set the memory of a node's results. Unless other results are still to be computed, the node
    is computed: its inputs are dropped."""
    for reference in node.pending:
        pending = reference()
        storage = None if pending is None else storages.get(pending.index)
        if pending is not None and storage is not None:
            assert isinstance(storage, MetalStorage)
            pending.storage = storage
            pending.node = None
    if whole and node.reference is not None:
        # An equal operation creates a new node from now on, even if a traceback still holds this.
        if _nodes.get(node.key) is node.reference:
            del _nodes[node.key]
        node.inputs = ()


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


def in_order(targets: Sequence[Node]) -> list[Node]:
    """The targets and the nodes that they depend on, each after its inputs. The deepest input comes
    first, so that the results of the others do not occupy memory meanwhile."""
    if len(targets) == 1 and targets[0].depth == 1:
        return [*targets]
    order: dict[Node, None] = {}
    stack = [*zip(reversed(targets), repeat(False), strict=False)]
    while stack:
        node, expanded = stack.pop()
        if node in order:
            continue
        if expanded or node.depth == 1:
            order[node] = None
            continue
        stack.append((node, True))
        below: list[Node] = []
        for x in node.inputs:
            storage = None if x is None else x.storage
            if (
                isinstance(storage, Pending)
                and storage.node is not None
                and storage.node not in order
            ):
                below.append(storage.node)
        if len(below) > 1:
            below.reverse()
            below.sort(key=_depth)
        stack += zip(below, repeat(False), strict=False)
    return list(order)


_depth = attrgetter("depth")


def nodes_of(storages: Iterable[Storage]) -> list[Node]:
    """The nodes that compute storages, each once."""
    nodes: dict[Node, None] = {}
    for storage in storages:
        if isinstance(storage, Pending) and storage.node is not None:
            nodes[storage.node] = None
            if storage.node.reference is None:
                storage.node.pending.append(weakref.ref(storage))
    return list(nodes)


def memory_read(order: Iterable[Node]) -> list[MetalStorage]:
    """The memory that nodes read, each storage once."""
    storages = {id(x.storage): x.storage for node in order for x in node.arrays()}
    return [storage for storage in storages.values() if isinstance(storage, MetalStorage)]


def realise(storages: Iterable[Storage], submit: bool = False) -> None:
    """Encode the computation of those storages that are pending, and submit it if the caller is
    about to wait for it."""
    with UNINTERRUPTED, LOCK:
        nodes = nodes_of(storages)
        if nodes:
            _computing[0](nodes, submit)


Compute = Callable[[list[Node], bool], None]
_computing: list[Compute] = []


def computes_graphs(compute: Compute) -> Compute:
    """Register the decorated function, which computes nodes of a graph. It is in a layer above."""
    _computing[:] = [compute]
    return compute
