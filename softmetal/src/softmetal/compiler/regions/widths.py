"""Types of values, and their sizes."""

from __future__ import annotations

import re

from softmetal.compiler.ir import Instruction, unquoted
from softmetal.compiler.ir.reading import Line
from softmetal.compiler.regions.graph import Graph, Unsplittable

_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_VECTOR = re.compile(r"<(\d+) x ([^<>]+)>")
_ARRAY = re.compile(r"\[(\d+) x (.*)\]")
_INTEGER = re.compile(r"i(\d+)")


def result_type(each: Instruction, graph: Graph) -> str:
    """The type of what an instruction defines."""
    name, kind = each.opcode, each.type
    if name in ("icmp", "fcmp"):
        vector = _VECTOR.fullmatch(kind)
        return f"<{vector[1]} x i1>" if vector else "i1"
    if each.to:
        return each.to
    if name == "getelementptr":
        if any(operand.type.startswith("<") for operand in each.operands):
            raise Unsplittable("a vector of addresses")
        return "ptr"
    if name == "select":
        return each.operands[1].type
    if name == "extractelement":
        return _element(kind)
    if name == "shufflevector":
        count = _VECTOR.fullmatch(each.operands[2].type)
        return f"<{count[1] if count else 0} x {_element(kind)}>"
    if name == "extractvalue":
        return _member(kind, each.text, graph)
    if name == "atomicrmw":
        return each.operands[1].type
    if name == "cmpxchg":
        return f"{{ {each.operands[1].type}, i1 }}"
    return kind


def _element(kind: str) -> str:
    vector = _VECTOR.fullmatch(kind)
    if vector is None:
        raise Unsplittable(f"an element of {kind}")
    return vector[2]


def _member(kind: str, text: str, graph: Graph) -> str:
    found = re.search(r", (\d+)(?:, !.*)?$", text)
    line = Line(kind)
    if found is None or line.tokens[0] not in "{[":
        raise Unsplittable(f"a member of {kind}")
    if array := _ARRAY.fullmatch(kind):
        return array[2]
    members = line.parts(1, line.partner(0))
    return line.between(*members[int(found[1])])


def size_of(kind: str, graph: Graph) -> int:
    """Bytes that a value of a type takes in an array."""
    return _layout(kind, graph)[0]


def _layout(kind: str, graph: Graph) -> tuple[int, int]:
    """Size and alignment."""
    if kind in _SIZES:
        return _SIZES[kind], _SIZES[kind]
    if integer := _INTEGER.fullmatch(kind):
        size = 1 << max(0, (int(integer[1]) - 1).bit_length() - 3)
        return size, size
    if vector := _VECTOR.fullmatch(kind):
        count, element = int(vector[1]), _layout(vector[2], graph)[0]
        bits = count if vector[2] == "i1" else count * element * 8
        size = 1 << max(0, (max(1, bits // 8) - 1).bit_length())
        return size, size
    if array := _ARRAY.fullmatch(kind):
        size, align = _layout(array[2], graph)
        return int(array[1]) * size, align
    if kind.startswith("%"):
        return _layout(graph.types[unquoted(kind[1:])].partition(" = type ")[2], graph)
    line = Line(kind)
    packed = kind.startswith("<{")
    if line.tokens[0] != "{" and not packed:
        raise Unsplittable(f"a value of type {kind}")
    size, align = 0, 1
    for part in line.parts(1 + packed, line.partner(int(packed))):
        inner, at = _layout(line.between(*part), graph)
        at = 1 if packed else at
        size, align = -(-size // at) * at + inner, max(align, at)
    return -(-size // align) * align, align
