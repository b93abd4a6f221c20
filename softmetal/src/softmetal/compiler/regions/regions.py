"""Regions: the parts of a kernel between the places where its threads meet.

A region begins at its head, where all threads of the unit arrive together, and runs for one thread
after another. Branches that are the same for all threads lie between regions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Graph, Node, Unsplittable
from softmetal.compiler.regions.variation import Variation, reads, writes

_LANE = "@softmetal_lane"
_BARRIER, _COLLECTIVE = "@softmetal_barrier", "@softmetal_collective"


@dataclass(eq=False)
class Region:
    """Blocks that a loop over threads runs."""

    number: int
    head: str
    blocks: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Regions:
    """The regions of a kernel by their heads."""

    variation: Variation
    found: dict[str, Region]
    region_of: dict[str, Region]

    def last(self, region: Region) -> Node:
        """The block after which all threads have gone the same way."""
        graph, diverged = self.variation.graph, self.variation.diverged
        return graph.nodes[[name for name in region.blocks if name not in diverged][-1]]

    def parts_after(self, node: Node) -> bool:
        """Whether the branch of a block lies between regions."""
        return (
            len(node.successors) > 1
            and node.name not in self.variation.diverged
            and not self.variation.is_parting(node)
        )


def cut_at_meetings(graph: Graph, simdgroup: bool) -> None:
    """Let a block begin after each barrier and collective."""
    graph.refresh()
    shared = _shared_accesses(graph) if simdgroup and graph.accesses else set()
    for node in list(graph.nodes.values()):
        while (at := _first_meeting(graph, node, shared)) is not None:
            boundary = node.body.pop(at)
            if boundary.callee != _BARRIER and not simdgroup:
                raise Unsplittable("simdgroup functions")
            if boundary.callee == _COLLECTIVE and boundary.values[1] != "null":
                raise Unsplittable("an unknown simdgroup function")
            if boundary.callee in graph.meetings:
                boundary, copies = _with_copies(graph, boundary)
                node.body[at:at] = copies
                at += len(copies)
            node = cut(graph, node, at)
            node.boundary = boundary
    graph.refresh()


def _shared_accesses(graph: Graph) -> set[str]:
    """Calls that access a matrix at a place that is the same for all lanes, as they are written."""
    variation = Variation(graph, True)
    return {
        each.text
        for node in graph.nodes.values()
        if node.name not in variation.diverged
        for each in node.body
        if each.opcode == "call"
        and each.callee in graph.accesses
        and all(map(variation.uniform, each.values[:3]))
    }


def _first_meeting(graph: Graph, node: Node, shared: set[str]) -> int | None:
    known = {_BARRIER, _COLLECTIVE, *graph.meetings}
    places = (
        place
        for place, each in enumerate(node.body)
        if each.opcode == "call" and (each.callee in known or each.text in shared)
    )
    return next(places, None)


def _with_copies(graph: Graph, meeting: Instruction) -> tuple[Instruction, list[Instruction]]:
    """A simdgroup function with copies of operands that may be what a thread knows of itself, which
    nothing would store for the others to see."""
    copies: list[Instruction] = []
    for position in range(len(meeting.operands) - 1, -1, -1):
        operand = meeting.operands[position]
        definition = graph.definitions.get(operand.value)
        if definition and (definition.opcode == "load" or definition.callee == _LANE):
            inner = meeting.result[1:].strip('"')
            name = f'%"{inner}.operand{position}"'
            copies.append(Instruction(f"  {name} = freeze {operand.type} {operand.value}"))
            meeting = meeting.with_value(operand, name)
    return meeting, copies


def cut(graph: Graph, node: Node, at: int) -> Node:
    """Move what is in a block from a position on into a new one."""
    inner = node.name[1:].strip('"')
    name = f'%"{inner}.{len(graph.nodes)}"'
    rest = Node(name, [], node.body[at:], node.end)
    node.body = node.body[:at]
    node.end = Instruction(f"  br label {name}")
    for successor in rest.successors:
        target = graph.nodes[successor]
        target.phis = [_from(phi, node.name, name) for phi in target.phis]
    graph.nodes[name] = rest
    return rest


def _from(phi: Instruction, old: str, new: str) -> Instruction:
    while True:
        label = next((each for each in phi.labels if each.value == old), None)
        if label is None:
            return phi
        phi = phi.with_value(label, new)


def find(graph: Graph, simdgroup: bool) -> Regions:
    """The regions of a kernel that has been cut at its meetings."""
    forced: set[str] = set()
    while True:
        variation = Variation(graph, simdgroup, set(forced))
        for node in graph.nodes.values():
            if (node.boundary or node.vote) and node.name in variation.diverged:
                raise Unsplittable("threads meet where only some of them may arrive")
        more = _loops_to_keep(variation) | _mixed(variation)
        if more - forced:
            forced |= more
            continue
        regions = _divide(variation)
        if not _cut_late_reads(regions):
            return regions


def _mixed(variation: Variation) -> set[str]:
    """Branches that are the same for all threads, and lead into blocks that some of them reach."""
    graph, diverged = variation.graph, variation.diverged
    return {
        node.name
        for node in graph.nodes.values()
        if len(node.successors) > 1
        and node.name not in diverged
        and any(name in diverged for name in node.successors)
    }


def _loops_to_keep(variation: Variation) -> set[str]:
    """Branches out of loops that every thread runs alone: in these LLVM could not run threads side
    by side, and nobody meets there."""
    graph = variation.graph
    kept: set[str] = set()
    for header in graph.order:
        if header in variation.diverged:
            continue
        loop = graph.loop(header)
        inside = [graph.nodes[name] for name in loop]
        if not loop or any(node.boundary or node.vote for node in inside):
            continue
        if any(is_ordered(each) for node in inside for each in node.body) or any(
            graph.loop(name) for name in loop & variation.diverged
        ):
            kept |= {
                node.name for node in inside if any(name not in loop for name in node.successors)
            }
    return kept


def is_ordered(each: Instruction) -> bool:
    """Whether LLVM keeps threads from doing it side by side."""
    return writes(each) and each.opcode != "store"


def _divide(variation: Variation) -> Regions:
    graph, diverged = variation.graph, variation.diverged
    heads = {graph.entry} | {n.name for n in graph.nodes.values() if n.boundary or n.is_head}
    for node in graph.nodes.values():
        if (
            len(node.successors) > 1
            and node.name not in diverged
            and not variation.is_parting(node)
        ):
            heads |= set(node.successors)
    while True:
        region_of = _assign(graph, heads)
        new = {
            name
            for name in graph.order
            if name not in heads
            and any(region_of[p] != region_of[name] for p in graph.predecessors[name])
        }
        if not new:
            break
        heads |= new
    if heads & diverged:
        raise Unsplittable("threads part before one meeting and join after it")
    found = {
        head: Region(number, head)
        for number, head in enumerate(name for name in graph.order if name in heads)
    }
    for name in graph.order:
        found[region_of[name]].blocks.append(name)
    return Regions(variation, found, {name: found[head] for name, head in region_of.items()})


def _assign(graph: Graph, heads: set[str]) -> dict[str, str]:
    """The head that each block follows. Where several do, the first is named."""
    region_of: dict[str, str] = {}
    for name in graph.order:
        before = (region_of[p] for p in graph.predecessors[name] if p in region_of)
        region_of[name] = name if name in heads else next(before)
    return region_of


def _cut_late_reads(regions: Regions) -> bool:
    """Let a region end before a load that is done once for all threads, if what is before it in
    the region may write. Whether there was one."""
    variation, changed = regions.variation, False
    graph = variation.graph
    for region in regions.found.values():
        written = False
        for name in region.blocks:
            node = graph.nodes[name]
            for at, each in enumerate(node.body):
                late = written and reads(each) and variation.uniform(each.result)
                if late and "!invariant.load" not in each.text:
                    rest = cut(graph, node, at)
                    rest.is_head = changed = True
                    break
                written = written or writes(each)
            else:
                continue
            break
    if changed:
        graph.refresh()
    return changed
