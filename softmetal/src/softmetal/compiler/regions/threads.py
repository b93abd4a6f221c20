"""The loop over threads of a region, in LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Node, replaced
from softmetal.compiler.regions.regions import Region

if TYPE_CHECKING:
    from softmetal.compiler.regions.emission import Emitter

_ACCESSES = ("load", "store")


class Threads:
    """The loop over threads of a region."""

    def __init__(self, emitter: Emitter, region: Region) -> None:
        self.emitter, self.region = emitter, region
        self.graph, self.variation = emitter.graph, emitter.variation
        self.prefix = f"%r{region.number}"
        self.place = f"{self.prefix}.place"
        self.names: dict[str, str] = {}  # what this region calls values of others
        self.found: list[str] = []  # computes or loads them
        self.needed = False

    def lines(self) -> list[str]:
        blocks = [line for name in self.region.blocks for line in self._block(name)]
        if not self.needed:
            return []
        head = self.region.head
        loop = [*self._begin(head), *("  " + line for line in self.found)]
        return [*loop, *blocks, *self._end(head)]

    def _begin(self, head: str) -> list[str]:
        p = self.prefix
        if not self.emitter.located:
            lines = [
                f"\n{p[1:]}.enter:",
                f"  br label {head}",
                f"\n{head[1:]}:",
                f"  {p}.lane = phi i32 [ 0, {p}.enter ], [ {p}.next, {p}.latch ]",
            ]
        else:
            lines = [
                f"\n{p[1:]}.run:",
                f"  {p}.at = phi i32 [ 0, {p}.start ], [ {p}.then, {p}.turn ]",
                f"  {p}.x0 = phi i32 [ %unit.x, {p}.start ], [ 0, {p}.turn ]",
                f"  {p}.y = phi i32 [ %unit.y, {p}.start ], [ {p}.y1, {p}.turn ]",
                f"  {p}.z = phi i32 [ %unit.z, {p}.start ], [ {p}.z1, {p}.turn ]",
                f"  {p}.left = sub nuw nsw i32 %unit.n, {p}.at",
                f"  {p}.room = sub nuw nsw i32 %unit.sx, {p}.x0",
                f"  {p}.length = call i32 @llvm.umin.i32(i32 {p}.left, i32 {p}.room)",
                f"  br label {head}",
                f"\n{head[1:]}:",
                f"  {p}.i = phi i32 [ 0, {p}.run ], [ {p}.next, {p}.latch ]",
                f"  {p}.lane = add nuw nsw i32 {p}.at, {p}.i",
                f"  {p}.x = add nuw nsw i32 {p}.x0, {p}.i",
            ]
        return [
            *lines,
            f"  {p}.index = add nuw nsw i32 %unit.first, {p}.lane",
            f"  {p}.place = zext nneg i32 {p}.lane to i64",
        ]

    def _end(self, head: str) -> list[str]:
        p, loop = self.prefix, self.emitter.labels.loop
        if not self.emitter.located:
            return [
                f"\n{p[1:]}.latch:",
                f"  {p}.next = add nuw nsw i32 {p}.lane, 1",
                f"  {p}.more = icmp ult i32 {p}.next, %unit.n",
                f"  br i1 {p}.more, label {head}, label {p}.done{loop}",
            ]
        return [
            f"\n{p[1:]}.latch:",
            f"  {p}.next = add nuw nsw i32 {p}.i, 1",
            f"  {p}.more = icmp ult i32 {p}.next, {p}.length",
            f"  br i1 {p}.more, label {head}, label {p}.turn{loop}",
            f"\n{p[1:]}.turn:",
            f"  {p}.then = add nuw nsw i32 {p}.at, {p}.length",
            f"  {p}.below = add nuw nsw i32 {p}.y, 1",
            f"  {p}.wraps = icmp eq i32 {p}.below, %unit.sy",
            f"  {p}.y1 = select i1 {p}.wraps, i32 0, i32 {p}.below",
            f"  {p}.deeper = zext i1 {p}.wraps to i32",
            f"  {p}.z1 = add nuw nsw i32 {p}.z, {p}.deeper",
            f"  {p}.again = icmp ult i32 {p}.then, %unit.n",
            f"  br i1 {p}.again, label {p}.run, label {p}.done",
        ]

    # ---- blocks ------------------------------------------------------------------------------

    def _block(self, name: str) -> list[str]:
        node = self.graph.nodes[name]
        lines: list[str] = []
        if name == self.region.head:
            for phi in self.emitter.varying_phis(self.region):
                array = suffixed(phi.result, "in")
                self.found += self.emitter.kept_value(phi.result, phi.type, array, self.place)
                self.needed = True
        else:
            phis = [phi for phi in node.phis if not self.variation.uniform(phi.result)]
            lines += [self._translated(phi) for phi in phis]
        for phi in node.phis:
            lines += self._keep(phi)
        for each in node.body:
            lines += self._instruction(each)
        label = [] if name == self.region.head else [f"\n{name[1:]}:"]
        before, after = self._leave(node)
        return [*label, *("  " + line for line in (*lines, *before)), *after]

    def _instruction(self, each: Instruction) -> list[str]:
        if each.result and self.variation.uniform(each.result):
            return []
        if each.result and self.emitter.is_place(each.result):
            return []
        self.needed = True
        text = self._translated(each)
        if each.opcode in _ACCESSES and "!llvm.access.group" not in text:
            text += self.emitter.labels.accesses
        return [text, *self._keep(each)]

    def _keep(self, each: Instruction) -> list[str]:
        kind = self.emitter.kept.get(each.result)
        if kind is None:
            return []
        self.needed = True
        return self.emitter.keep(each.result, kind, suffixed(each.result, "kept"), self.place)

    def _leave(self, node: Node) -> tuple[list[str], list[str]]:
        """The end of a block, and blocks between it and the end of the region."""
        heads, latch = self.emitter.regions.found, f"{self.prefix}.latch"
        if node.end.opcode == "ret":
            return [f"br label {latch}"], []
        if self.emitter.regions.parts_after(node) or len(node.successors) == 1:
            stores = [
                line
                for name in node.successors
                if name in heads
                for line in self._arrive(node.name, name)
            ]
            if all(name in heads for name in node.successors):
                return [*stores, f"br label {latch}"], []
            return [self._translated(node.end)], []
        self.needed = self.needed or node.end.opcode != "unreachable"
        targets, after = {}, []
        for name in node.successors:
            if name in heads:
                self.emitter.count += 1
                targets[name] = f"{self.prefix}.leave{self.emitter.count}"
                after += [
                    f"\n{targets[name][1:]}:",
                    *("  " + line for line in self._arrive(node.name, name)),
                    f"  br label {latch}",
                ]
        return [replaced(self._translated(node.end), targets)], after

    def _arrive(self, source: str, head: str) -> list[str]:
        """Stores what a region's head gets from a block."""
        lines = []
        for phi in self.emitter.varying_phis(self.emitter.regions.found[head]):
            for operand, label in zip(phi.operands, phi.labels, strict=True):
                if label.value == source:
                    value = self._value(operand.value)
                    array = suffixed(phi.result, "in")
                    lines += self.emitter.keep(value, phi.type, array, self.place)
                    self.needed = True
                    break
        return lines

    # ---- values of other regions -------------------------------------------------------------

    def _translated(self, each: Instruction) -> str:
        for name in self.graph.uses(each):
            self._value(name)
        return replaced(each.text.strip(), self.names)

    def _value(self, value: str) -> str:
        """What a value is called here."""
        if value in self.names:
            return self.names[value]
        if value not in self.graph.definitions or self.variation.uniform(value):
            return value
        if self.emitter.is_place(value):
            self.names[value] = self._place(value)
            return self.names[value]
        if self.emitter.regions.region_of.get(self.graph.places.get(value, "")) is self.region:
            return value
        name = suffixed(value, f"r{self.region.number}")
        kind = self.emitter.kept.get(value)
        if kind is not None:
            array = suffixed(value, "kept")
            self.found += self.emitter.kept_value(name, kind, array, self.place)
        else:
            definition = self.graph.definitions[value]
            text = self._translated(definition)
            self.found.append(text.replace(f"{value} =", f"{name} =", 1))
        self.names[value] = name
        return name

    def _place(self, value: str) -> str:
        kind = self.variation.threads.get(value)
        if kind == "lane":
            name = f"{self.prefix}.simd"
            line = f"{name} = and i32 {self.prefix}.index, 31"
            if line not in self.found:
                self.found.append(line)
            return name
        if kind is not None:
            return f"{self.prefix}.{kind}"
        alloca = self.graph.definitions[value]
        name = suffixed(value, f"r{self.region.number}")
        self.found.append(
            f"{name} = getelementptr inbounds nuw {alloca.type}, ptr {suffixed(value, 'all')}, "
            f"i64 {self.place}"
        )
        return name


def suffixed(name: str, suffix: str) -> str:
    return f'{name[:-1]}.{suffix}"' if name.endswith('"') else f"{name}.{suffix}"
