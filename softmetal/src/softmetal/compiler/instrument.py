"""Checking modes: every access of a kernel becomes a call with its place in the source.

Clang's address sanitizer puts a call before each load and store; here those calls become ours, with
the number of a site, and a table says where in the user's source each site is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

PLACES = ("-gline-tables-only", "-DSM_CHECK")
# Without the sanitizer's runtime and memory layout, and without skipping repeated accesses.
SANITIZER = (
    "-fsanitize=kernel-address",
    *(
        flag
        for option in (
            "-asan-instrumentation-with-call-threshold=0",
            "-asan-kernel-mem-intrinsic-prefix=1",
            *("-asan-stack=0", "-asan-globals=0", "-asan-use-after-scope=0", "-asan-opt=0"),
        )
        for flag in ("-mllvm", option)
    ),
)
FLAGS = (*PLACES, *SANITIZER)
MAX_SITES = 2047  # a shadow cell has 11 bits for it
SLOTS = 256  # accesses that remember their region, as in runtime/check.c
_WRITE, _ATOMIC, _MODIFY = 1 << 16, 1 << 17, 1 << 18

_ACCESS = re.compile(
    r"(?:tail )?call void @__asan_(load|store)(\d+|N)_noabort"
    r"\(i64 (ptrtoint \(.*? to i64\)|[^,)]+)(?:, i64 ([^)]+))?\)"
)
_MEMORY = re.compile(r"call ptr @__asan_(memcpy|memmove|memset)\((.*)\)(?=[ ,\n]|$)")
_PLACED = re.compile(r"(?<=@softmetal_check_barrier)\((i32 [^,]+), i32 (?:noundef )?0\)")
_LOCATION = re.compile(r"!dbg !(\d+)")
_ATOMIC_INSTRUCTION = re.compile(r"atomicrmw |cmpxchg |load atomic |store atomic ")
_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.MULTILINE)
DECLARATIONS = """
declare i64 @softmetal_check_access(i64, i64, i32, i64)
declare ptr @softmetal_check_slots() nounwind willreturn memory(none)
define internal i64 @softmetal_check_fast(i64 %a, i64 %size, i32 %place, i64 %slot) alwaysinline {
entry:
  %slots = call ptr @softmetal_check_slots() nounwind willreturn memory(none)
  %start.p = getelementptr [2 x i64], ptr %slots, i64 %slot
  %span.p = getelementptr i8, ptr %start.p, i64 8
  %start = load i64, ptr %start.p
  %span = load i64, ptr %span.p
  %offset = sub i64 %a, %start
  %inside = icmp ule i64 %offset, %span
  br i1 %inside, label %done, label %ask
ask:
  %asked = call i64 @softmetal_check_access(i64 %a, i64 %size, i32 %place, i64 %slot) cold
  br label %done
done:
  %use = phi i64 [ %a, %entry ], [ %asked, %ask ]
  ret i64 %use
}
declare ptr @softmetal_check_memcpy(ptr, ptr, i64, i32)
declare ptr @softmetal_check_memmove(ptr, ptr, i64, i32)
declare ptr @softmetal_check_memset(ptr, i32, i64, i32)
"""


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the source that touches memory, or a barrier."""

    file: str
    line: int
    column: int


class _Places:
    """Finds the user's place behind a debug location."""

    def __init__(self, ir: str, ours: tuple[str, ...]) -> None:
        self._nodes = {number: (kind, fields) for number, kind, fields in _METADATA.findall(ir)}
        self._ours = ours

    def _field(self, number: str, name: str) -> str:
        found = re.search(rf'\b{name}: (?:!(\d+)|"([^"]*)"|(\d+))', self._nodes[number][1])
        return next((g for g in found.groups() if g is not None), "") if found else ""

    def find(self, number: str) -> Site | None:
        """The innermost place outside softmetal's headers; None if there is none."""
        while number in self._nodes:
            node = self._field(self._field(number, "scope"), "file")
            file = self._field(node, "filename")
            whole = str(Path(self._field(node, "directory"), file))  # clang shortens to relative
            if not (file.startswith(self._ours) or whole.startswith(self._ours)):
                line, column = self._field(number, "line"), self._field(number, "column")
                return Site(file, int(line or 0), int(column or 0))
            number = self._field(number, "inlinedAt")
        return None


def instrument(
    ir: str, ours: tuple[Path | str, ...], declarations: str = DECLARATIONS
) -> tuple[str, list[Site]]:
    """The IR with our calls, and the sites they name, in order; site 0 is "somewhere".

    With other declarations than those of the CPU's runtime accesses remember no region.
    """
    places = _Places(ir, tuple(map(str, ours)))
    sites: list[Site] = [Site("", 0, 0)]
    numbers: dict[Site, int] = {}

    def number(line: str) -> int | None:
        location = _LOCATION.search(line)
        site = places.find(location[1]) if location else None
        if site is None:
            return None
        if site not in numbers:
            numbers[site] = len(sites) if len(sites) <= MAX_SITES else 0
            sites.append(site)
        return numbers[site]

    lines = ir.split("\n")
    slots = count(0 if declarations is DECLARATIONS else SLOTS)
    out: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        if "call " in line and ("@__asan_" in line or "@softmetal_check_" in line):
            replaced, taken = _rewritten(lines, index, number(line), slots)
            out += replaced
            index += taken
        else:
            out.append(line)
            index += 1
    # Named symbols for all constants: the checker reads their sizes from the object.
    text = "\n".join(out).replace("= private unnamed_addr constant", "= internal constant")
    return text + declarations, sites[: MAX_SITES + 1]


def _rewritten(
    lines: list[str], index: int, site: int | None, slots: Iterator[int]
) -> tuple[list[str], int]:
    """The replacement of the call at `index`, and the number of lines it replaces."""
    line = lines[index]
    if "@__asan_handle_no_return" in line:
        return [], 1
    access = _ACCESS.search(line)
    if access:
        if site is None:  # the trampoline's own
            return [], 1
        return _access(lines, index, access, site, next(slots))
    memory = _MEMORY.search(line)
    if memory:
        place = -1 if site is None else site  # -1: the trampoline's own
        call = f"call ptr @softmetal_check_{memory[1]}({memory[2]}, i32 {place})"
        return [line[: memory.start()] + call + line[memory.end() :]], 1
    return [_PLACED.sub(rf"(\1, i32 {site or 0})", line)], 1


def _access(
    lines: list[str], index: int, access: re.Match[str], site: int, slot: int
) -> tuple[list[str], int]:
    """Replace the address by the checked one: an access out of bounds then has no effect."""
    kind, width, address, size = access.groups()
    following = lines[index + 1] if index + 1 < len(lines) else ""
    flags = site | (_WRITE if kind == "store" else 0)
    if atomic := _ATOMIC_INSTRUCTION.search(following):
        flags |= _ATOMIC | (_MODIFY if atomic[0] in ("atomicrmw ", "cmpxchg ") else 0)
    bytes_ = size if width == "N" else width
    name = f"%softmetal.{index}"
    debug = lines[index][access.end() :]
    # A slot is for accesses of one size.
    fast = slot < SLOTS and bytes_.isdigit()
    function = "softmetal_check_fast" if fast else "softmetal_check_access"
    arguments = f"i64 {address}, i64 {bytes_}, i32 {flags}, i64 {slot if fast else SLOTS}"
    call = f"{name} = call i64 @{function}({arguments})"
    pointer = _pointer_behind(lines, index, address)
    at = following.rfind(f"ptr {pointer}") if pointer else -1
    if at < 0:
        return [f"  {call}{debug}"], 1
    led = f"{following[:at]}ptr {name}.p{following[at + len(f'ptr {pointer}') :]}"
    return [f"  {call}{debug}", f"  {name}.p = inttoptr i64 {name} to ptr", led], 2


def _pointer_behind(lines: list[str], index: int, address: str) -> str:
    """The pointer that the integer `address` was made from."""
    constant = re.match(r"ptrtoint \(ptr (.*) to i64\)$", address)
    if constant:
        return constant[1]
    made = re.match(rf"  {re.escape(address)} = ptrtoint ptr (\S+) to i64", lines[index - 1])
    return made[1] if made else ""
