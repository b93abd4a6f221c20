"""Loops that threads leave at different times, such as those over every 256th element.

All threads stay in the loop until the last has left, and a thread that has left does nothing: so an
iteration is a region, which LLVM vectorises, since it does so for innermost loops alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Graph, Node, replaced
from softmetal.compiler.regions.regions import is_ordered
from softmetal.compiler.regions.variation import Variation, computes_anywhere

_MOST_LOOPS = 16


@dataclass(frozen=True)
class _Loop:
    blocks: set[str]
    header: Node
    latch: Node
    way_in: Node  # the block before the header
    exit: Node
    guard: Node | None  # where threads part that never enter
    stays: str  # whether a thread stays, a value of the latch
    is_inverted: bool


def mask_loops(graph: Graph, simdgroup: bool) -> None:
    """Rewrite such loops in a kernel that has been cut at its meetings."""
    for number in range(_MOST_LOOPS):
        variation = Variation(graph, simdgroup)
        found = (_found(variation, header) for header in graph.order)
        loop = next((each for each in found if each is not None), None)
        if loop is None:
            return
        _Masking(variation, loop, number).rewrite()
        graph.refresh()


def _found(variation: Variation, header: str) -> _Loop | None:
    graph = variation.graph
    blocks = graph.loop(header)
    if not blocks:
        return None
    node = graph.nodes[header]
    before = [name for name in graph.predecessors[header] if name not in blocks]
    latches = [name for name in graph.predecessors[header] if name in blocks]
    leaving = [n for n in blocks if any(s not in blocks for s in graph.nodes[n].successors)]
    if len(before) != 1 or len(latches) != 1 or leaving != latches:
        return None
    latch, way_in = graph.nodes[latches[0]], graph.nodes[before[0]]
    if latch.end.opcode != "br" or len(latch.successors) != 2 or not variation.is_parting(latch):
        return None
    for name in blocks:
        inner = graph.nodes[name]
        if inner.boundary or inner.vote or (name != header and graph.loop(name)):
            return None
        if any(is_ordered(each) for each in inner.body):
            return None
    leaves = next(name for name in latch.successors if name not in blocks)
    guard = _guard(variation, way_in, header, leaves)
    if guard is None and (way_in.name in variation.diverged or variation.is_parting(way_in)):
        return None
    if guard is not None and graph.exits[guard.name] != leaves:
        return None
    stays = latch.end.values[0]
    if not _is_contained(graph, blocks, leaves, latch.name):
        return None
    inverted = latch.end.labels[0].value != header
    return _Loop(blocks, node, latch, way_in, graph.nodes[leaves], guard, stays, inverted)


def _guard(variation: Variation, way_in: Node, header: str, leaves: str) -> Node | None:
    """The block in which threads part that enter the loop and that do not."""
    graph = variation.graph
    guard = way_in
    if way_in.successors == [header]:
        before = graph.predecessors[way_in.name]
        if way_in.name not in variation.diverged or len(before) != 1 or way_in.phis:
            return None
        if way_in.boundary or not all(map(computes_anywhere, way_in.body)):
            return None
        guard = graph.nodes[before[0]]
    if guard.name in variation.diverged or guard.end.opcode != "br" or guard.vote:
        return None
    inside = header if guard is way_in else way_in.name
    return guard if set(guard.successors) == {inside, leaves} else None


def _is_contained(graph: Graph, blocks: set[str], leaves: str, latch: str) -> bool:
    """Whether what the loop computes is used after it by the first block's phis alone."""
    inside = {each.result for name in blocks for each in graph.nodes[name].instructions}
    for name, node in graph.nodes.items():
        if name in blocks:
            continue
        for phi in node.phis:
            for operand, label in zip(phi.operands, phi.labels, strict=True):
                if operand.value in inside and (name, label.value) != (leaves, latch):
                    return False
        after = [*node.body, node.end, *([node.boundary] if node.boundary else [])]
        if any(used in inside for each in after for used in graph.uses(each)):
            return False
    return True


class _Masking:
    def __init__(self, variation: Variation, loop: _Loop, number: int) -> None:
        self.variation, self.graph, self.loop = variation, variation.graph, loop
        self.prefix = f"%mask{number}"
        self.numbers = count()
        self.new_header, self.new_latch = f"{self.prefix}.header", f"{self.prefix}.latch"
        self.carried: list[str] = []  # phis of the new header, as text
        self.chosen: list[str] = []  # phis of the new latch
        self.advanced: list[str] = []  # in the new latch: counters of those that left go on

    def name(self, kind: str) -> str:
        return f"{self.prefix}.{kind}{next(self.numbers)}"

    def rewrite(self) -> None:
        graph, loop = self.graph, self.loop
        entry, latch = loop.way_in, loop.latch
        active = self._enter()
        stays = loop.stays
        if loop.is_inverted:
            stays = self.name("stays")
            latch.body.append(Instruction(f"  {stays} = xor i1 {loop.stays}, true"))
        selected: dict[tuple[str, str], str] = {}
        for phi in loop.header.phis:
            selected |= self._carry(phi)
        for position, phi in enumerate(loop.exit.phis):
            loop.exit.phis[position] = self._leave(phi, selected)
        is_active, remains = f"{self.prefix}.active", f"{self.prefix}.remains"
        self.carried.append(
            f"{is_active} = phi i1 [ {active}, {entry.name} ], [ {remains}, {self.new_latch} ]"
        )
        self.chosen.append(
            f"{remains} = phi i1 [ false, {self.new_header} ], [ {stays}, {latch.name} ]"
        )
        header = loop.header
        graph.nodes[self.new_header] = Node(
            self.new_header,
            _instructions(self.carried),
            [],
            Instruction(f"  br i1 {is_active}, label {header.name}, label {self.new_latch}"),
            is_head=True,
        )
        header.phis = []
        latch.end = Instruction(f"  br label {self.new_latch}")
        graph.nodes[self.new_latch] = Node(
            self.new_latch,
            _instructions(self.chosen),
            _instructions(self.advanced),
            Instruction(
                f"  br i1 {self.prefix}.any, label {self.new_header}, label {loop.exit.name}"
            ),
            vote=remains,
        )
        entry.end = Instruction(f"  br label {self.new_header}")

    def _enter(self) -> str:
        """Lets all threads enter; returns whether one does anything there."""
        guard, entry = self.loop.guard, self.loop.way_in
        if guard is None:
            return "true"
        condition = guard.end.values[0]
        if guard.end.labels[0].value == self.loop.exit.name:
            inverted = self.name("enters")
            guard.body.append(Instruction(f"  {inverted} = xor i1 {condition}, true"))
            condition = inverted
        if guard is not entry:
            guard.end = Instruction(f"  br label {entry.name}")
        return condition

    def _carry(self, phi: Instruction) -> dict[tuple[str, str], str]:
        """A phi of the header; the value after the loop, by its first and next."""
        pairs = dict(zip((each.value for each in phi.labels), phi.values, strict=True))
        first, following = pairs[self.loop.way_in.name], pairs[self.loop.latch.name]
        advanced = self._advanced(phi, following)
        chosen = advanced or self.name("chosen")
        if not advanced:
            self._choose(chosen, phi.type, phi.result, following)
        self.carried.append(
            f"{phi.result} = phi {phi.flags}{phi.type} [ {first}, {self.loop.way_in.name} ], "
            f"[ {chosen}, {self.new_latch} ]"
        )
        return {} if advanced else {(first, following): chosen}

    def _choose(self, name: str, kind: str, old: str, new: str) -> None:
        self.chosen.append(
            f"{name} = phi {kind} [ {old}, {self.new_header} ], [ {new}, {self.loop.latch.name} ]"
        )

    def _advanced(self, phi: Instruction, following: str) -> str:
        """The next value, for all threads, of a counter that nothing after the loop needs."""
        definition = self.graph.definitions.get(following)
        is_needed = any({phi.result, following} & set(each.values) for each in self.loop.exit.phis)
        if definition is None or is_needed or definition.opcode not in ("add", "getelementptr"):
            return ""
        used = self.graph.uses(definition)
        inside = (name for name in used if self.graph.places.get(name) in self.loop.blocks)
        if definition.values[0] != phi.result or set(inside) != {phi.result}:
            return ""
        if any(name in self.variation.varying for name in used if name != phi.result):
            return ""
        result = self.name("next")
        text = replaced(definition.text.strip(), {following: result})
        for flag in ("nuw ", "nsw ", "inbounds "):
            text = text.replace(flag, "")
        self.advanced.append(text)
        return result

    def _leave(self, phi: Instruction, selected: dict[tuple[str, str], str]) -> Instruction:
        """A phi after the loop: its value comes from the new latch."""
        loop = self.loop
        pairs = list(zip(phi.values, (each.value for each in phi.labels), strict=True))
        guard = loop.guard.name if loop.guard else ""
        first = next((value for value, label in pairs if label == guard), "poison")
        last = next(value for value, label in pairs if label == loop.latch.name)
        value = selected.get((first, last)) if guard else None
        if value is None:
            value, current = self.name("last"), self.name("current")
            self._choose(value, phi.type, current, last)
            self.carried.append(
                f"{current} = phi {phi.type} [ {first}, {loop.way_in.name} ], "
                f"[ {value}, {self.new_latch} ]"
            )
        others = [(v, label) for v, label in pairs if label not in (guard, loop.latch.name)]
        incoming = ", ".join(f"[ {v}, {at} ]" for v, at in [*others, (value, self.new_latch)])
        return Instruction(f"  {phi.result} = phi {phi.flags}{phi.type} {incoming}")


def _instructions(lines: list[str]) -> list[Instruction]:
    return [Instruction(f"  {line}") for line in lines]
