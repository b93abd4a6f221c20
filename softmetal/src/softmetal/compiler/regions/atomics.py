"""Atomic operations on threadgroup memory as plain ones: one worker runs all threads of a
threadgroup, one after another."""

from __future__ import annotations

from itertools import count

from softmetal.compiler.ir import Instruction
from softmetal.compiler.regions.graph import Graph

_SCRATCH = "40"  # where sm_thread (runtime/abi.h) says where dynamic threadgroup memory is
_PLAIN = frozenset("add sub and or xor".split())
_CHOOSING = {"max": "sgt", "min": "slt", "umax": "ugt", "umin": "ult"}


def make_plain(graph: Graph) -> None:
    local, numbers = _local(graph), count()
    for node in graph.nodes.values():
        body: list[Instruction] = []
        for each in node.body:
            is_local = each.opcode == "atomicrmw" and each.values[0] in local
            lines = _plain(each, f"%plain.{next(numbers)}") if is_local else None
            body += [each] if lines is None else [Instruction(f"  {line}") for line in lines]
        node.body = body
    graph.refresh()


def _local(graph: Graph) -> set[str]:
    """Addresses in threadgroup memory."""
    found: set[str] = set()
    fields: set[str] = set()  # of sm_thread
    for name in graph.order:
        for each in graph.nodes[name].body:
            if each.callee.startswith("@llvm.threadlocal.address"):
                found.add(each.result)
            elif each.opcode == "getelementptr":
                base = each.values[0]
                if base in found:
                    found.add(each.result)
                elif base == graph.parameters[1] and each.values[1:] == [_SCRATCH]:
                    fields.add(each.result)
            elif each.opcode == "load" and each.values[0] in fields:
                found.add(each.result)
    return found


def _plain(each: Instruction, name: str) -> list[str] | None:
    """The same without a lock; None for what is not known here."""
    operation = next((word for word in each.flags.split() if word in (*_PLAIN, *_CHOOSING)), "")
    address, value = each.values[:2]
    kind = each.operands[1].type
    volatile = "volatile " if "volatile" in each.flags.split() else ""
    load = f"{each.result} = load {volatile}{kind}, ptr {address}"
    store = f"store {volatile}{kind} {name}, ptr {address}"
    if not kind.startswith("i"):
        return None
    if operation in _PLAIN:
        return [load, f"{name} = {operation} {kind} {each.result}, {value}", store]
    if operation in _CHOOSING:
        compared = f"{name}.old = icmp {_CHOOSING[operation]} {kind} {each.result}, {value}"
        chosen = f"{name} = select i1 {name}.old, {kind} {each.result}, {kind} {value}"
        return [load, compared, chosen, store]
    return None
