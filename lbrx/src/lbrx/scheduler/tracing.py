"""Tracing: a function is called with placeholders as inputs, and its commands are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lbrx import env
from lbrx.arrays.storage import Array, MetalStorage, NumberStorage, Storage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import CommandList, HostStep
from lbrx.errors import TraceError
from lbrx.graph import graph
from lbrx.graph.graph import Node, Pending
from lbrx.graph.traced_memory import traced
from lbrx.interrupt import UNINTERRUPTED
from lbrx.kernels.arrays import storage_buffer
from lbrx.kernels.registry import DEFAULT, policy
from lbrx.metal import context
from lbrx.metal.binding import checking_modes
from lbrx.scheduler.graph_plan import planner_of
from lbrx.scheduler.replay import Recording


def setting() -> object:
    """Settings that, besides its arguments, decide how a function is recorded."""
    outer = policy()
    named = None if outer is DEFAULT else outer  # which is hashed faster
    return named, env.kernel_setting(), env.fusion(), checking_modes()


def _varying(order: Iterable[Node]) -> set[Node]:
    """The nodes that depend on inputs or on numbers that a replay may change."""
    varying: set[Node] = set()
    for node in order:
        for array in node.inputs:
            if array is not None and (
                isinstance(array.storage, NumberStorage)
                or traced(array) is not None
                or graph.node_of(array) in varying
            ):
                varying.add(node)
    return varying


def recorded(outputs: Sequence[Array], inputs: Sequence[Array], function: str) -> Recording:
    """Record the commands that compute the outputs from the inputs."""
    gpu = context()
    pending = [x.storage for x in outputs if isinstance(x.storage, Pending)]
    with UNINTERRUPTED, graph.LOCK:
        varying = _varying(graph.in_order(graph.nodes_of(pending)))
        # What does not depend on inputs is computed now, once: other tensors may hold it too.
        used = [x.storage for node in varying for x in node.arrays()]
        graph.realise(s for s in (*used, *pending) if _node(s) not in varying)
        targets = graph.nodes_of(pending)
        order = graph.in_order(targets)
        storages = [graph.concrete(x).storage for x in (*inputs, *outputs)]
        read = [x for x in (*storages, *graph.memory_read(order)) if isinstance(x, MetalStorage)]
        leaves = list({id(storage): storage for storage in read}.values())
        b = Builder(gpu, replayed=True)
        planner = planner_of(b, order, targets, leaves, describe=True)
        parts = [b.part(planner.real(array).storage) for array in outputs]
        commands = b.closed({part.slot: b.step_count - 1 for part in parts})
    _refuse_host_steps(commands)
    captured = {
        slot: storage_buffer(leaf) for slot, leaf in enumerate(leaves) if slot >= len(inputs)
    }
    return Recording(gpu, commands, range(len(inputs)), parts, captured)


def _refuse_host_steps(commands: CommandList) -> None:
    for step in commands.steps:
        if isinstance(step, HostStep):
            raise TraceError(
                f"operation {step.name} has no Metal kernel, so a compiled function cannot replay "
                "it: call it outside, or give it a kernel"
            )


def _node(storage: Storage) -> Node | None:
    return storage.node if isinstance(storage, Pending) else None
