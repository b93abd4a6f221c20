"""Elementwise operations and reductions of rows in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node
from lbrx.kernels.fused_rows import fused_rows
from lbrx.kernels.fused_rows.fused_rows import RowComputation
from lbrx.metal import DeviceInfo
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results


@dataclass(frozen=True)
class Rows(Joined):
    """What one generated kernel computes for each row."""

    computation: RowComputation


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> Rows | None:
    """A cluster of several operations with a reduction."""
    cluster = graph.clusters[node]
    if len(cluster.views) == 1 or cluster.rows is None:
        return None
    what = graph.computation(node)
    assert isinstance(what, RowComputation)
    return Rows(tuple(cluster.views), tuple(cluster.stored), what)


def emit(b: Builder, join: Rows, real: Real) -> Results:
    """One result for each stored node."""
    what = join.computation
    placed = replace(what, inputs=tuple(map(real, what.inputs)))
    results = fused_rows.compute(b, placed)
    return [(node, {0: result}) for node, result in zip(join.stored, results, strict=True)]
