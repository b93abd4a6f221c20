"""Kernels whose threads meet, as loops over the threads between two meetings.

A unit of threads, the whole threadgroup or a simdgroup, becomes one call of the kernel: see
ARCHITECTURE.md. A kernel that is not surely understood is left as it is, for fibers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from softmetal.compiler.ir import Function, Instruction, Module
from softmetal.compiler.regions import atomics, induction, masking, regions
from softmetal.compiler.regions import graph as graphs
from softmetal.compiler.regions.emission import Emitter, Labels
from softmetal.compiler.regions.graph import Graph, Unsplittable
from softmetal.compiler.regions.variation import computes, is_note
from softmetal.types import MAX_THREADS, SIMD_WIDTH, Mode

_MODE = re.compile(r"(@softmetal_info = [^\n]*?\{ \[4 x i32\] \[i32 \d+, i32 )(\d+)")
_ACCESSES = ("_ZN9softmetal10lanes_load", "_ZN9softmetal11lanes_store")
_TOGETHER = re.compile(r'asm sideeffect "", "[^"]*"\(ptr (?:\w+ )*(@[^)\s]+)\)')
_MEETINGS = ("@softmetal_barrier", "@softmetal_collective", "@softmetal_lane")
_GROUP_BYTES, _SIMDGROUP_BYTES = 4 << 20, 96 << 10  # of stacks: the worker's, and a fiber's


_ANY = """
define internal i1 @softmetal.any(ptr %values, i32 %n) {
  br label %loop

loop:
  %at = phi i32 [ 0, %0 ], [ %next, %loop ]
  %found = phi i8 [ 0, %0 ], [ %both, %loop ]
  %place = zext nneg i32 %at to i64
  %address = getelementptr inbounds nuw i8, ptr %values, i64 %place
  %value = load i8, ptr %address, align 1
  %both = or i8 %found, %value
  %next = add nuw nsw i32 %at, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %loop, label %done

done:
  %any = icmp ne i8 %both, 0
  ret i1 %any
}
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a kernel runs, and why not in a faster way."""

    mode: Mode
    reasons: tuple[str, ...] = ()


def split(module: Module) -> Outcome:
    """Turn the entry for one thread into one for a unit of threads, if it can be."""
    function = module.functions["softmetal_entry"]
    if not any(name.removeprefix("@") in module.declarations for name in _MEETINGS):
        return Outcome(Mode.FIBERS, ("its threads do not meet",))
    reasons = []
    for mode in (Mode.REGIONS, Mode.SIMDGROUPS):
        try:
            body, kept, loops = _body(module, function, mode)
        except Unsplittable as problem:
            reasons.append(f"{mode.name.lower()}: {problem}")
            continue
        function.header = graphs.with_names(function.header)
        function.body = body
        votes = _ANY if "@softmetal.any(" in body else ""
        module.append(f"{votes}{loops}@softmetal_kept = constant i32 {kept}\n")
        if "llvm.umin.i32" not in module.declarations:
            module.append("declare i32 @llvm.umin.i32(i32, i32)\n")
        for name, each in module.functions.items():
            if name.startswith(_ACCESSES):  # of some lanes alone
                each.header = re.sub(r" #\d+", " alwaysinline nounwind", each.header)
        info = module.globals["softmetal_info"]
        info.text = _MODE.sub(rf"\g<1>{int(mode)}", info.text or "", count=1)
        return Outcome(mode, tuple(reasons))
    return Outcome(Mode.FIBERS, tuple(reasons))


def _body(module: Module, function: Function, mode: Mode) -> tuple[str, int, str]:
    """The body for a unit of threads, bytes that it keeps of each, and metadata."""
    simdgroup = mode == Mode.SIMDGROUPS
    if any(name.isdigit() for name in module.types):
        raise Unsplittable("types without names")
    graph = graphs.read(function)
    graph.types = {name: entry.text or "" for name, entry in module.types.items()}
    graph.meetings, graph.accesses = _functions_of_lanes(module)
    _prepare(graph, module)
    atomics.make_plain(graph)
    regions.cut_at_meetings(graph, simdgroup)
    masking.mask_loops(graph, simdgroup)
    found = regions.find(graph, simdgroup)
    induction.share_counters(found)
    threads, room = (SIMD_WIDTH, _SIMDGROUP_BYTES) if simdgroup else (MAX_THREADS, _GROUP_BYTES)
    labels, lines = _labels(module)
    emitter = Emitter(found, simdgroup, labels, room // threads)
    body = emitter.body()
    return body, emitter.size, lines


def _labels(module: Module) -> tuple[Labels, str]:
    number = 1 + max((int(name) for name in module.metadata if name.isdigit()), default=-1)
    group, parallel, *hints, loop = (f"!{number + i}" for i in range(6))
    lines = (
        f"\n{group} = distinct !{{}}\n"
        f'{parallel} = !{{!"llvm.loop.parallel_accesses", {group}}}\n'
        f'{hints[0]} = !{{!"llvm.loop.vectorize.enable", i1 true}}\n'
        f'{hints[1]} = !{{!"llvm.loop.interleave.count", i32 1}}\n'
        f'{hints[2]} = !{{!"llvm.loop.unroll.disable"}}\n'
        f"{loop} = distinct !{{{loop}, {parallel}, {', '.join(hints)}}}\n"
    )
    return Labels(f", !llvm.loop {loop}", f", !llvm.access.group {group}"), lines


def _prepare(graph: Graph, module: Module) -> None:
    """Remove what only the optimiser needed, and find threadgroup variables once, at the entry:
    LLVM assumes that AVX-512's registers survive the call that finds them."""
    statics: list[Instruction] = []
    for node in graph.nodes.values():
        kept = []
        for each in node.body:
            if each.opcode == "call":
                _screen(each, module, {*graph.meetings, *graph.accesses})
                if is_note(each):
                    continue
                if each.callee.startswith("@llvm.threadlocal.address"):
                    statics.append(each)
                    continue
            kept.append(each)
        node.body = kept
    first = graph.nodes[graph.entry]
    first.body[:0] = statics
    graph.refresh()


def _functions_of_lanes(module: Module) -> tuple[dict[str, str], dict[str, str]]:
    """The simdgroup functions of runtime/target/, and accesses to matrices, each with what all
    lanes do together instead."""
    found, accesses = {}, {}
    for name, function in module.functions.items():
        if name.startswith("_ZN9softmetal") and "@softmetal_collective(" in function.body:
            calls = function.instructions("call")
            call = next(each for each in calls if each.callee == "@softmetal_collective")
            found[f"@{name}"] = call.values[2]
        elif name.startswith(_ACCESSES) and (together := _TOGETHER.search(function.body)):
            accesses[f"@{name}"] = together[1]
    return found, accesses


def _screen(call: Instruction, module: Module, known: set[str]) -> None:
    name = call.callee
    if computes(call) or is_note(call) or name in known or name in _MEETINGS:
        return
    if name.startswith("@llvm."):
        return
    if not name.startswith("@"):
        raise Unsplittable("a call through a pointer")
    pending, seen = [name[1:].strip('"')], set[str]()
    while pending:
        each = pending.pop()
        if each.startswith("softmetal_"):
            raise Unsplittable(f"a call of {each}")
        if each not in seen and each in module.functions:
            seen.add(each)
            pending += module.functions[each].called()
