"""Joins: which operations of a graph share kernels. The set is closed.

Each join is a module with `match(graph, node, info)`, which says whether the join computes a node,
and `emit(builder, join, real)`, which adds its steps. Everything that could refuse a join is asked
in `match`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lbrx import env
from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node
from lbrx.kernels.registry import under
from lbrx.metal import DeviceInfo
from lbrx.planning.joins import alone, cache_write, finished, fused, product, rows
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results

Match = Callable[[PlannedGraph, Node, DeviceInfo], Joined | None]
Emit = Callable[[Builder, Any, Real], Results]

FIRST: tuple[Match, ...] = (finished.match, rows.match, fused.match, alone.match)
"""Asked for every cluster, of which the first that matches becomes a join."""
LATER: tuple[tuple[frozenset[str], Match], ...] = (
    (cache_write.ROOTS, cache_write.match),
    (product.ROOTS, product.match),
)
"""Then asked for joins whose roots are these operations, to join what was left alone."""

EMIT: dict[type[Joined], Emit] = {
    alone.Alone: alone.emit,
    cache_write.CacheWrite: cache_write.emit,
    finished.Finished: finished.emit,
    fused.Fused: fused.emit,
    product.Product: product.emit,
    rows.Rows: rows.emit,
}


def joined(order: Sequence[Node], targets: Sequence[Node], info: DeviceInfo) -> list[Joined]:
    """The joins that compute the targets, in an order in which they can run."""
    if not env.fusion():
        return [alone.Alone((node,), (node,)) for node in order]
    graph = PlannedGraph(order, targets)
    for root in graph.clusters:
        _join(graph, root, FIRST, info)
    for names, match in LATER:
        for root in [root for root in graph.joins if root.op.name in names]:
            _join(graph, root, (match,), info)
    return list(graph.joins.values())


def _join(graph: PlannedGraph, root: Node, matches: Sequence[Match], info: DeviceInfo) -> None:
    """Let the first of some joins that matches compute a node."""
    with under(root.policy):
        for match in matches:
            join = match(graph, root, info)
            if join is not None:
                graph.put(join)
                return


def emit(b: Builder, join: Joined, real: Real) -> Results:
    """Add the steps of a join; returns the results of its nodes."""
    return EMIT[type(join)](b, join, real)
