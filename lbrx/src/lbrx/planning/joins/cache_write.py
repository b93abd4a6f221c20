"""Kernels of RoPE and of writes to a cache that are launched as one.

A step of a language model rotates queries and keys, and writes keys and values to a cache. Kernels
for rows of the same positions that do not read each other's results become one, at the place of the
last of them; keys go to the cache as they are rotated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lbrx import env
from lbrx import shape as sh
from lbrx.kernels import rope, rope_write
from lbrx.kernels.rope_write import RowRotation
from lbrx.metal import DeviceInfo
from lbrx.scheduler.fusion import KernelPlan
from lbrx.scheduler.graph import Node, identity, node_of
from lbrx.storage import Array, MetalCache, written_in_place

OPERATIONS = ("rope", "overwrite")


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


def grouped(
    kernels: Sequence[KernelPlan], targets: Iterable[Node], info: DeviceInfo
) -> list[KernelPlan]:
    """The kernels, with RoPE and writes to a cache as one where that is better on a device."""
    if not env.fusion() or all(kernel.root.op.name not in OPERATIONS for kernel in kernels):
        return list(kernels)
    known = _parts(kernels, frozenset(targets), info)
    inside = {each for part in known.values() for each in part.nodes[1:]}
    result: list[KernelPlan] = []
    launch: list[RowsNode] = []
    for kernel in kernels:
        if kernel.root in inside:
            continue
        part = known.get(kernel.root)
        if part is None:
            if _depends((x for node in kernel.views for x in node.inputs), launch):
                launch = []
            result.append(kernel)
            continue
        if launch and part.can_join(launch):
            # The parts so far come to the place of this one.
            result = [each for each in result if each.root is not launch[-1].node]
            launch.append(part)
        else:
            launch = [part]
        alone = len(launch) == len(part.nodes) == 1
        result.append(kernel if alone else _kernel(launch))
    return result


def _kernel(parts: Sequence[RowsNode]) -> KernelPlan:
    """One launch for the parts."""
    nodes = [node for part in reversed(parts) for node in part.nodes]
    return KernelPlan(
        parts[-1].node,
        views={node: [sh.contiguous(node.outputs[0].shape)] for node in nodes},
        stored=[part.node for part in parts],
        writes=tuple(parts),
    )


def _parts(
    kernels: Sequence[KernelPlan], targets: frozenset[Node], info: DeviceInfo
) -> dict[Node, RowsNode]:
    """What could be part of a launch, by node. RoPE that only one write reads is part of it."""
    alone = [kernel.root for kernel in kernels if len(kernel.views) == 1]
    nodes = (node for kernel in kernels for node in kernel.views)
    readers = Counter(node_of(x) for node in nodes for x in node.inputs if x is not None)
    found: dict[Node, RowsNode] = {}
    for node in alone:
        if node.op.name == "rope":
            found[node] = RowsNode(node, node, *node.arrays()[:2])
        elif node.op.name == "overwrite":
            cache, rows, positions = node.arrays()
            part = found.get(node_of(rows) or node)
            inside = part is not None and readers[part.node] == 1 and part.node not in targets
            if part is not None and inside and _is_turned(part, node, rows, positions):
                found[node] = replace(part, node=node, cache=cache)
            else:
                found[node] = RowsNode(node, None, rows, positions, cache)
    return {node: part for node, part in found.items() if _is_possible(part, info)}


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
    made = {part.node for part in parts}
    caches = {id(part.cache.storage) for part in parts if part.cache is not None}
    return any(x is not None and (node_of(x) in made or id(x.storage) in caches) for x in arrays)


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
    given = turn.arrays()[2:]
    return identity(given[0]) if given else None


def rotation_of(parts: Sequence[RowsNode]) -> RowRotation | None:
    """How a launch rotates; None if it rotates nothing."""
    for part in parts:
        if part.turn is not None:
            factors = part.turn.arrays()[2:]
            return RowRotation(part.turn.attributes, factors[0] if factors else None)
    return None
