"""Elementwise operations in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.elementwise.elementwise import Computation
from lbrx.metal import DeviceInfo
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results


@dataclass(frozen=True)
class Fused(Joined):
    """What one generated kernel computes for each element."""

    computation: Computation


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> Fused | None:
    """A cluster of several operations without reductions."""
    cluster = graph.clusters[node]
    if len(cluster.views) == 1 or cluster.rows is not None:
        return None
    what = graph.computation(node)
    assert isinstance(what, Computation)
    return Fused(tuple(cluster.views), tuple(cluster.stored), what)


def emit(b: Builder, join: Fused, real: Real) -> Results:
    """One result for each stored node."""
    what = join.computation
    placed = replace(what, inputs=tuple(map(real, what.inputs)))
    results = elementwise.compute(b, placed)
    return [(node, {0: result}) for node, result in zip(join.stored, results, strict=True)]
