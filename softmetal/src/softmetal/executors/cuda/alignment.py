"""Vectors at addresses that are multiples of their element only.

Apple's GPUs and processors read and write them; on NVIDIA GPUs a vector that is not at a multiple
of its size ends the context. So an access whose address is not known to be such a multiple looks at
it, and goes element by element if it must. Known are addresses in steps of the vector's size from a
buffer whose own type has that alignment: Metal asks for offsets of buffers to be multiples of it.
Vectors of halves that are only copied are integers of 64 or 128 bits here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count as counting
from math import gcd

_LAUNCH_BUFFERS = 24  # offset of `buffers` in sm_launch
_MOST = 16  # no access needs more
_DEEP = 24  # definitions that are followed
_SIZES = {"half": 2, "bfloat": 2, "float": 4, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
_VECTOR = r"<(\d+) x (half|bfloat|float|i8|i16|i32|i64)>"
_WIDE = {"i64": "<4 x i16>", "i128": "<8 x i16>"}
_WIDE_LOAD = re.compile(r"^  (%[\w.$-]+) = load (i64|i128), (ptr \S+, align (?:8|16).*)$", re.M)
_WIDE_STORE = re.compile(r"^  store (i64|i128) (\S+), (ptr \S+, align (?:8|16).*)$", re.M)
_LOAD = re.compile(rf"^  (%[\w.$-]+) = load {_VECTOR}, ptr (\S+), align (\d+)(.*)$", re.M)
_STORE = re.compile(rf"^  store {_VECTOR} (.+?), ptr (\S+), align (\d+)(.*)$", re.M)
_COPY = re.compile(
    r"^  (?:tail )?call void @llvm\.memcpy\.p0\.p0\.i64\(ptr (.*?)align (\d+) (.*?)(%[\w.$-]+), "
    r"ptr (.*?)align (\d+) (.*?)(%[\w.$-]+), i64 (\d+), i1 false\)(.*)$",
    re.M,
)
_DEFINED = re.compile(r"^  (%[\w.$-]+) = (.*)$", re.M)
_GEP = re.compile(
    r"getelementptr (?:inbounds |nuw |nusw )*(.+?), ptr "
    r"(%[\w.$-]+|(?:addrspacecast \(ptr addrspace\(\d\) )?@[\w.$]+(?: to ptr\))?)((?:, i\d+ \S+)+)$"
)
_TYPE = re.compile(r"(?:\[(\d+) x )?(?:<(\d+) x )?(\w+)>?\]?$")
_CAST = re.compile(
    r"(?:zext|sext|trunc|freeze|addrspacecast|inttoptr|ptrtoint)\b.*? (%[\w.$-]+)(?: to .*)?$"
)


def with_misaligned_vectors(ir: str, entry: str, alignments: dict[int, int]) -> str:
    """Let vectors be at any multiple of their element. `alignments` are those of the types that
    buffers were declared with, by buffer index."""
    definition = (
        rf"^define [^\n]*ptx_kernel [^\n]*@{entry}\((?:[^\n]* )?(%\w+)\)[^\n]*\{{\n(.*?)^\}}"
    )
    found = re.search(definition, ir, re.M | re.S)
    if found is None:
        return ir
    known = _Known(dict(_DEFINED.findall(found[2])), ir, found[1], alignments)
    needed: dict[str, str] = {}
    numbers = counting()

    def load(match: re.Match[str]) -> str:
        result, length, element, pointer, alignment, rest = match.groups()
        if not known.may_differ(pointer, int(alignment), _SIZES[element]):
            return match[0]
        name = f"softmetal.load.{length}.{element}.{alignment}"
        needed[name] = _loading(name, int(length), element, int(alignment))
        return f"  {result} = call <{length} x {element}> @{name}(ptr {pointer}){_debug(rest)}"

    def store(match: re.Match[str]) -> str:
        length, element, value, pointer, alignment, rest = match.groups()
        if not known.may_differ(pointer, int(alignment), _SIZES[element]):
            return match[0]
        name = f"softmetal.store.{length}.{element}.{alignment}"
        needed[name] = _storing(name, int(length), element, int(alignment))
        return f"  call void @{name}(ptr {pointer}, <{length} x {element}> {value}){_debug(rest)}"

    def wide_load(match: re.Match[str]) -> str:
        result, kind, rest = match.groups()
        name, vector = f"%softmetal.wide{next(numbers)}", _WIDE[kind]
        made = _LOAD.sub(load, f"  {name} = load {vector}, {rest}")
        if " = load " in made:
            return match[0]
        return f"{made}\n  {result} = bitcast {vector} {name} to {kind}{_debug(rest)}"

    def wide_store(match: re.Match[str]) -> str:
        kind, value, rest = match.groups()
        name, vector = f"%softmetal.wide{next(numbers)}", _WIDE[kind]
        made = _STORE.sub(store, f"  store {vector} {name}, {rest}")
        if made.startswith("  store "):
            return match[0]
        return f"  {name} = bitcast {kind} {value} to {vector}{_debug(rest)}\n{made}"

    def copy(match: re.Match[str]) -> str:
        """A copy of at most 16 bytes is a load and a store; a longer one knows its alignment."""
        _, to_align, _, to, _, from_align, _, source, size, rest = match.groups()
        aligned = [min(int(a), known.factor(p)) for a, p in ((to_align, to), (from_align, source))]
        if aligned == [int(to_align), int(from_align)]:
            return match[0]
        if size in ("8", "16"):
            name, kind = f"%softmetal.copy{next(numbers)}", "i64" if size == "8" else "i128"
            at = min(int(size), int(from_align)), min(int(size), int(to_align))
            return (
                f"  {name} = load {kind}, ptr {source}, align {at[0]}{_debug(rest)}\n"
                f"  store {kind} {name}, ptr {to}, align {at[1]}{_debug(rest)}"
            )
        pointers = f"ptr align {aligned[0]} {to}, ptr align {aligned[1]} {source}"
        return f"  call void @llvm.memcpy.p0.p0.i64({pointers}, i64 {size}, i1 false){_debug(rest)}"

    body = _STORE.sub(store, _LOAD.sub(load, _COPY.sub(copy, found[2])))
    body = _WIDE_STORE.sub(wide_store, _WIDE_LOAD.sub(wide_load, body))
    return ir[: found.start(2)] + body + ir[found.end(2) :] + "".join(needed.values())


@dataclass
class _Known:
    """What is known of the values of a function."""

    definitions: dict[str, str]
    ir: str
    launch: str  # the kernel's parameter
    alignments: dict[int, int]
    _factors: dict[str, int] = field(default_factory=dict)

    def may_differ(self, pointer: str, alignment: int, element: int) -> bool:
        """Whether an address need not be a multiple of what its access assumes."""
        return alignment > element and self.factor(pointer) % alignment != 0

    def factor(self, value: str, depth: int = 0) -> int:
        """A power of two that a pointer or an integer is a multiple of, at most 16."""
        if re.fullmatch(r"-?\d+", value):
            return gcd(int(value), _MOST) if int(value) else _MOST
        if "@" in value:
            return self._global(re.sub(r".*(@[\w.$]+).*", r"\1", value))
        if value not in self.definitions:
            return 1 if value.startswith("%") else _MOST
        if value not in self._factors:
            if depth == _DEEP:
                return 1
            self._factors[value] = _MOST  # of a phi that refers to itself
            self._factors[value] = self._defined(self.definitions[value], depth + 1)
        return self._factors[value]

    def _global(self, name: str) -> int:
        made = re.search(rf"^{re.escape(name)} = .*, align (\d+)", self.ir, re.M)
        return min(int(made[1]), _MOST) if made else 1

    def _defined(self, text: str, depth: int) -> int:
        text = text.partition(", !")[0]
        if gep := _GEP.match(text):
            return gcd(self.factor(gep[2], depth), self._step(gep[1], gep[3], depth))
        if text.startswith("load ptr"):
            return self._loaded(text)
        if cast := _CAST.match(text):
            return self.factor(cast[1], depth)
        if phi := re.match(r"phi \S+ (.*)$", text):
            values = re.findall(r"\[ (\S+), ", phi[1])
            return gcd(*(self.factor(value, depth) for value in values))
        if select := re.match(r"select i1 \S+, \S+ (\S+), \S+ (\S+)$", text):
            return gcd(self.factor(select[1], depth), self.factor(select[2], depth))
        operation = re.match(r"(\w+) (?:\w+ )*i\d+ (\S+), (\S+)$", text)
        if operation is None:
            return 1
        return self._computed(operation[1], operation[2], operation[3], depth)

    def _computed(self, operation: str, left: str, right: str, depth: int) -> int:
        if operation == "shl" and right.isdigit():
            return min(self.factor(left, depth) << int(right), _MOST)
        if operation in ("add", "sub", "or", "xor", "mul", "and"):
            one, other = self.factor(left, depth), self.factor(right, depth)
            if operation == "mul":
                return min(one * other, _MOST)
            return max(one, other) if operation == "and" else gcd(one, other)
        return 1

    def _step(self, kind: str, indices: str, depth: int) -> int:
        """What an offset is a multiple of: the first index counts elements of the type."""
        steps = re.findall(r", i\d+ (\S+?)(?=,|$)", indices)
        if kind.startswith("%"):
            return (
                min(self.factor(steps[0], depth) * self._struct(kind), _MOST)
                if len(steps) == 1
                else 1
            )
        found = _TYPE.match(kind)
        if found is None or found[3] not in (*_SIZES, "ptr"):
            return 1
        inner = int(found[2] or 1) * _SIZES.get(found[3], 8)
        sizes = [int(found[1] or 1) * inner, inner]
        if len(steps) > len(sizes):
            return 1
        products = (self.factor(s, depth) * n for s, n in zip(steps, sizes, strict=False))
        return gcd(*products, _MOST)

    def _struct(self, name: str) -> int:
        """What the size of a structure is a multiple of."""
        return gcd(self._layout(name)[0], _MOST)

    def _layout(self, kind: str) -> tuple[int, int]:
        """Size and alignment of a type; 1 and 1 if they are not known."""
        if array := re.fullmatch(r"\[(\d+) x (.+)\]", kind):
            size, alignment = self._layout(array[2])
            return int(array[1]) * size, alignment
        if vector := re.fullmatch(r"<(\d+) x (\w+)>", kind):
            size = int(vector[1]) * _SIZES.get(vector[2], 8)
            size = 1 << (size - 1).bit_length()
            return size, size
        if not kind.startswith("%"):
            return (_SIZES.get(kind, 8),) * 2 if kind in (*_SIZES, "ptr", "double") else (1, 1)
        made = re.search(rf"^{re.escape(kind)} = type (<?){{ (.*) }}>?$", self.ir, re.M)
        if made is None:
            return 1, 1
        size, most = 0, 1
        for member in re.findall(r'%"[^"]+"|%[\w.]+|\[.+?\](?=,|$)|<[^>]+>|\w+', made[2]):
            own, alignment = self._layout(member)
            alignment = 1 if made[1] else alignment
            size, most = -(-size // alignment) * alignment + own, max(most, alignment)
        return -(-size // most) * most, most

    def _loaded(self, text: str) -> int:
        """A pointer in the launch is a buffer; others are of what the program's types say."""
        place = re.match(r"load ptr, ptr (?:addrspace\(\d+\) )?(%[\w.$-]+)", text)
        if place is None:
            return _MOST
        at = re.match(
            rf"getelementptr (?:inbounds |nuw |nusw )*i8, ptr {re.escape(self.launch)}, i\d+ (\d+)",
            self.definitions.get(place[1], ""),
        )
        if at is None:
            return _MOST
        return min(self.alignments.get((int(at[1]) - _LAUNCH_BUFFERS) // 8, _MOST), _MOST)


def _debug(rest: str) -> str:
    """The place in the source, of what follows an instruction."""
    found = re.search(r", !dbg !\d+", rest)
    return found[0] if found else ""


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
        f"\ndefine internal {vector} @{name}(ptr %p) alwaysinline {{\n{_branch(alignment)}whole:\n"
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
        f"\ndefine internal void @{name}(ptr %p, {vector} %v) alwaysinline {{\n{_branch(alignment)}"
        f"whole:\n  store {vector} %v, ptr %p, align {alignment}\n  ret void\nparts:\n{parts}"
        "  ret void\n}\n"
    )
