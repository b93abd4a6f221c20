"""Counters that differ between threads only in where they begin: one counter for all threads, and a
sum, so that LLVM sees that neighbours access neighbouring memory."""

from __future__ import annotations

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Node
from softmetal.compiler.regions.regions import Regions


def share_counters(regions: Regions) -> None:
    graph = regions.variation.graph
    for head in regions.found:
        node, loop = graph.nodes[head], graph.loop(head)
        for phi in list(node.phis):
            if loop and not regions.variation.uniform(phi.result):
                _share(regions, node, phi, loop)
    graph.refresh()


def _share(regions: Regions, head: Node, phi: Instruction, loop: set[str]) -> None:
    graph, uniform = regions.variation.graph, regions.variation.uniform
    pairs = list(zip(phi.values, (label.value for label in phi.labels), strict=True))
    firsts = {value for value, label in pairs if label not in loop}
    nexts = {value for value, label in pairs if label in loop}
    if len(firsts) != 1 or len(nexts) != 1:
        return
    first, following = firsts.pop(), graph.definitions.get(nexts.pop())
    place = graph.places.get(following.result) if following else None
    if following is None or place is None or place in regions.variation.diverged:
        return
    name = phi.result[:-1] if phi.result.endswith('"') else phi.result
    end = '"' if phi.result.endswith('"') else ""
    count, then, step = f"{name}.count{end}", f"{name}.then{end}", f"{name}.step{end}"
    found = _step(following, phi.result, step)
    if found is None or not all(map(uniform, graph.uses(following)[1:])):
        return
    if graph.uses(following)[:1] != [phi.result] or graph.uses(following).count(phi.result) != 1:
        return
    kind, lines, flags = found
    node = graph.nodes[place]
    at = next(i for i, each in enumerate(node.body) if each.result == following.result)
    node.body[at:at] = [
        *(Instruction(f"  {line}") for line in lines),
        Instruction(f"  {then} = add {kind} {count}, {step}"),
    ]
    incoming = ", ".join(f"[ {then if label in loop else 0}, {label} ]" for _, label in pairs)
    old = next(i for i, each in enumerate(head.phis) if each.result == phi.result)
    head.phis[old] = Instruction(f"  {count} = phi {kind} {incoming}")
    head.body.insert(
        0,
        Instruction(f"  {phi.result} = getelementptr i8, ptr {first}, i64 {count}")
        if phi.type == "ptr"
        else Instruction(f"  {phi.result} = add {flags}{kind} {first}, {count}"),
    )


def _step(following: Instruction, counter: str, step: str) -> tuple[str, list[str], str] | None:
    """Type of the counter, what computes its step, and flags of the sum."""
    if following.opcode == "add" and following.type.startswith("i"):
        left, right = following.values
        if left != counter:
            return None
        flags = "nuw " if "nuw" in following.flags.split() else ""
        kind = following.type
        return kind, [f"{step} = add {kind} {right}, 0"], flags
    if following.opcode == "getelementptr" and len(following.operands) == 2:
        index = following.operands[1]
        if following.values[0] != counter or index.type not in ("i32", "i64"):
            return None
        wide, lines = index.value, []
        if index.type == "i32":
            wide = f'{step[:-1]}.wide"' if step.endswith('"') else f"{step}.wide"
            lines = [f"{wide} = sext i32 {index.value} to i64"]
        size = f"ptrtoint (ptr getelementptr ({following.type}, ptr null, i64 1) to i64)"
        return "i64", [*lines, f"{step} = mul i64 {wide}, {size}"], ""
    return None
