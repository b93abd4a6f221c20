"""Graphs as command lists: planned once for all graphs of a structure, then only run.

A plan begins with stand-ins for the memory that a graph reads. Graphs of the same structure run its
list with their own leaves and numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, Bytes, MetalCache, MetalStorage, NumberStorage, Storage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import CommandList, Part
from lbrx.graph.graph import (
    LOCK,
    Node,
    Pending,
    computes_graphs,
    in_order,
    memory_read,
    nodes_of,
    number_bytes,
    settle,
)
from lbrx.graph.structure import GraphStructure, Number, structure_of
from lbrx.graph.traced_memory import refuse_inputs
from lbrx.kernels.arrays import storage_buffer
from lbrx.kernels.registry import under
from lbrx.metal import Context, DeviceInfo, context
from lbrx.metal.commands import NumberSlot
from lbrx.metal.library import PipelineRequest
from lbrx.planning.joins import emit, joined
from lbrx.planning.joins.planned_graph import Joined
from lbrx.scheduler import running

MOST_NODES = 1 << 14  # of all remembered graphs together
LARGEST_PART = 4  # one graph may have a quarter of them
MOST_PLANS = 8  # of one structure, for different numbers


# ---- running ----


@dataclass(frozen=True, slots=True)
class Settlement:
    """Memory of a node's results, by index: parts of slots, or the numbers of leaves."""

    node: int
    results: tuple[tuple[int, Part | int], ...]
    whole: bool
    """Whether the node has no results that are still to be computed."""


@dataclass(frozen=True)
class GraphPlan:
    """The command list of graphs of one structure, and where the results of their nodes are."""

    commands: CommandList
    settled: tuple[tuple[Settlement, ...], ...]
    """Before the first step, and after each."""
    finished: tuple[tuple[int, ...], ...]
    """The nodes that nothing needs from then on."""
    read_numbers: Mapping[int, Number]
    """The numbers that the plan was made for, by their places."""

    def fits(self, numbers: Sequence[Number]) -> bool:
        """Whether the plan is right for a graph with these numbers."""
        return all(numbers[place] == number for place, number in self.read_numbers.items())

    def run(
        self, gpu: Context, nodes: list[Any], structure: GraphStructure, *, submit: bool = False
    ) -> None:
        """Compute a graph. Lists of nodes and leaves are emptied, so that memory is freed early."""
        leaves: list[Any] = structure.leaves
        commands, numbers = self.commands, structure.numbers
        memory: running.Memory = [*map(storage_buffer, leaves)]
        memory += [None] * (len(commands.slots) - len(memory))

        def settle_after(step: int) -> None:
            for each in self.settled[step + 1]:
                storages: dict[int, Storage] = {}
                for i, part in each.results:
                    if isinstance(part, int):
                        storages[i] = leaves[part]
                        continue
                    buffer = memory[part.slot]
                    if buffer is None:  # no step uses it
                        buffer = memory[part.slot] = running.filled(gpu, commands.slots[part.slot])
                    storages[i] = MetalStorage(buffer, part.offset, part.size)
                settle(nodes[each.node], storages, each.whole)
            for node in self.finished[step + 1]:
                nodes[node] = None
            for slot in commands.dropped[step] if step >= 0 else ():
                if slot < len(leaves):
                    leaves[slot] = None

        def number(slot: NumberSlot) -> bytes:
            return numbers[slot.number][0]

        if self.settled[0] or self.finished[0]:
            settle_after(-1)
        running.run(gpu, commands, memory, number, settle_after, submit=submit)


# ---- planning ----


class GraphNumber(NumberStorage):
    """A number of a graph that is planned. Plans that read its value are for this value only."""

    def __init__(self, data: Bytes, place: int, read: set[int]) -> None:
        super().__init__(data, place)
        self._read = read

    def host(self) -> Bytes:
        """Its bytes, by which the host decides something."""
        self._read.add(self.number)
        return super().host()


@dataclass(frozen=True)
class Made:
    """Results of a node, by index, and how many steps there are when they are computed."""

    steps: int
    node: Node
    results: Mapping[int, Array]

    @property
    def is_whole(self) -> bool:
        """Whether these are all results of the node."""
        return len(self.results) == len(self.node.outputs)


class GraphPlanner:
    """Adds the steps that compute the nodes of one graph, which it leaves as they are. `leaves` is
    the memory that they read; it has the first slots."""

    def __init__(self, b: Builder, leaves: Iterable[MetalStorage]) -> None:
        self.b = b
        self.made: list[Made] = []
        self.done: list[tuple[int, Node]] = []
        """The number of steps after which nothing needs a node, and this node."""
        # Of leaves, by the id of their storage.
        self._stand_ins = {id(leaf): b.leaf(leaf) for leaf in leaves}
        self._places = {id(leaf): i for i, leaf in enumerate(self._stand_ins.values())}
        self._results: dict[tuple[Node, int], Storage] = {}

    def add(self, joins: Iterable[Joined], *, describe: bool = False) -> None:
        """Add the steps of joins; `describe` tells profilers what each step does."""
        for join in joins:
            self.b.working(join.work() if describe else None)
            with under(join.root.policy):
                computed = emit(self.b, join, self.real)
            for node, results in computed:
                self.made.append(Made(self.b.step_count, node, results))
                for index, array in results.items():
                    self._results[node, index] = array.storage
            self.done += ((self.b.step_count, node) for node in join.nodes)

    def real(self, array: Array) -> Array:
        """An operand over the memory of the plan."""
        storage: Any = array.storage
        if isinstance(storage, Pending):
            if storage.node is not None:
                return Array(self.result(storage), array.layout, array.dtype)
            storage = storage.storage
        if not isinstance(storage, MetalStorage):
            return array
        return Array(self._stand_ins[id(storage)], array.layout, array.dtype)

    def result(self, pending: Pending) -> Storage:
        """Where a result of a node is."""
        assert pending.node is not None
        return self._results[pending.node, pending.index]

    def place(self, storage: Storage) -> Part | int:
        """Where a result is: in a part of a slot, or the leaf with this number, if it is a cache
        that is written in place."""
        if isinstance(storage, MetalCache) and id(storage) in self._places:
            return self._places[id(storage)]
        return self.b.part(storage)

    def plan(
        self, order: Sequence[Node], read_numbers: Mapping[int, Number] = MappingProxyType({})
    ) -> GraphPlan:
        """What was added, as the plan of a graph with these nodes."""
        places = {id(node): i for i, node in enumerate(order)}
        settled: list[list[Settlement]] = [[] for _ in range(self.b.step_count + 1)]
        finished: list[list[int]] = [[] for _ in settled]
        kept: dict[int, int] = {}  # the step up to which the slots of results stay
        for computed in self.made:
            places_of_results = tuple(
                (i, self.place(array.storage)) for i, array in computed.results.items()
            )
            settlement = Settlement(places[id(computed.node)], places_of_results, computed.is_whole)
            settled[computed.steps].append(settlement)
            for _, part in places_of_results:
                kept[part if isinstance(part, int) else part.slot] = computed.steps - 1
        for steps, node in self.done:
            finished[steps].append(places[id(node)])
        return GraphPlan(
            self.b.closed(kept),
            tuple(map(tuple, settled)),
            tuple(map(tuple, finished)),
            read_numbers,
        )


def planner_of(
    b: Builder,
    order: Sequence[Node],
    targets: Sequence[Node],
    leaves: Iterable[MetalStorage],
    *,
    describe: bool = False,
) -> GraphPlanner:
    """A planner to which the steps that compute the targets were added."""
    planner = GraphPlanner(b, leaves)
    planner.add(joined(order, targets, b.info), describe=describe)
    return planner


def general_plan(
    gpu: Context,
    order: Sequence[Node],
    targets: Sequence[Node],
    structure: GraphStructure,
    *,
    describe: bool = False,
) -> GraphPlan:
    """The plan for all graphs of a structure, made of one of them."""
    read: set[int] = set()
    numbers = {
        number: GraphNumber(np.frombuffer(number[0], np.uint8), place, read)
        for place, number in enumerate(structure.numbers)
    }
    operands = [node.inputs for node in order] if numbers else []
    try:
        for node in order if numbers else ():
            node.inputs = tuple([_opened(x, numbers) for x in node.inputs])
        planner = planner_of(Builder(gpu), order, targets, structure.leaves, describe=describe)
        return planner.plan(order, {place: structure.numbers[place] for place in read})
    finally:
        for node, inputs in zip(order, operands, strict=False):
            node.inputs = inputs


def _opened(array: Array | None, numbers: Mapping[Number, GraphNumber]) -> Array | None:
    """An operand, with a placeholder if it is a number."""
    if array is None or array.storage.device != "cpu":
        return array
    number = (number_bytes(array), array.dtype.name)
    return Array(numbers[number], sh.contiguous(()), array.dtype)


# ---- remembering ----


class KnownPlans:
    """The plans of one device by the structure of graphs, with a bound on their nodes."""

    def __init__(self, most_nodes: int = MOST_NODES) -> None:
        self._most_nodes = most_nodes
        self._known: dict[object, tuple[int, list[GraphPlan]]] = {}  # used last at the end
        self._nodes = 0
        self._gpu: weakref.ref[Context] | None = None
        self._info: DeviceInfo | None = None  # its capabilities, which a calibration replaces

    def __len__(self) -> int:
        return len(self._known)

    @property
    def nodes(self) -> int:
        """The nodes of all graphs that are known."""
        return self._nodes

    def clear(self) -> None:
        """Forget all plans."""
        self._known, self._nodes = {}, 0

    def find(self, gpu: Context, structure: GraphStructure) -> GraphPlan | None:
        """The plan that fits a graph."""
        if self._gpu is None or self._gpu() is not gpu or self._info is not gpu.info:
            self.clear()
            self._gpu, self._info = weakref.ref(gpu), gpu.info
        known = self._known.pop(structure.key, None)
        if known is None:
            return None
        self._known[structure.key] = known
        for plan in known[1]:
            if not plan.read_numbers or plan.fits(structure.numbers):
                return plan
        return None

    def add(self, structure: GraphStructure, nodes: int, plan: GraphPlan) -> None:
        """Keep the plan of a graph of so many nodes, unless they are very many."""
        if nodes > self._most_nodes // LARGEST_PART:
            return
        if structure.key in self._known:
            plans = self._known[structure.key][1]
            plans[:] = [plan, *plans[: MOST_PLANS - 1]]
            return
        while self._nodes + nodes > self._most_nodes:
            oldest, _ = self._known.pop(next(iter(self._known)))
            self._nodes -= oldest
        self._nodes += nodes
        self._known[structure.key] = (nodes, [plan])


KNOWN = KnownPlans()
"""Used with `graph.LOCK` held."""


# ---- computing ----


@computes_graphs
def run(targets: Sequence[Node], submit: bool = False) -> None:
    """Compute nodes. `submit` gives their commands to the device at once, for a caller that waits.

    The memory of an intermediate result returns to the pool when its last reader is encoded: the
    device runs commands in order, so the next kernel can use it.
    """
    gpu = context()
    order = in_order(targets)
    structure = structure_of(order, targets)
    if structure is None:
        refuse_inputs(order)
        structure = GraphStructure((), memory_read(order), [])
        plan = planner_of(Builder(gpu), order, targets, structure.leaves).plan(order)
    elif gpu.queue.observer is not None:  # a profiler wants to know what each step does
        plan = general_plan(gpu, order, targets, structure, describe=True)
    else:
        known = KNOWN.find(gpu, structure)
        if known is None:
            known = general_plan(gpu, order, targets, structure)
            KNOWN.add(structure, len(order), known)
        plan = known
    plan.run(gpu, order, structure, submit=submit)


# ---- looking at plans ----


def described(storages: Iterable[Storage], *, replayed: bool = False) -> GraphPlanner:
    """The planner of what storages depend on. Nothing is compiled or computed."""
    with LOCK:
        targets = nodes_of(storages)
        order = in_order(targets)
        return planner_of(Builder(context(), replayed=replayed), order, targets, memory_read(order))


def commands(storages: Iterable[Storage]) -> CommandList:
    """The list that computes what storages depend on. Kernels are compiled, and nothing runs."""
    kept = list(storages)
    planner = described(kept)
    wanted = [planner.result(x) for x in kept if isinstance(x, Pending) and x.node is not None]
    last = planner.b.step_count - 1
    return planner.b.closed({planner.b.part(storage).slot: last for storage in wanted})


def pipelines(storages: Iterable[Storage], *, replayed: bool = False) -> list[PipelineRequest]:
    """The kernels that compute what storages depend on."""
    return described(storages, replayed=replayed).b.pipelines()
