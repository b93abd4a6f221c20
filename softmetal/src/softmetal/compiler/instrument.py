"""Checking modes: every access of a kernel becomes a call with its place in the source.

Clang's address sanitizer puts a call before each load and store; here those calls become ours, with
the number of a site, and a table says where in the user's source each site is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from softmetal.compiler.ir import Instruction, Module, expression, unquoted
from softmetal.errors import CompileError

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
_SINK = 256  # bytes that take the place of an access out of bounds, as in runtime/check_state.h
_WRITE, _ATOMIC, _MODIFY = 1 << 16, 1 << 17, 1 << 18

_CALLED = ("@__asan_", "@softmetal_check_")
NO_CHECKS = "(?!)"  # of functions with the name
_UNCHECKED = ("asan.module_ctor",)  # the sanitizer's own
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

    def __init__(self, module: Module, ours: tuple[str, ...]) -> None:
        self._node = cache(module.node)
        self._users_file = cache(self._find_file)
        self._ours = ours

    def _field(self, reference: str, name: str) -> str:
        node = self._node(reference.removeprefix("!"))
        return node.fields.get(name, "") if node else ""

    def _find_file(self, scope: str) -> str | None:
        """The file that a scope is in, None if it is softmetal's."""
        node = self._field(scope, "file")
        file, folder = (unquoted(self._field(node, name)) for name in ("filename", "directory"))
        whole = str(Path(folder, file))  # clang shortens to relative
        is_ours = file.startswith(self._ours) or whole.startswith(self._ours)
        return None if is_ours else file

    def find(self, location: str) -> Site | None:
        """The innermost place outside softmetal's headers; None if it is in them alone."""
        while location:
            file = self._users_file(self._field(location, "scope"))
            if file is not None:
                line, column = self._field(location, "line"), self._field(location, "column")
                return Site(file, int(line or 0), int(column or 0))
            location = self._field(location, "inlinedAt")
        return None


def instrument(
    module: Module,
    ours: tuple[Path | str, ...],
    entry: str = "softmetal_entry",
    declarations: str = DECLARATIONS,
    checks: str = NO_CHECKS,
) -> list[Site]:
    """Let the accesses call our functions; returns the sites they name, in order; site 0 is
    "somewhere".

    What our headers access in the function `entry`, the trampoline, is not checked, nor in those
    whose names match `checks`, which check.
    With other declarations than those of the CPU's runtime accesses remember no region.
    """
    first = 0 if declarations is DECLARATIONS else SLOTS
    calls = _Calls(_Places(module, tuple(map(str, ours))), first)
    for name, function in module.functions.items():
        if not any(call in function.body for call in _CALLED):
            continue
        is_ours = name == entry or re.fullmatch(checks, name) is not None
        blocks = function.blocks
        for block in blocks:
            block.instructions = list(calls.checked(block.instructions, is_ours))
        function.blocks = blocks
    for variable in module.globals.values():  # named symbols: the checker reads constants' sizes
        if variable.text:
            variable.text = variable.text.replace(
                "= private unnamed_addr constant", "= internal constant", 1
            )
    module.append(declarations)
    return calls.sites[: MAX_SITES + 1]


def require_checks(module: Module, checks: str = NO_CHECKS) -> None:
    """Raise CompileError for a function that the sanitizer left out or whose places are unknown,
    unless `checks` matches its name."""
    for name, function in module.functions.items():
        if name in _UNCHECKED or re.fullmatch(checks, name):
            continue
        words = function.attributes
        groups = (module.attributes.get(word[1:]) for word in words if word[0] == "#")
        grouped = (group.text for group in groups if group and group.text)
        known = " ".join(("", *words, *grouped, ""))
        if " sanitize_address " not in known or "!dbg" not in words:
            raise CompileError(
                f"error: the function '{name}' would hide from the checking modes: change its "
                "name and attributes\n"
            )


class _Calls:
    """Writes our calls, with the numbers of their sites and of accesses that remember a region."""

    def __init__(self, places: _Places, first_slot: int) -> None:
        self.sites = [Site("", 0, 0)]
        self._numbers: dict[Site, int] = {}
        self._find = cache(places.find)
        self._names, self._slots = count(), count(first_slot)

    def checked(self, instructions: list[Instruction], is_ours: bool) -> Iterator[Instruction]:
        """The instructions of a block with our calls."""
        before, waiting = Instruction(""), iter(instructions)
        for call in waiting:
            if not any(name in call.text for name in _CALLED):
                yield call
            else:
                site = self._number(call, is_ours)
                if call.callee.startswith(("@__asan_load", "@__asan_store")):
                    if site is not None:
                        yield from self._access(call, site, before, next(waiting))
                elif call.callee != "@__asan_handle_no_return":
                    yield _placed(call, site)
            before = call

    def _number(self, call: Instruction, is_ours: bool) -> int | None:
        """Of its site: 0 if that is not known, None if it is the trampoline's own."""
        if "dbg" not in call.metadata:  # lost by the optimiser
            return 0
        site = self._find(call.metadata["dbg"])
        if site is None:
            return None if is_ours else 0
        if site not in self._numbers:
            self._numbers[site] = len(self.sites) if len(self.sites) <= MAX_SITES else 0
            self.sites.append(site)
        return self._numbers[site]

    def _access(
        self, call: Instruction, site: int, before: Instruction, access: Instruction
    ) -> Iterator[Instruction]:
        """Replace the address by the checked one: an access out of bounds then has no effect. What
        cannot be replaced is refused."""
        address, *size = call.values
        length = size[0] if size else re.sub(r"\D", "", call.callee)
        if not length.isdigit() or int(length) > _SINK:
            raise CompileError(
                f"error: a value of {length} bytes is accessed at once: checking modes support at "
                f"most {_SINK} bytes, so access its elements\n"
            )
        made = before if before.result == address else expression(address)
        pointer = made.values[0] if made and made.opcode == "ptrtoint" else ""
        found = [each for each in access.operands if (each.type, each.value) == ("ptr", pointer)]
        if not found:
            raise CompileError(
                f"error: checking modes cannot check the access of {length} bytes of an argument: "
                "pass it by reference\n"
            )
        name, slot = f"%softmetal.{next(self._names)}", next(self._slots)
        function = "softmetal_check_access"
        if slot < SLOTS:  # which are for accesses of one size
            function = "softmetal_check_fast"
        flags = site | _kind(call, access)
        arguments = f"i64 {address}, i64 {length}, i32 {flags}, i64 {min(slot, SLOTS)}"
        yield Instruction(f"  {name} = call i64 @{function}({arguments}){call.attached}")
        yield Instruction(f"  {name}.p = inttoptr i64 {name} to ptr")
        yield access.with_value(found[-1], f"{name}.p")


def _kind(call: Instruction, access: Instruction) -> int:
    write = _WRITE if call.callee.startswith("@__asan_store") else 0
    if access.opcode in ("atomicrmw", "cmpxchg"):
        return write | _ATOMIC | _MODIFY
    return write | (_ATOMIC if "atomic " in access.flags else 0)


def _placed(call: Instruction, site: int | None) -> Instruction:
    """A copy or a barrier with its place."""
    if not call.operands:
        return call
    last = call.operands[-1]
    if call.callee.startswith("@__asan_mem"):
        place = -1 if site is None else site  # -1: the trampoline's own
        placed = call.with_value(last, f"{last.value}, i32 {place}")
        return Instruction(placed.text.replace("@__asan_", "@softmetal_check_", 1))
    is_barrier = call.callee == "@softmetal_check_barrier" and last.value == "0"
    return call.with_value(last, str(site or 0)) if is_barrier else call
