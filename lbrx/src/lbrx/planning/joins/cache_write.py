"""Kernels of RoPE and of writes to a cache that are launched as one.

A step of a language model rotates queries and keys, and writes keys and values to a cache. Kernels
for rows of the same positions that do not read each other's results become one, at the place of the
last of them; keys go to the cache as they are rotated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, MetalCache, written_in_place
from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node, identity, node_of
from lbrx.kernels.rope import rope, rope_write
from lbrx.kernels.rope.rope_write import RowPart, RowRotation
from lbrx.metal import DeviceInfo
from lbrx.planning.joins.alone import Alone
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results

ROOTS = frozenset({"rope", "overwrite"})
"""Operations in whose places such rows may be computed."""


@dataclass(frozen=True)
class RowsNode:
    """Rows that the node `turn` rotates, if any, and that `node` writes to a cache, if any."""

    node: Node
    turn: Node | None
    x: Array
    positions: Array
    cache: Array | None = None

    @property
    def pairs(self) -> int:
        """Pairs of features that are rotated."""
        features = self.x.layout.shape[-1]
        return 0 if self.turn is None else rope.rotated_pairs(self.turn.attributes, features)

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are computed, the last one first."""
        return [self.node, *([] if self.turn in (None, self.node) else [self.turn])]

    def can_join(self, others: Sequence[RowsNode]) -> bool:
        """Whether one launch can compute this part and the others, which come before it."""
        if not others:
            return True
        first = others[0]
        return (
            len(others) < rope_write.PARTS
            and first.node.policy == self.node.policy
            and first.x.dtype is self.x.dtype
            and identity(first.positions) == identity(self.positions)
            and not _depends([self.x, self.positions], others)
            and not any(_overlap(self.cache, each.cache) for each in others)
            and all(_same_turn(self, each) for each in others)
        )


@dataclass(frozen=True)
class CacheWrite(Joined):
    """One launch for several rows."""

    writes: tuple[RowsNode, ...]


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> CacheWrite | None:
    """Rows that are rotated or written, together with those in front of them."""
    part = _part(graph, node, info)
    if part is None or not isinstance(graph.home(node), Alone):
        return None
    writes = (*_launch_before(graph, part, info), part)
    if len(writes) == len(part.nodes) == 1:
        return None
    nodes = tuple(inside for each in reversed(writes) for inside in each.nodes)
    return CacheWrite(nodes, tuple(each.node for each in writes), writes)


def emit(b: Builder, join: CacheWrite, real: Real) -> Results:
    """The rotated rows and the caches."""
    parts = [part_of(each, real(each.x), real) for each in join.writes]
    positions, rotation = real(join.writes[0].positions), rotation_of(join.writes, real)
    results = rope_write.compute(b, parts, positions, rotation)
    return [(each.node, {0: x}) for each, x in zip(join.writes, results, strict=True)]


def _launch_before(graph: PlannedGraph, part: RowsNode, info: DeviceInfo) -> Sequence[RowsNode]:
    """The rows of the last launch in front of a part, if the part can join it and nothing in
    between needs what it computes."""
    between: list[Joined] = []
    for join in graph.before(part.node):
        launch = _parts(graph, join, info)
        if launch:
            needed = (x for each in between for node in each.nodes for x in node.inputs)
            return launch if part.can_join(launch) and not _depends(needed, launch) else ()
        if join.root is not part.turn:
            between.append(join)
    return ()


def _parts(graph: PlannedGraph, join: Joined, info: DeviceInfo) -> Sequence[RowsNode]:
    """The rows that a join rotates or writes, if that is what it does."""
    if isinstance(join, CacheWrite):
        return join.writes
    part = _part(graph, join.root, info) if isinstance(join, Alone) else None
    return () if part is None else (part,)


def _part(graph: PlannedGraph, node: Node, info: DeviceInfo) -> RowsNode | None:
    """A node as part of a launch. RoPE that only one write reads is part of it."""
    part = None
    if node.op.name == "rope":
        write = _write_of(graph, node)
        if write is None or _part(graph, write, info) is None:
            part = _rotated(node)
    elif node.op.name == "overwrite":
        cache, rows, positions = node.arrays()
        turn = node_of(rows)
        if turn is not None and _write_of(graph, turn) is node:
            part = replace(_rotated(turn), node=node, cache=cache)
        else:
            part = RowsNode(node, None, rows, positions, cache)
    return part if part is not None and _is_possible(part, info) else None


def _rotated(node: Node) -> RowsNode:
    return RowsNode(node, node, *node.arrays()[:2])


def _write_of(graph: PlannedGraph, turn: Node) -> Node | None:
    """The only reader of a rotation, if it writes what is rotated to a cache."""
    readers = [reader for reader, _ in graph.uses[turn]]
    if turn.op.name != "rope" or len(readers) != 1 or turn in graph.targets:
        return None
    (node,) = readers
    if node.op.name != "overwrite" or not isinstance(graph.home(turn), Alone):
        return None
    _, rows, positions = node.arrays()
    inside = node_of(rows) is turn and _is_turned(_rotated(turn), node, rows, positions)
    return node if inside else None


def _is_turned(part: RowsNode, node: Node, rows: Array, positions: Array) -> bool:
    """Whether a node writes the rows that a part rotates, by the same positions."""
    whole = rows.layout == sh.contiguous(part.node.outputs[0].shape)
    same = identity(part.positions) == identity(positions)
    return whole and same and part.node.policy == node.policy and _is_kind(part)


def _is_possible(part: RowsNode, info: DeviceInfo) -> bool:
    """Whether the kernel takes such rows, and they are few enough."""
    x, cache = part.x, part.cache
    if cache is not None and not (
        written_in_place(cache)
        and cache.dtype is x.dtype
        and cache.layout.offset * cache.dtype.itemsize % rope_write.VECTOR == 0
    ):
        return False
    return _is_kind(part) and rope_write.is_worthwhile(info, x.layout.size)


def _is_kind(part: RowsNode) -> bool:
    x, turn = part.x, part.turn
    if isinstance(x.storage, MetalCache) or x.layout.size == 0:
        return False
    rounded = turn is None or turn.outputs[0].dtype is x.dtype
    return rounded and rope_write.takes(
        x.dtype, x.layout.shape[-1], part.pairs, part.positions.dtype
    )


def _depends(arrays: Iterable[Array | None], parts: Sequence[RowsNode]) -> bool:
    """Whether one of the arrays is a result of the parts, or in a cache that they write."""
    nodes = {part.node for part in parts}
    caches = {id(part.cache.storage) for part in parts if part.cache is not None}
    return any(x is not None and (node_of(x) in nodes or id(x.storage) in caches) for x in arrays)


def _overlap(a: Array | None, b: Array | None) -> bool:
    """Whether two caches, which have no gaps, share memory."""
    if a is None or b is None or a.storage is not b.storage:
        return False
    first, second = sorted((x.layout.offset, x.layout.size) for x in (a, b))
    return first[0] + first[1] > second[0]


def _same_turn(a: RowsNode, b: RowsNode) -> bool:
    """Whether two rotations have the same angles; rows that are not rotated go with any."""
    if a.turn is None or b.turn is None:
        return True
    same = a.pairs == b.pairs and _factors(a.turn) == _factors(b.turn)
    return same and a.turn.attributes == b.turn.attributes


def _factors(turn: Node) -> object:
    factors = turn.arrays()[2:]
    return identity(factors[0]) if factors else None


def part_of(write: RowsNode, x: Array, real: Real) -> RowPart:
    """Rows of an operand, in the memory of a plan."""
    cache = None if write.cache is None else real(write.cache)
    return RowPart(x, write.node.outputs[0], cache, write.pairs)


def rotation_of(parts: Sequence[RowsNode], real: Real) -> RowRotation | None:
    """How a launch rotates; None if it rotates nothing."""
    for part in parts:
        if part.turn is not None:
            factors = part.turn.arrays()[2:]
            return RowRotation(part.turn.attributes, real(factors[0]) if factors else None)
    return None
