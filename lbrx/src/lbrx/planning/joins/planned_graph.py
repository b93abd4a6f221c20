"""A graph while its joins are found: which join computes each node, and who reads its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node, Pending, identity, node_of
from lbrx.kernels.elementwise.elementwise import Computation
from lbrx.kernels.fused_rows.fused_rows import RowComputation
from lbrx.kernels.registry import Call
from lbrx.metal.commands import Work
from lbrx.ops import Spec, arithmetic
from lbrx.planning.fusion import clusters, computation, name_of, uses_of

Real = Callable[[Array], Array]
"""Gives an array of the graph in the memory of a plan."""
Results = list[tuple[Node, Mapping[int, Array]]]
"""The results of nodes, by index."""


@dataclass(frozen=True)
class Joined:
    """Operations that are computed together: what all joins have in common."""

    nodes: tuple[Node, ...]
    """The root, which is computed last, and the others, each before those that it reads."""
    stored: tuple[Node, ...]
    """Those whose results are written to memory."""

    @property
    def root(self) -> Node:
        """The node in whose place the join is computed."""
        return self.nodes[0]

    @property
    def name(self) -> str:
        """The operations in the order in which they are computed."""
        return name_of(self.nodes)

    def work(self) -> Work:
        """The bytes and operations that the nodes need at least."""
        read: dict[object, Spec] = {}
        operations = 0.0
        for node in self.nodes:
            arrays = node.arrays()
            specs = [Spec(array.layout.shape, array.dtype) for array in arrays]
            operations += arithmetic.operations(node.op, specs, node.outputs)
            for array, spec in zip(arrays, specs, strict=True):
                if node_of(array) not in self.nodes and array.storage.device == "metal":
                    read[identity(array)] = spec
        written = self.root.outputs
        nbytes = sum(math.prod(s.shape) * s.dtype.itemsize for s in (*read.values(), *written))
        shapes = f"{', '.join(map(str, read.values()))} -> {', '.join(map(str, written))}"
        return Work(shapes, nbytes, operations)


class PlannedGraph:
    """The joins of a graph so far, in an order in which they can run."""

    def __init__(self, order: Sequence[Node], targets: Iterable[Node]) -> None:
        self.targets = frozenset(targets)
        self.uses = uses_of(order)
        """The nodes that read each node, and the arrays through which they do."""
        clustered = clusters(order, self.targets, self.uses)
        self.clusters = {cluster.root: cluster for cluster in clustered}
        self.joins: dict[Node, Joined] = {}  # by root
        self._computations: dict[Node, Computation | RowComputation] = {}  # by root
        self._place = {cluster.root: i for i, cluster in enumerate(clustered)}
        self._roots = {node: cluster.root for cluster in clustered for node in cluster.views}

    def put(self, join: Joined) -> None:
        """Compute nodes by a join, in the place of its root, instead of by those that had them."""
        for node in join.nodes:
            if self._roots[node] is not join.root:
                self.joins.pop(self._roots[node], None)
                self._roots[node] = join.root
        self.joins[join.root] = join  # which keeps its place

    def computation(self, root: Node) -> Computation | RowComputation:
        """What the kernel of a cluster computes."""
        known = self._computations.get(root)
        if known is None:
            known = self._computations[root] = computation(self.clusters[root])
        return known

    def home(self, node: Node) -> Joined | None:
        """The join that computes a node; None if it has none yet."""
        return self.joins.get(self._roots[node])

    def readers(self, node: Node, index: int) -> list[Node]:
        """The nodes that read a result of a node."""
        return [reader for reader, x in self.uses[node] if result_of(x) == (node, index)]

    def can_wait(self, nodes: Iterable[Node], root: Node, inside: Iterable[Node]) -> bool:
        """Whether nodes can be computed in the place of a root: what reads them comes later, except
        for the nodes inside."""
        place, within = self._place[root], frozenset(inside)
        readers = (reader for node in nodes for reader, _ in self.uses[node])
        return all(r in within or self._place[self._roots[r]] > place for r in readers)

    def before(self, root: Node) -> list[Joined]:
        """The joins in front of that of a root, the last one first."""
        place = self._place[root]
        return [join for node, join in reversed(self.joins.items()) if self._place[node] < place]


def result_of(array: Array | None) -> tuple[Node, int] | None:
    """The node that computes an array, and which of its results it is."""
    storage = None if array is None else array.storage
    if not isinstance(storage, Pending) or storage.node is None:
        return None
    return storage.node, storage.index


def call_of(b: Builder, node: Node, real: Real) -> Call:
    """An operation with its operands in the memory of a plan."""
    inputs = tuple(None if x is None else real(x) for x in node.inputs)
    return Call(b, node.op, inputs, node.attributes, node.outputs)
