"""Which values of a kernel differ between the threads that run it side by side.

What is not known to be the same counts as varying, so a mistake costs speed only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Graph, Node, Unsplittable

_COMPUTED = frozenset(
    "add sub mul udiv sdiv urem srem shl lshr ashr and or xor fadd fsub fmul fdiv frem fneg icmp "
    "fcmp select trunc zext sext fptrunc fpext fptoui fptosi uitofp sitofp ptrtoint inttoptr "
    "ptrtoaddr bitcast getelementptr extractelement insertelement shufflevector extractvalue "
    "insertvalue freeze".split()
)
# Intrinsics that only compute.
_COMPUTING = re.compile(
    r"@llvm\.(fma|fmuladd|[su](min|max)|abs|fabs|sqrt|minnum|maxnum|minimum|maximum|minimumnum"
    r"|maximumnum|copysign|floor|ceil|trunc|rint|nearbyint|round|roundeven|ctpop|ctlz|cttz|bswap"
    r"|bitreverse|fsh[lr]|[su](add|sub|mul)\.(sat|with\.overflow)|fpto[su]i\.sat|is\.fpclass"
    r"|canonicalize|ldexp|threadlocal\.address|vector\.reduce|bitreverse|convert)\b"
)
_NOTES = re.compile(
    r"@llvm\.(lifetime\.(start|end)|assume|experimental\.noalias\.scope\.decl|dbg|donothing)\b"
)
# Functions of runtime/target/lanes.h whose result is the same for the 32 lanes.
_SHARED = re.compile(
    r"@_ZN9softmetal\d+meet_(reduceINS_\d+\w+?ELj32E|voteILj32E|shuffleINS_10from_firstELj32E)"
)
_BROADCAST = re.compile(r"@_ZN9softmetal12meet_shuffleINS_9from_laneELj32E")
# Members of sm_thread (runtime/abi.h) by their offset.
_THREAD = {24: "x", 28: "y", 32: "z", 36: "index"}
_GROUP = {0, 4, 8, 12, 16, 20}
_SCRATCH = 40


def computes(instruction: Instruction) -> bool:
    """Whether it has no effect, and its result depends on its operands alone."""
    if instruction.opcode == "call":
        return _COMPUTING.match(instruction.callee) is not None
    return instruction.opcode in _COMPUTED


def computes_anywhere(instruction: Instruction) -> bool:
    """Whether it can also be computed for threads that never come to it: no division by zero."""
    if instruction.opcode in ("udiv", "sdiv", "urem", "srem"):
        return instruction.values[1].isdigit() and instruction.values[1] != "0"
    return computes(instruction)


def is_note(instruction: Instruction) -> bool:
    """Whether it only tells the optimiser something."""
    if instruction.opcode != "call":
        return False
    return _NOTES.match(instruction.callee) is not None or instruction.callee.startswith("asm ")


def reads(instruction: Instruction) -> bool:
    """Whether it is a plain load."""
    return instruction.opcode == "load" and not {"volatile", "atomic"} & set(
        instruction.flags.split()
    )


def writes(instruction: Instruction) -> bool:
    """Whether it may change memory, or order accesses to it."""
    return not (
        computes(instruction)
        or reads(instruction)
        or is_note(instruction)
        or instruction.opcode in ("phi", "br", "switch", "ret", "alloca", "unreachable")
    )


def _is_shared(meeting: Instruction) -> bool:
    """Whether all lanes of a simdgroup get the same result."""
    if _BROADCAST.match(meeting.callee):
        return meeting.values[1] == "0"
    return _SHARED.match(meeting.callee) is not None


@dataclass(eq=False)
class Variation:
    """What varies among the threads of a unit: of a threadgroup, or of a simdgroup."""

    graph: Graph
    simdgroup: bool
    forced: set[str] = field(default_factory=set)  # branches that count as varying
    threads: dict[str, str] = field(default_factory=dict)  # values that are x, y, z or index
    varying: set[str] = field(default_factory=set)
    diverged: set[str] = field(default_factory=set)  # blocks that only some threads may reach
    same: dict[str, str] = field(default_factory=dict)  # phis of one value

    def __post_init__(self) -> None:
        self._find_threads()
        self._spread()

    def _find_threads(self) -> None:
        """The loads from sm_thread, and calls for the lane."""
        thread = self.graph.parameters[1]
        offsets = {thread: 0}
        for node in self.graph.nodes.values():
            for each in node.instructions:
                self._find_thread(each, offsets)

    def _find_thread(self, each: Instruction, offsets: dict[str, int]) -> None:
        if each.opcode == "call" and each.callee == "@softmetal_lane":
            self.threads[each.result] = "lane"
            return
        used = [name for name in self.graph.uses(each) if name in offsets]
        if not used:
            return
        if each.opcode == "getelementptr" and each.type == "i8" and len(each.operands) == 2:
            base, step = each.values
            if base in offsets and step.isdigit():
                offsets[each.result] = offsets[base] + int(step)
                return
        if not reads(each):
            raise Unsplittable("the place of a thread is used in another way than by a load")
        offset = offsets[used[0]]
        if offset in _THREAD and each.type == "i32":
            self.threads[each.result] = _THREAD[offset]
        elif not (offset in _GROUP and each.type == "i32") and offset != _SCRATCH:
            raise Unsplittable(f"a load of {each.type} at byte {offset} of a thread's description")

    def _spread(self) -> None:
        met = [node.boundary for node in self.graph.nodes.values() if node.boundary]
        self.varying = set(self.threads)
        self.varying |= {each.result for each in met if each.result and not _is_shared(each)}
        done: set[str] = set()
        before = -1
        while before != (before := len(self.varying) + len(self.diverged) + len(done)):
            for name in self.graph.order:
                node = self.graph.nodes[name]
                for each in node.instructions:
                    if each.result and each.result not in self.varying and self._varies(each, node):
                        self.varying.add(each.result)
                if name not in done and self.is_parting(node):
                    done.add(name)
                    self._part(name)

    def is_parting(self, node: Node) -> bool:
        """Whether threads may leave a block for different ones."""
        if len(node.successors) < 2:
            return False
        if node.name in self.forced or node.name in self.diverged:
            return True
        return any(name in self.varying for name in self.graph.uses(node.end))

    def _part(self, name: str) -> None:
        influenced = self.graph.influence(name)
        self.diverged |= influenced
        join = self.graph.exits[name]
        if join is None:
            return
        inside = influenced | {name}
        for phi in self.graph.nodes[join].phis:
            found = {
                operand.value
                for operand, label in zip(phi.operands, phi.labels, strict=True)
                if label.value in inside
            }
            if len(found) != 1 or not self._is_uniform(*found):
                self.varying.add(phi.result)

    def _is_uniform(self, value: str) -> bool:
        return value not in self.varying

    def _varies(self, each: Instruction, node: Node) -> bool:
        if node.name in self.diverged:
            return True
        if self.simdgroup and self._is_simdgroup(each):
            return False
        if not (computes(each) or reads(each) or each.opcode == "phi"):
            return True
        return any(name in self.varying for name in self.graph.uses(each))

    def _is_simdgroup(self, each: Instruction) -> bool:
        """Whether it is the number of a simdgroup, made of a thread's index."""
        if each.opcode not in ("lshr", "and", "udiv") or len(each.operands) != 2:
            return False
        value, number = each.values
        if self.threads.get(value) != "index" or not number.lstrip("-").isdigit():
            return False
        if each.opcode == "lshr":
            return 5 <= int(number) < 32
        return int(number) % 32 == 0 and int(number) != 0

    def uniform(self, value: str) -> bool:
        """Whether it can be computed once for all threads."""
        return value not in self.varying
