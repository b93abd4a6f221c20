"""`bounds` on a GPU: accesses call include/target/check.h, which knows the kernel's variables from
functions that are made here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from softmetal.compiler import instrument
from softmetal.compiler.identity import PACKAGE
from softmetal.compiler.native import local_name

# Clang's driver does not pass a sanitizer on to PTX, its compiler does.
SANITIZER = (
    *instrument.SANITIZER,
    *("-fsanitize-recover=kernel-address", "-mllvm", "-asan-constructor-kind=none"),
)
_THREADGROUP, _CONSTANT = 3, 4  # address spaces of LLVM
_VARIABLE = re.compile(
    r"^@(\"[^\"\n]+\"|[\w.$-]+) = internal [^\n]*?addrspace\((\d)\) (?:global|constant) (.+)$", re.M
)
_OURS = ("softmetal_", "_ZN9softmetal", "_ZL9softmetal")
_DEBUG = re.compile(r"(?:,)? !dbg !\d+|^!llvm\.dbg\.cu = .*$", re.M)
_DECLARED = re.compile(r"^declare [^\n]*@softmetal_variable_\w+\([^\n]*$", re.M)


@dataclass(frozen=True)
class Checked:
    """The IR of a kernel with its checks, and what findings refer to by number."""

    ir: str
    sites: list[instrument.Site]
    threadgroup: list[str]
    constants: list[str]


def instrumented(ir: str) -> Checked:
    """Let every access of the user's source be checked."""
    text, sites = instrument.instrument(ir, (PACKAGE, "softmetal_entry"), declarations="\n")
    text = _DEBUG.sub("", text)
    found = [
        (name, int(space), _type_of(rest))
        for name, space, rest in _VARIABLE.findall(text)
        if not name.strip('"').startswith(_OURS)
    ]
    shared = [v for v in found if v[1] == _THREADGROUP]
    constants = [v for v in found if v[1] == _CONSTANT]
    variables = [*shared, *constants]
    text = _DECLARED.sub("", text) + _functions(variables, len(shared))
    names = [local_name(name.strip('"')) for name, _, _ in variables]
    return Checked(text, sites, names[: len(shared)], names[len(shared) :])


def _type_of(rest: str) -> str:
    """The type at the start of what follows `global`; it ends outside brackets."""
    depth = 0
    for index, character in enumerate(rest):
        depth += (character in "[{<(") - (character in "]})>")
        if depth == 0 and character in " ,":
            return rest[:index]
    return rest


def _functions(variables: list[tuple[str, int, str]], shared: int) -> str:
    starts = [
        f"ptrtoint (ptr addrspacecast (ptr addrspace({space}) @{name} to ptr) to i64)"
        for name, space, _ in variables
    ]
    sizes = [
        f"ptrtoint (ptr getelementptr ({kind}, ptr null, i64 1) to i64)" for _, _, kind in variables
    ]
    constant = [str(int(index >= shared)) for index in range(len(variables))]
    return (
        f"\ndefine i32 @softmetal_variable_count() {{\n  ret i32 {len(variables)}\n}}\n"
        + _chosen("start", "i64", starts)
        + _chosen("size", "i64", sizes)
        + _chosen("is_constant", "i1", constant).replace("define i1", "define zeroext i1")
    )


def _chosen(name: str, kind: str, values: list[str]) -> str:
    """A function that gives a value for each number."""
    cases = "".join(f" i32 {i}, label %v{i}" for i in range(len(values)))
    blocks = "".join(f"v{i}:\n  ret {kind} {value}\n" for i, value in enumerate(values))
    return (
        f"define {kind} @softmetal_variable_{name}(i32 %index) {{\n"
        f"  switch i32 %index, label %none [{cases} ]\n"
        f"{blocks}none:\n  ret {kind} 0\n}}\n"
    )
