"""Vectors at addresses that are multiples of their element only.

Apple's GPUs and processors read and write them; on NVIDIA GPUs a vector that is not at a multiple
of its size ends the context. So an access whose address is not known to be such a multiple looks at
it, and goes element by element if it must. Known are addresses in steps of the vector's size from a
buffer whose own type has that alignment: Metal asks for offsets of buffers to be multiples of it.
Vectors of halves that are only copied are integers of 64 or 128 bits here. Vectors of 32 bits that
are only copied are plain integers, and are not looked at.
"""

from __future__ import annotations

import re
from itertools import count as counting
from math import gcd

from softmetal.compiler.ir import Function, Instruction, Line, Module, expression, unquoted

_LAUNCH_BUFFERS = 24  # offset of `buffers` in sm_launch
_MOST = 16  # no access needs more
_DEEP = 24  # definitions that are followed
_SIZES = {"half": 2, "bfloat": 2, "float": 4, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
_VECTOR = re.compile(rf"<(\d+) x ({'|'.join(_SIZES)})>")
_WIDE = {"i64": "<4 x i16>", "i128": "<8 x i16>"}
_CASTS = ("zext", "sext", "trunc", "freeze", "addrspacecast", "inttoptr", "ptrtoint")


def allow_misaligned_vectors(module: Module, entry: str, alignments: dict[int, int]) -> None:
    """Let vectors be at any multiple of their element. `alignments` are those of the types that
    buffers were declared with, by buffer index."""
    function = module.functions.get(entry)
    if function is not None:
        accesses = _Accesses(_Known(module, function, alignments))
        function.rewrite(accesses.changed, "load", "store", "call")
        for text in accesses.needed.values():
            module.append(text)


class _Accesses:
    """Rewrites the accesses of a function."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._numbers = counting()
        self.needed: dict[str, str] = {}  # functions that are called, by name

    def changed(self, access: Instruction) -> list[str] | None:
        """The lines instead of an access; None if it stays."""
        if access.opcode == "call":
            return self._copied(access) if "@llvm.memcpy.p0.p0.i64(" in access.text else None
        if "volatile " in access.flags or "atomic " in access.flags:
            return None
        if access.type in _WIDE and access.align in (8, 16):
            return self._wide(access)
        return self._vector(access)

    def _vector(self, access: Instruction) -> list[str] | None:
        kind, pointer = access.type, access.operands[-1]
        vector = _VECTOR.fullmatch(kind)
        if vector is None or pointer.type != "ptr" or " " in pointer.value:
            return None
        length, element = int(vector[1]), vector[2]
        if not self._known.may_differ(pointer.value, access.align, _SIZES[element]):
            return None
        name = f"softmetal.{access.opcode}.{length}.{element}.{access.align}"
        write = _loading if access.opcode == "load" else _storing
        self.needed[name] = write(name, length, element, access.align)
        if access.opcode == "load":
            return [f"{access.result} = call {kind} @{name}(ptr {pointer.value}){access.debug}"]
        value = access.values[0]
        return [f"call void @{name}(ptr {pointer.value}, {kind} {value}){access.debug}"]

    def _wide(self, access: Instruction) -> list[str] | None:
        """An integer that stands for a vector of halves."""
        kind, vector = access.type, _WIDE[access.type]
        name = f"%softmetal.wide{next(self._numbers)}"
        if access.opcode == "load":
            rest = access.text.partition(f" load {kind}, ")[2]
            lines = self._vector(Instruction(f"{name} = load {vector}, {rest}"))
            cast = f"{access.result} = bitcast {vector} {name} to {kind}{access.debug}"
            return lines and [*lines, cast]
        value = access.operands[0]
        stored = Instruction(f"store {vector} {name}{access.text[value.end :]}")
        cast = f"{name} = bitcast {kind} {value.value} to {vector}{access.debug}"
        lines = self._vector(stored)
        return lines and [cast, *lines]

    def _copied(self, copy: Instruction) -> list[str] | None:
        """A copy of at most 16 bytes is a load and a store; a longer one knows its alignment."""
        to, source, size, volatile = copy.operands
        if (
            volatile.value != "false"
            or not size.value.isdigit()
            or not to.align
            or not source.align
        ):
            return None
        aligned = [min(each.align, self._known.factor(each.value)) for each in (to, source)]
        if aligned == [to.align, source.align]:
            return None
        if size.value not in ("8", "16"):
            pointers = f"ptr align {aligned[0]} {to.value}, ptr align {aligned[1]} {source.value}"
            arguments = f"({pointers}, i64 {size.value}, i1 false)"
            return [f"call void {copy.callee}{arguments}{copy.debug}"]
        name, kind = f"%softmetal.copy{next(self._numbers)}", "i64" if size.value == "8" else "i128"
        at = [min(int(size.value), each.align) for each in (source, to)]
        parts = (
            f"{name} = load {kind}, ptr {source.value}, align {at[0]}{copy.debug}",
            f"store {kind} {name}, ptr {to.value}, align {at[1]}{copy.debug}",
        )
        return [line for part in parts for line in self.changed(Instruction(part)) or [part]]


class _Known:
    """What is known of the values of a function."""

    def __init__(self, module: Module, function: Function, alignments: dict[int, int]) -> None:
        self._module = module
        self._launch = function.parameters[-1].value
        self._alignments = alignments
        self._definitions = {each.result: each for each in function.instructions()}
        self._factors: dict[str, int] = {}

    def may_differ(self, pointer: str, alignment: int, element: int) -> bool:
        """Whether an address need not be a multiple of what its access assumes."""
        return alignment > element and self.factor(pointer) % alignment != 0

    def factor(self, value: str, depth: int = 0) -> int:
        """A power of two that a pointer or an integer is a multiple of, at most 16."""
        if value.removeprefix("-").isdigit():
            return gcd(int(value), _MOST) if int(value) else _MOST
        if value.startswith("@"):
            variable = self._module.variable(unquoted(value[1:]))
            return min(variable.align, _MOST) if variable and variable.align else 1
        definition = self._definitions.get(value) or expression(value)
        if definition is None:
            return 1 if value.startswith("%") else _MOST
        if value not in self._factors:
            if depth == _DEEP:
                return 1
            self._factors[value] = _MOST  # of a phi that refers to itself
            self._factors[value] = self._defined(definition, depth + 1)
        return self._factors[value]

    def _defined(self, made: Instruction, depth: int) -> int:
        if made.opcode == "getelementptr":
            return gcd(self.factor(made.values[0], depth), self._step(made, depth))
        if made.opcode == "load":
            return self._loaded(made) if made.type == "ptr" else 1
        if made.opcode in _CASTS:
            return self.factor(made.values[0], depth)
        if made.opcode == "phi":
            return gcd(*(self.factor(value, depth) for value in made.values))
        if made.opcode == "select" and made.type == "i1":
            return gcd(*(self.factor(value, depth) for value in made.values[1:]))
        if made.type.startswith("i") and len(made.values) == 2:
            return self._computed(made.opcode, made.values, depth)
        return 1

    def _computed(self, operation: str, values: list[str], depth: int) -> int:
        left, right = values
        if operation == "shl" and right.isdigit():
            return min(self.factor(left, depth) << int(right), _MOST)
        if operation in ("add", "sub", "or", "xor", "mul", "and"):
            one, other = self.factor(left, depth), self.factor(right, depth)
            if operation == "mul":
                return min(one * other, _MOST)
            return max(one, other) if operation == "and" else gcd(one, other)
        return 1

    def _step(self, gep: Instruction, depth: int) -> int:
        """What an offset is a multiple of: the first index counts elements of the type."""
        kind, step = gep.type, _MOST
        for index in gep.values[1:]:
            step = gcd(step, self.factor(index, depth) * self._layout(kind)[0])
            line = Line(kind)
            is_sequence = line.tokens[0] in ("[", "<") and line.tokens[2] == "x"
            kind = line.between(3, line.partner(0)) if is_sequence else "void"
        return step

    def _layout(self, kind: str) -> tuple[int, int]:
        """Size and alignment of a type; 1 and 1 if they are not known."""
        line = Line(kind)
        first, last = line.tokens[0], line.partner(0)
        if first.startswith("%"):
            entry = self._module.types.get(unquoted(first[1:]))
            text = entry.text if entry and entry.text else ""
            return self._layout(text.partition(" = type ")[2] or "void")
        if first == "[":
            size, alignment = self._layout(line.between(3, last))
            return int(line.tokens[1]) * size, alignment
        if first == "<" and line.tokens[1] != "{":
            size = int(line.tokens[1]) * _SIZES.get(line.tokens[3], 8)
            size = 1 << (size - 1).bit_length()
            return size, size
        if first not in ("<", "{"):
            return (_SIZES.get(kind, 8),) * 2 if kind in (*_SIZES, "ptr", "double") else (1, 1)
        packed = first == "<"
        members = line.parts(1 + packed, last - packed)
        return _structure([self._layout(line.between(*each)) for each in members], packed)

    def _loaded(self, load: Instruction) -> int:
        """A pointer in the launch is a buffer; others are of what the program's types say."""
        place = self._definitions.get(load.values[0])
        if place is None or (place.opcode, place.type, len(place.values)) != (
            "getelementptr",
            "i8",
            2,
        ):
            return _MOST
        base, offset = place.values
        if base != self._launch or not offset.isdigit():
            return _MOST
        return min(self._alignments.get((int(offset) - _LAUNCH_BUFFERS) // 8, _MOST), _MOST)


def _structure(members: list[tuple[int, int]], packed: bool) -> tuple[int, int]:
    """Size and alignment of a structure of such members."""
    end, most = 0, 1
    for size, alignment in members:
        alignment = 1 if packed else alignment
        end, most = -(-end // alignment) * alignment + size, max(most, alignment)
    return -(-end // most) * most, most


def _branch(alignment: int) -> str:
    return (
        "  %address = ptrtoint ptr %p to i64\n"
        f"  %rest = and i64 %address, {alignment - 1}\n  %fits = icmp eq i64 %rest, 0\n"
        "  br i1 %fits, label %whole, label %parts\n"
    )


# Registers by the size of an element: LLVM's type, the constraint of assembly, and the instruction.
_REGISTERS = {
    1: ("i16", "h", "ld.u8"),
    2: ("i16", "h", "ld.b16"),
    4: ("i32", "r", "ld.b32"),
    8: ("i64", "l", "ld.b64"),
}


def _loading(name: str, count: int, element: str, alignment: int) -> str:
    """A function that loads a vector. By elements it is assembly: LLVM would see that both ways
    load the same, and keep this one."""
    vector, size = f"<{count} x {element}>", _SIZES[element]
    register, constraint, instruction = _REGISTERS[size]
    convert = "trunc" if size == 1 else "bitcast"
    parts = "".join(
        f'  %r{i} = call {register} asm sideeffect "{instruction} $0, [$1+{i * size}];", '
        f'"={constraint},l,~{{memory}}"(ptr %p)\n'
        f"  %e{i} = {convert} {register} %r{i} to {element}\n"
        f"  %v{i} = insertelement {vector} %v{i - 1}, {element} %e{i}, i32 {i}\n"
        for i in range(count)
    ).replace("%v-1,", "poison,")
    return (
        f"define internal {vector} @{name}(ptr %p) alwaysinline {{\n{_branch(alignment)}whole:\n"
        f"  %w = load {vector}, ptr %p, align {alignment}\n  br label %done\nparts:\n{parts}"
        f"  br label %done\ndone:\n  %r = phi {vector} [ %w, %whole ], [ %v{count - 1}, %parts ]\n"
        f"  ret {vector} %r\n}}\n"
    )


def _storing(name: str, count: int, element: str, alignment: int) -> str:
    vector, size = f"<{count} x {element}>", _SIZES[element]
    parts = "".join(
        f"  %p{i} = getelementptr i8, ptr %p, i64 {i * size}\n"
        f"  %e{i} = extractelement {vector} %v, i32 {i}\n"
        f"  store {element} %e{i}, ptr %p{i}, align {size}\n"
        for i in range(count)
    )
    return (
        f"define internal void @{name}(ptr %p, {vector} %v) alwaysinline {{\n{_branch(alignment)}"
        f"whole:\n  store {vector} %v, ptr %p, align {alignment}\n  ret void\nparts:\n{parts}"
        "  ret void\n}\n"
    )
