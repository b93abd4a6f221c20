"""Regions as loops over threads, in LLVM IR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Node, Unsplittable, replaced
from softmetal.compiler.regions.regions import Region, Regions
from softmetal.compiler.regions.threads import Threads, suffixed
from softmetal.compiler.regions.variation import computes_anywhere
from softmetal.compiler.regions.widths import result_type, size_of
from softmetal.types import SIMD_WIDTH

_MOST_COMPUTED_AGAIN = 12  # instructions, of a value that other regions need
_MOST_SHARED = 64 << 10  # bytes, of a fiber's stack


@dataclass(frozen=True, slots=True)
class Labels:
    """Metadata of the loops and of what they access."""

    loop: str
    accesses: str


@dataclass(eq=False)
class Emitter:
    """Writes the body of a kernel that runs a unit of threads: a threadgroup or a simdgroup."""

    regions: Regions
    simdgroup: bool
    labels: Labels
    limit: int  # bytes that may be kept of a thread
    lines: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # values in arrays, with their types
    arrays: list[str] = field(default_factory=list)
    size: int = 0  # bytes of a thread in arrays
    shared: int = 0  # bytes of other operands of simdgroup functions

    def __post_init__(self) -> None:
        variation = self.regions.variation
        self.variation, self.graph = variation, variation.graph
        self.thread = self.graph.parameters[1]
        self.count = 0
        self.located = any(kind in "xyz" for kind in variation.threads.values())
        self.whole = {
            name: "%unit.first" for name, kind in variation.threads.items() if kind == "index"
        }

    # ---- values ------------------------------------------------------------------------------

    def is_place(self, value: str) -> bool:
        """Whether it is a thread's number, or where its own memory is."""
        if value in self.variation.threads:
            return True
        return self.graph.definitions[value].opcode == "alloca"

    def cost(self, value: str, limit: int) -> int:
        """How many instructions compute it again; more than the limit if it must be kept."""
        if self.variation.uniform(value) or self.is_place(value):
            return 0
        definition = self.graph.definitions[value]
        if not computes_anywhere(definition):
            return limit + 1
        total = 1
        for name in self.graph.uses(definition):
            total += self.cost(name, limit - total)
            if total > limit:
                break
        return total

    def is_kept(self, value: str) -> bool:
        return self.cost(value, _MOST_COMPUTED_AGAIN) > _MOST_COMPUTED_AGAIN

    def array(self, name: str, kind: str) -> None:
        """Room for a value of each thread."""
        stored = "i8" if kind == "i1" else kind
        self.size += size_of(stored, self.graph)
        if self.size > self.limit:
            raise Unsplittable(f"more than {self.limit} bytes of each thread to keep")
        self.arrays.append(f"{name} = alloca {stored}, i32 %unit.threads, align 64")

    def keep(self, value: str, kind: str, array: str, place: str) -> list[str]:
        """Stores a thread's value."""
        self.count += 1
        address, stored, lines = f"%keep.{self.count}", value, []
        if kind == "i1":
            stored, kind = f"{address}.byte", "i8"
            lines = [f"{stored} = zext i1 {value} to i8"]
        return [
            *lines,
            f"{address} = getelementptr inbounds nuw {kind}, ptr {array}, i64 {place}",
            f"store {kind} {stored}, ptr {address}{self.labels.accesses}",
        ]

    def kept_value(self, result: str, kind: str, array: str, place: str) -> list[str]:
        """Loads a thread's value."""
        stored = "i8" if kind == "i1" else kind
        self.count += 1
        address = f"%kept.{self.count}"
        loaded = f"{address}.byte" if kind == "i1" else result
        lines = [
            f"{address} = getelementptr inbounds nuw {stored}, ptr {array}, i64 {place}",
            f"{loaded} = load {stored}, ptr {address}{self.labels.accesses}",
        ]
        return [*lines, f"{result} = trunc i8 {loaded} to i1"] if kind == "i1" else lines

    # ---- the function ------------------------------------------------------------------------

    def body(self) -> str:
        """The blocks of the function."""
        self._choose_kept()
        for region in self.regions.found.values():
            self._region(region)
        first = self.regions.found[self.graph.entry]
        return (
            "\n".join(
                [
                    "  " + line
                    for line in (*self._entry(), *self.arrays, f"br label %r{first.number}.start")
                ]
                + self.lines
            )
            + "\n"
        )

    def _entry(self) -> list[str]:
        lines = []
        for name, offset in (("sx", 12), ("sy", 16), ("sz", 20), ("x", 24), ("y", 28), ("z", 32),
                             ("first", 36)):  # fmt: skip
            lines += [
                f"%unit.{name}.at = getelementptr inbounds nuw i8, ptr {self.thread}, i64 {offset}",
                f"%unit.{name} = load i32, ptr %unit.{name}.at, align 4",
            ]
        lines += [
            "%unit.row = mul nuw nsw i32 %unit.sx, %unit.sy",
            "%unit.all = mul nuw nsw i32 %unit.row, %unit.sz",
        ]
        if self.simdgroup:
            return [
                *lines,
                "%unit.rest = sub nuw nsw i32 %unit.all, %unit.first",
                "%unit.n = call i32 @llvm.umin.i32(i32 %unit.rest, i32 32)",
                "%unit.threads = add i32 0, 32",
            ]
        return [*lines, "%unit.n = add i32 %unit.all, 0", "%unit.threads = add i32 %unit.all, 0"]

    def _choose_kept(self) -> None:
        """Which values other regions need and have to load."""
        region_of, places = self.regions.region_of, self.graph.places
        for node in self.graph.nodes.values():
            if node.boundary:
                self._keep_operands(node.boundary)
            if node.vote:
                self.kept[node.vote] = "i1"
        for name, node in self.graph.nodes.items():
            for each, used in self._used(node, name):
                if self.variation.uniform(used) or self.is_place(used) or used in self.kept:
                    continue
                if region_of.get(places.get(used, "")) is not region_of[each]:
                    self._need(used, region_of[each])
        for value, kind in self.kept.items():
            self.array(f"{value}.kept" if value[1] != '"' else f'{value[:-1]}.kept"', kind)
        for region in self.regions.found.values():
            for phi in self.varying_phis(region):
                self.array(suffixed(phi.result, "in"), phi.type)
        for definition in self.graph.definitions.values():
            if definition.opcode == "alloca":
                self._own_memory(definition)

    def _keep_operands(self, meeting: Instruction) -> None:
        """What lanes bring to a simdgroup function, and what they get, is in arrays."""
        is_access = meeting.callee in self.graph.accesses
        for operand in meeting.operands[3:4] if is_access else meeting.operands:
            if operand.value in self.variation.varying:
                self.kept[operand.value] = operand.type
        if meeting.result in self.variation.varying:
            self.kept[meeting.result] = meeting.type

    def _need(self, value: str, region: Region) -> None:
        """A region needs a value: it is kept, or what it is computed from."""
        if self.variation.uniform(value) or self.is_place(value) or value in self.kept:
            return
        if self.regions.region_of.get(self.graph.places.get(value, "")) is region:
            return
        definition = self.graph.definitions[value]
        if self.is_kept(value):
            self.kept[value] = result_type(definition, self.graph)
            return
        for name in self.graph.uses(definition):
            self._need(name, region)

    def _used(self, node: Node, name: str) -> Iterable[tuple[str, str]]:
        """Values that are used, each with the block in which it must be known."""
        for each in (*node.body, node.end):
            for used in self.graph.uses(each):
                if used in self.graph.definitions:
                    yield name, used
        for phi in node.phis:
            for operand, label in zip(phi.operands, phi.labels, strict=True):
                if operand.value in self.graph.definitions:
                    yield label.value, operand.value

    def _own_memory(self, alloca: Instruction) -> None:
        """The memory of a thread's own variable, for all threads."""
        if len(alloca.operands) > 0:
            raise Unsplittable("an array of variable length")
        size = size_of(alloca.type, self.graph)
        self.size += size
        if self.size > self.limit:
            raise Unsplittable(f"more than {self.limit} bytes of each thread to keep")
        align = f", align {alloca.align}" if alloca.align else ""
        self.arrays.append(f"{suffixed(alloca.result, 'all')} = alloca {alloca.type}, "
                           f"i32 %unit.threads{align}")  # fmt: skip

    def varying_phis(self, region: Region) -> list[Instruction]:
        phis = self.graph.nodes[region.head].phis
        return [phi for phi in phis if not self.variation.uniform(phi.result)]

    # ---- a region ----------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        start, threads = self._outer(region), Threads(self, region).lines()
        done = f"%r{region.number}.done"
        self.lines.append(f"\nr{region.number}.start:")
        self.lines += ["  " + line for line in start]
        if threads:
            first = f"%r{region.number}.run" if self.located else f"%r{region.number}.enter"
            self.lines += [f"  br label {first}", *threads]
        else:
            self.lines.append(f"  br label {done}")
        self.lines.append(f"\nr{region.number}.done:")
        if vote := self.regions.last(region).vote:
            any_ = vote.rpartition(".")[0] + ".any"
            self.lines.append(f"  {any_} = call i1 @softmetal.any(ptr {vote}.kept, i32 %unit.n)")
        self.lines.append("  " + self._way_on(region))

    def _outer(self, region: Region) -> list[str]:
        """What is computed once for all threads."""
        lines: list[str] = []
        head = self.graph.nodes[region.head]
        uniform = (phi for phi in head.phis if self.variation.uniform(phi.result))
        lines += map(self._uniform_phi, uniform)
        if head.boundary:
            lines += self._meeting(head.boundary)
        for name in region.blocks:
            node = self.graph.nodes[name]
            if name != region.head:
                lines += [line for phi in node.phis for line in self._copied(phi)]
            for each in node.body:
                if each.result and self.variation.uniform(each.result):
                    lines.append(replaced(each.text.strip(), self.whole))
        return lines

    def _copied(self, phi: Instruction) -> list[str]:
        """A value that all threads bring to the place where they join."""
        if not self.variation.uniform(phi.result):
            return []
        values = set(phi.values)
        if len(values) != 1:
            raise Unsplittable("different values for all threads inside a region")
        kind, value = phi.type, values.pop()
        return [f"{phi.result} = select i1 true, {kind} {value}, {kind} {value}"]

    def _uniform_phi(self, phi: Instruction) -> str:
        found: dict[str, str] = {}
        for operand, label in zip(phi.operands, phi.labels, strict=True):
            source = f"%r{self.regions.region_of[label.value].number}.done"
            if found.setdefault(source, operand.value) != operand.value:
                raise Unsplittable("different values for all threads from one region")
        pairs = ", ".join(f"[ {value}, {source} ]" for source, value in found.items())
        return f"{phi.result} = phi {phi.flags}{phi.type} {pairs}"

    def _meeting(self, boundary: Instruction) -> list[str]:
        if not self.simdgroup:
            return []  # all have arrived when the loop before it has ended
        if boundary.callee == "@softmetal_barrier":
            return [boundary.text.strip()]
        if boundary.callee == "@softmetal_collective":
            return []  # simdgroup_barrier
        if boundary.callee in self.graph.accesses:
            return self._access(boundary)
        return self._together(boundary)

    def _together(self, meeting: Instruction) -> list[str]:
        """A simdgroup function of all lanes."""
        lines, arrays = [], []
        for operand in meeting.operands:
            if operand.value in self.kept:
                arrays.append(suffixed(operand.value, "kept"))
            else:
                arrays.append(self._temporary(operand.type))
                lines += self._repeated(operand.type, operand.value, arrays[-1])
        shared = meeting.result not in self.kept
        kind = meeting.type
        arrays.append(self._temporary(kind) if shared else suffixed(meeting.result, "kept"))
        operands = ", ".join(f"ptr {array}" for array in arrays)
        function = self.graph.meetings[meeting.callee]
        lines.append(f"call void {function}({operands}, i32 %unit.n)")
        return [*lines, f"{meeting.result} = load {kind}, ptr {arrays[-1]}"] if shared else lines

    def _access(self, call: Instruction) -> list[str]:
        """All lanes load or store their elements of a matrix."""
        lines: list[str] = []
        place = ", ".join(f"{each.type} {each.value}" for each in call.operands[:3])
        array = suffixed(call.result, "kept")
        if not call.result:
            value = call.operands[3]
            array = suffixed(value.value, "kept")
            if value.value not in self.kept:
                array = self._temporary(value.type)
                lines = self._repeated(value.type, value.value, array)
        function = self.graph.accesses[call.callee]
        return [*lines, f"call void {function}({place}, ptr {array}, i32 %unit.n)"]

    def _temporary(self, kind: str) -> str:
        self.count += 1
        name = f"%lanes.{self.count}"
        self.shared += SIMD_WIDTH * size_of(kind, self.graph)
        if self.shared > _MOST_SHARED:
            raise Unsplittable("too many operands of simdgroup functions")
        self.arrays.append(f"{name} = alloca {kind}, i32 32, align 64")
        return name

    def _repeated(self, kind: str, value: str, array: str) -> list[str]:
        """Stores the same value for each lane."""
        if kind[0] not in "<[{":
            vector = f"<32 x {kind}>"
            return [
                f"{array}.one = insertelement {vector} poison, {kind} {value}, i32 0",
                f"{array}.all = shufflevector {vector} {array}.one, {vector} poison, "
                "<32 x i32> zeroinitializer",
                f"store {vector} {array}.all, ptr {array}, align 64",
            ]
        return [
            line
            for lane in range(SIMD_WIDTH)
            for line in (
                f"{array}.{lane} = getelementptr {kind}, ptr {array}, i64 {lane}",
                f"store {kind} {value}, ptr {array}.{lane}",
            )
        ]

    def _way_on(self, region: Region) -> str:
        """The branch to the next region."""
        last = self.regions.last(region)
        starts = {head: f"%r{each.number}.start" for head, each in self.regions.found.items()}
        if self.regions.parts_after(last):
            return replaced(last.end.text.strip(), starts)
        inside = set(region.blocks) - {region.head}
        following = {
            successor
            for name in region.blocks
            for successor in self.graph.nodes[name].successors
            if successor not in inside
        }
        returns = any(self.graph.nodes[name].end.opcode == "ret" for name in region.blocks)
        if len(following) + returns > 1:
            raise Unsplittable("threads leave a region in different ways")
        if following:
            return f"br label {starts[following.pop()]}"
        return "ret void" if returns else "unreachable"
