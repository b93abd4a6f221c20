"""An operation in kernels of its own."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node
from lbrx.kernels import RUNNERS, host
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.registry import Runner
from lbrx.metal import DeviceInfo
from lbrx.ops import Op
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results, call_of


@dataclass(frozen=True)
class Alone(Joined):
    """One operation, which its family's kernels compute, or else the host."""


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> Alone:
    """Every operation can be computed so."""
    return Alone((node,), (node,))


def emit(b: Builder, join: Alone, real: Real) -> Results:
    """The operation's results."""
    results = _runner(join.root.op)(call_of(b, join.root, real))
    return [(join.root, dict(enumerate(results)))]


def _runner(op: Op) -> Runner:
    if op.name in RUNNERS:
        return RUNNERS[op.name]
    return elementwise.run if elementwise.has_function(op) else host.run
